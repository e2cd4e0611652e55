"""DAPO: clip-higher, token mean, dynamic sampling, soft penalty of overlong answers."""

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from stepcredit.algos.algorithm import Algorithm
from stepcredit.algos.batch import Batch
from stepcredit.algos.credit import Credit
from stepcredit.algos.errors import TrainingError
from stepcredit.algos.group import group_outcome
from stepcredit.algos.presets.grpo import ClippedGroupSettings, loss_kl, with_group
from stepcredit.algos.presets.ppo import clip_tokens
from stepcredit.algos.presets.settings import (
    Count,
    CountOrZero,
    NotNegative,
    Positive,
    ZeroVariance,
)
from stepcredit.algos.weights import token_mean


@dataclass(frozen=True, kw_only=True)
class DAPOSettings(ClippedGroupSettings):
    """GRPO's settings with the defaults of DAPO."""

    epsilon_high: Positive = 0.28
    """Ratio kept below 1 + epsilon_high."""
    beta: NotNegative = 0.0
    zero_variance: ZeroVariance = "resample"
    max_num_gen_batches: Count = 10
    """Rollouts of one step, at most."""
    max_completion_length: CountOrZero = 0
    """Policy tokens of an episode above which the penalty is whole; 0: no penalty."""
    overlong_cache: CountOrZero = 0
    """Tokens before that length over which the penalty rises from 0 to 1."""


def dapo(s: DAPOSettings) -> Algorithm:
    """DAPO: clip-higher, token mean, flat groups sampled anew, overlong answers penalised.

    arXiv:2503.14476, eq. 8 to 13. All sampled tokens count, those of groups left out included. The
    paper's lengths are 20,480 with a cache of 4,096; by default there is no penalty.
    """
    if s.overlong_cache > s.max_completion_length:
        raise TrainingError(
            f"algo.overlong_cache={s.overlong_cache}: must be at most algo.max_completion_length="
            f"{s.max_completion_length}"
        )

    def advantage(batch: Batch) -> Credit:
        rewards = batch.rewards
        if s.max_completion_length:
            late = overlong(batch.action_mask, s.max_completion_length, s.overlong_cache)  # [B]
            rewards = rewards + late[:, None] * last_token(batch.action_mask)
        return group_outcome(rewards, batch.action_mask, batch.group_index)

    clip_higher = partial(
        clip_tokens, epsilon=s.epsilon, epsilon_high=s.epsilon_high, dual_clip=s.dual_clip
    )
    return replace(
        with_group(s, advantage, clip_higher, reads="total", kl=loss_kl(s)),
        weight=token_mean,
        max_num_gen_batches=s.max_num_gen_batches,
    )


def overlong(action_mask: Tensor, max_tokens: int, cache: int) -> Tensor:
    """Return what an episode's length costs: 0 to -1 (arXiv:2503.14476, eq. 13). [B].

    Nothing up to `max_tokens - cache` policy tokens, then linear to -1 at `max_tokens`; without a
    cache nothing at `max_tokens` and -1 above.
    """
    over = action_mask.sum(1) - (max_tokens - cache)  # [B]
    return -(over.double() / max(cache, 1)).clamp(0, 1).to(torch.float32)


def last_token(action_mask: Tensor) -> Tensor:
    """Mark the last policy token of each row. [B, T] bool."""
    return action_mask & (action_mask.flip(1).cumsum(1).flip(1) == 1)
