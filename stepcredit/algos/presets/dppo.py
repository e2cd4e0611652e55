"""DPPO and CPPO: trust regions by divergence from the policy that sampled, not by ratio."""

from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from stepcredit.agents.logprobs import Reading
from stepcredit.algos.algorithm import Algorithm
from stepcredit.algos.batch import Batch
from stepcredit.algos.credit import Credit
from stepcredit.algos.divergence import (
    binary_kl,
    binary_tv,
    own_budget,
    topk_kl,
    topk_tv,
)
from stepcredit.algos.divergence import cppo as prefix_mask
from stepcredit.algos.divergence import dppo as token_mask
from stepcredit.algos.errors import TrainingError
from stepcredit.algos.group import group_outcome
from stepcredit.algos.presets.grpo import LossKLSettings, group_advantage, loss_kl, with_group
from stepcredit.algos.presets.settings import (
    CountOrZero,
    NotNegative,
    Positive,
    Share,
    ZeroVariance,
)
from stepcredit.algos.weights import sequence_sum

Divergence = Literal["tv", "kl"]


@dataclass(frozen=True, kw_only=True)
class DPPOSettings(LossKLSettings):
    """A group's settings and the size of the region."""

    beta: NotNegative = 0.0
    divergence: Divergence = "tv"
    """Total variation or KL."""
    topk: CountOrZero = 0
    """Likeliest tokens that stand for the distribution; 0: the sampled token against the rest."""
    delta: Positive = 0.15
    """Divergence above which a token is left out; the paper has .05 for KL."""
    ratio_cap: Positive | None = None
    """Largest weight of a token; null: none."""


def dppo(s: DPPOSettings) -> Algorithm:
    """DPPO: a token whose distribution moved too far, and would move further, is left out.

    arXiv:2602.04879, anchored at the policy that sampled; group mean without standard deviation.
    """

    def advantage(batch: Batch) -> Credit:
        mask = batch.action_mask
        return group_outcome(batch.rewards, mask, batch.group_index, scale_rewards="none")

    def trust_region(now: Reading, batch: Batch) -> tuple[Tensor, Tensor]:
        assert batch.advantages is not None
        moved = divergence(now, batch, s.divergence)  # [B, T]
        return token_mask(
            now.logprobs,
            batch.old_logprobs,
            batch.advantages,
            moved,
            delta=s.delta,
            ratio_cap=s.ratio_cap,
        )

    group = with_group(s, advantage, trust_region, reads="total", kl=loss_kl(s))
    return replace(group, weight=sequence_sum, topk=s.topk)


@dataclass(frozen=True, kw_only=True)
class CPPOSettings(LossKLSettings):
    """A group's settings and the size and shape of the region."""

    beta: NotNegative = 0.0
    zero_variance: ZeroVariance = "drop"
    divergence: Divergence = "tv"
    topk: CountOrZero = 20
    delta: Positive = 0.15
    """Weighted divergence above which a token is left out; the paper has .1 for KL."""
    budget: Positive | None = 0.015
    """Mean divergence that a prefix may have beyond `delta`; the paper has .002 for KL. null: each
    answer's own 90th percentile within .02 to .04, as for the paper's base models."""
    w_min: Share = 0.8
    """Weight of the last token's divergence; the first has 1."""
    scope: Literal["trajectory", "turn"] = "trajectory"
    """Where weights and budget begin anew."""


def cppo(s: CPPOSettings) -> Algorithm:
    """CPPO: early tokens count more, and a prefix has a budget of divergence.

    arXiv:2606.10968. Positions count policy tokens alone. By default the budget is fixed, as for
    the paper's post-trained model. Raises TrainingError for a KL without a budget of its own.
    """
    if s.budget is None and s.divergence == "kl":
        raise TrainingError(
            "algo.budget=null: an answer's own budget is that of total variation; pass "
            "algo.budget=0.002 with algo.divergence=kl"
        )

    def trust_region(now: Reading, batch: Batch) -> tuple[Tensor, Tensor]:
        assert batch.advantages is not None
        moved = divergence(now, batch, s.divergence)  # [B, T]
        return prefix_mask(
            now.logprobs,
            batch.old_logprobs,
            batch.advantages,
            moved,
            batch.action_mask,
            batch.turn_ids,
            delta=s.delta,
            budget=own_budget(moved, batch.action_mask) if s.budget is None else s.budget,
            w_min=s.w_min,
            scope=s.scope,
        )

    group = with_group(s, group_advantage, trust_region, reads="total", kl=loss_kl(s))
    return replace(group, weight=sequence_sum, topk=s.topk)


def divergence(now: Reading, batch: Batch, kind: Divergence) -> Tensor:
    """Return how far each token's distribution is from the one it was sampled from. [B, T]."""
    if now.topk_logprobs is None:
        binary = {"tv": binary_tv, "kl": binary_kl}[kind]
        return binary(now.logprobs, batch.old_logprobs)
    assert batch.topk_logprobs is not None and batch.topk_ids is not None
    by_topk = {"tv": topk_tv, "kl": topk_kl}[kind]
    return by_topk(
        now.logprobs,
        batch.old_logprobs,
        now.topk_logprobs,
        batch.topk_logprobs,
        batch.topk_ids,
        batch.input_ids,
    )
