"""GRPO as in DeepSeekMath: the group is the baseline; outcome or process supervision."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from stepcredit.algos.algorithm import KL, Algorithm, TrustRegion
from stepcredit.algos.batch import Batch
from stepcredit.algos.credit import Credit
from stepcredit.algos.group import (
    group_outcome,
    group_process,
    process_positions,
    process_returns,
)
from stepcredit.algos.kl import kl_term
from stepcredit.algos.presets.ppo import clip_tokens
from stepcredit.algos.presets.settings import (
    AboveOne,
    Count,
    CountOrZero,
    NotNegative,
    Positive,
    ZeroVariance,
)
from stepcredit.algos.weights import sequence_mean


@dataclass(frozen=True, kw_only=True)
class GroupSettings:
    """What every algorithm with a group for its baseline is set with."""

    num_iterations: Count = 1
    """Passes over each rollout."""
    num_mini_batches: Count = 1
    """Optimizer steps of one pass."""
    zero_variance: ZeroVariance = "keep"
    """Groups whose returns are all equal: keep | drop | resample."""


@dataclass(frozen=True, kw_only=True)
class LossKLSettings(GroupSettings):
    """A group's settings and those of a KL term in the loss."""

    beta: NotNegative = 0.04
    """KL coefficient against the reference policy."""
    kl_estimator: Literal["k2", "k3", "k3+"] = "k3"
    """The term in the loss; docs/algorithms/kl.md says which gradient each one is."""
    kl_correction: bool = False
    """Weigh the term by the ratio to the policy that sampled (arXiv:2512.02556)."""
    reference_refresh_steps: CountOrZero = 0
    """Steps after which the policy becomes its own reference; 0: never."""


@dataclass(frozen=True, kw_only=True)
class ClippedGroupSettings(LossKLSettings):
    """GRPO as in DeepSeekMath (arXiv:2402.03300): the group is the baseline, KL in the loss."""

    epsilon: Positive = 0.2
    """Ratio kept within [1 - epsilon, 1 + epsilon]; the paper does not report its value."""
    dual_clip: AboveOne | None = None
    """Largest ratio of a token with a negative advantage (arXiv:1912.09729); null: none."""


@dataclass(frozen=True, kw_only=True)
class GRPOSettings(ClippedGroupSettings):
    """Outcome-supervised GRPO."""

    scale_rewards: Literal["group", "batch", "none"] = "group"
    """Standard deviation to divide by: the group's, the whole batch's, or none."""


def grpo(s: GRPOSettings) -> Algorithm:
    """GRPO, outcome-supervised: a sample's return against its group's, for the whole answer.

    arXiv:2402.03300, section 4.1.2 and eq. 3. The standard deviation is that of n - 1.
    """

    def advantage(batch: Batch) -> Credit:
        mask, groups = batch.action_mask, batch.group_index
        return group_outcome(batch.rewards, mask, groups, scale_rewards=s.scale_rewards)

    return with_group(s, advantage, ratio_clip(s), reads="total", kl=loss_kl(s))


def grpo_process(s: ClippedGroupSettings) -> Algorithm:
    """GRPO, process-supervised as published: each token gets the normalised steps still to come.

    arXiv:2402.03300, section 4.1.3. Its length artefact is documented and tested.
    """

    def advantage(batch: Batch) -> Credit:
        return group_process(batch.rewards, batch.action_mask, batch.step_end, batch.group_index)

    return with_group(s, advantage, ratio_clip(s), reads="steps", kl=loss_kl(s))


def grpo_process_returns(s: ClippedGroupSettings) -> Algorithm:
    """Process GRPO that normalises returns-to-go in place of rewards: no length artefact.

    As in GTPO (arXiv:2511.14846), undiscounted and over judged steps.
    """

    def advantage(batch: Batch) -> Credit:
        return process_returns(batch.rewards, batch.action_mask, batch.step_end, batch.group_index)

    return with_group(s, advantage, ratio_clip(s), reads="steps", kl=loss_kl(s))


def grpo_process_positions(s: ClippedGroupSettings) -> Algorithm:
    """Process GRPO with a baseline for each step number: biased where numbers differ in meaning.

    A step's reward is normalised among the group's samples that have a step of that number.
    """

    def advantage(batch: Batch) -> Credit:
        return process_positions(
            batch.rewards, batch.action_mask, batch.step_end, batch.group_index
        )

    return with_group(s, advantage, ratio_clip(s), reads="steps", kl=loss_kl(s))


def ratio_clip(s: ClippedGroupSettings) -> TrustRegion:
    """Clip each token's ratio on both sides alike."""
    return partial(clip_tokens, epsilon=s.epsilon, epsilon_high=s.epsilon, dual_clip=s.dual_clip)


def loss_kl(s: LossKLSettings) -> KL | None:
    """Return the KL term that the settings describe."""
    if not s.beta:
        return None
    term = kl_term(s.kl_estimator, corrected=s.kl_correction)
    return KL(beta=s.beta, term=term, refresh_steps=s.reference_refresh_steps)


def group_advantage(batch: Batch) -> Credit:
    """Return the outcome-supervised advantage, for algorithms that change something else."""
    return group_outcome(batch.rewards, batch.action_mask, batch.group_index)


def with_group(
    s: GroupSettings,
    advantage: Callable[[Batch], Credit],
    trust_region: TrustRegion,
    *,
    reads: Literal["total", "turns", "steps"],
    kl: KL | None,
) -> Algorithm:
    """Compose GRPO around an estimator."""
    return Algorithm(
        advantage=advantage,
        trust_region=trust_region,
        weight=sequence_mean,
        kl=kl,
        num_iterations=s.num_iterations,
        num_mini_batches=s.num_mini_batches,
        min_members=2,
        zero_variance=s.zero_variance,
        reads=reads,
    )
