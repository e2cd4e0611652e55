"""PPO with a value network: one baseline per policy token, per step, or per turn."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from torch import Tensor

from stepcredit.agents.logprobs import Reading
from stepcredit.algos.algorithm import KL, Algorithm, Critic
from stepcredit.algos.batch import Batch
from stepcredit.algos.credit import Credit
from stepcredit.algos.errors import TrainingError
from stepcredit.algos.gae import step_gae, token_gae, turn_gae
from stepcredit.algos.presets.settings import (
    AboveOne,
    Count,
    CountOrZero,
    NotNegative,
    Positive,
    Share,
)
from stepcredit.algos.trust import clipped, turn_clipped
from stepcredit.algos.weights import token_mean


@dataclass(frozen=True, kw_only=True)
class CriticSettings:
    """What every PPO with a value network is set with."""

    gamma: Share = 1.0
    """Discount from one token, step or turn to the next."""
    epsilon: Positive = 0.2
    """Ratio kept within [1 - epsilon, 1 + epsilon]."""
    dual_clip: AboveOne | None = None
    """Largest ratio of a token with a negative advantage (arXiv:1912.09729); null: none."""
    beta: NotNegative = 0.02
    """KL coefficient of the reward (k1 against the starting policy)."""
    target_kl: Positive | None = None
    """Move beta so that an episode's KL comes to this, in nats (arXiv:1909.08593); null: fixed."""
    whiten_advantages: bool = True
    num_ppo_epochs: Count = 1
    num_mini_batches: Count = 1
    value_learning_rate: Positive = 1e-3
    value_epochs: Count = 2
    value_mini_batches: Count = 4
    cliprange_value: Positive | None = 0.2
    """Value kept within this of the rollout's; null: no clip."""
    value_pretrain_steps: CountOrZero = 0
    """First steps in which the value network alone learns."""


@dataclass(frozen=True, kw_only=True)
class PPOSettings(CriticSettings):
    """PPO as in InstructGPT (arXiv:2203.02155), with a value network of its own."""

    lam: Share = 0.95
    """Lambda of GAE."""


def ppo(s: PPOSettings) -> Algorithm:
    """PPO: a learned value for every policy token, token GAE, KL (k1) in the reward.

    InstructGPT (arXiv:2203.02155); GAE is eq. 16 of arXiv:1506.02438, the clip eq. 7 of
    arXiv:1707.06347. Departs from InstructGPT in two defaults, as TRL does: lam .95 and whitened
    advantages. The value network starts from the policy with a head that says 0.
    """

    def advantage(batch: Batch) -> Credit:
        values, final = values_of(batch)
        mask = batch.action_mask
        return token_gae(batch.rewards, values, mask, gamma=s.gamma, lam=s.lam, final_values=final)

    return with_critic(s, advantage, reads="steps")


def ppo_step(s: PPOSettings) -> Algorithm:
    """PPO with a learned value for every judged step; its tokens share the step's advantage.

    The value is read at a step's first policy token and GAE (arXiv:1506.02438, eq. 16) runs over
    steps, whatever their length and the tool output between them. Otherwise as `ppo`.
    """

    def advantage(batch: Batch) -> Credit:
        values, final = values_of(batch)
        mask, ends = batch.action_mask, batch.step_end
        return step_gae(
            batch.rewards, values, mask, ends, gamma=s.gamma, lam=s.lam, final_values=final
        )

    return with_critic(s, advantage, reads="steps")


def ppo_turn(s: PPOSettings) -> Algorithm:
    """PPO with a learned value for every turn; its tokens share the turn's advantage.

    Turn-PPO (arXiv:2512.17008): a turn is the action of the decision process, and the clip is on
    the product of its tokens' ratios. gamma, lam and the rest default as in `ppo`.
    """

    def advantage(batch: Batch) -> Credit:
        values, final = values_of(batch)
        mask, turns = batch.action_mask, batch.turn_ids
        return turn_gae(
            batch.rewards, values, mask, turns, gamma=s.gamma, lam=s.lam, final_values=final
        )

    def trust_region(now: Reading, batch: Batch) -> tuple[Tensor, Tensor]:
        assert batch.advantages is not None
        return turn_clipped(
            now.logprobs,
            batch.old_logprobs,
            batch.advantages,
            batch.action_mask,
            batch.turn_ids,
            epsilon=s.epsilon,
            epsilon_high=s.epsilon,
            dual_clip=s.dual_clip,
        )

    return replace(with_critic(s, advantage, reads="turns"), trust_region=trust_region)


def with_critic(
    s: CriticSettings,
    advantage: Callable[[Batch], Credit],
    *,
    reads: Literal["turns", "steps"],
) -> Algorithm:
    """Compose PPO around an estimator; raises TrainingError for a target without a KL."""
    if s.target_kl is not None and not s.beta:
        raise TrainingError(
            f"algo.target_kl={s.target_kl}: there is no KL to aim at while algo.beta=0, where beta "
            "starts from; pass algo.beta=0.02"
        )
    return Algorithm(
        advantage=advantage,
        trust_region=partial(
            clip_tokens, epsilon=s.epsilon, epsilon_high=s.epsilon, dual_clip=s.dual_clip
        ),
        weight=token_mean,
        kl=KL(beta=s.beta, place="reward", target=s.target_kl) if s.beta else None,
        baseline=Critic(
            learning_rate=s.value_learning_rate,
            epochs=s.value_epochs,
            num_mini_batches=s.value_mini_batches,
            cliprange_value=s.cliprange_value,
            pretrain_steps=s.value_pretrain_steps,
        ),
        num_iterations=s.num_ppo_epochs,
        num_mini_batches=s.num_mini_batches,
        whiten_advantages=s.whiten_advantages,
        reads=reads,
    )


def values_of(batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the values [B, T] and final values [B] that the trainer read from the baseline.

    Raises TrainingError where the algorithm was composed without one.
    """
    if batch.values is None or batch.final_values is None:
        raise TrainingError(
            "the batch has no values: this estimator needs a baseline; compose the Algorithm with "
            "baseline=Critic(...) or baseline=MonteCarlo(...)"
        )
    return batch.values, batch.final_values


def clip_tokens(
    now: Reading,
    batch: Batch,
    *,
    epsilon: float,
    epsilon_high: float,
    dual_clip: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Clip each token's ratio to the policy that sampled it."""
    assert batch.advantages is not None
    return clipped(
        now.logprobs,
        batch.old_logprobs,
        batch.advantages,
        epsilon=epsilon,
        epsilon_high=epsilon_high,
        dual_clip=dual_clip,
    )
