"""RLOO and REINFORCE++: plain policy gradients with a baseline, and no critic."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from stepcredit.algos.algorithm import KL, Algorithm
from stepcredit.algos.batch import Batch
from stepcredit.algos.credit import Credit
from stepcredit.algos.group import leave_one_out
from stepcredit.algos.group import reinforce_plus_plus as returns_to_go
from stepcredit.algos.group import reinforce_plus_plus_baseline as less_group_mean
from stepcredit.algos.presets.grpo import GroupSettings, with_group
from stepcredit.algos.presets.ppo import clip_tokens
from stepcredit.algos.presets.settings import Count, NotNegative, Positive, Share
from stepcredit.algos.weights import sequence_sum, token_mean


@dataclass(frozen=True, kw_only=True)
class RLOOSettings(GroupSettings):
    """RLOO (arXiv:2402.14740): a group without standard deviation, KL in the reward."""

    epsilon: Positive = 0.2
    """Ratio kept within [1 - epsilon, 1 + epsilon]."""
    beta: NotNegative = 0.05
    """KL coefficient of the reward (k1 against the starting policy)."""


def rloo(s: RLOOSettings) -> Algorithm:
    """RLOO: a sample's return minus the mean of the others', KL (k1) in the reward.

    arXiv:2402.14740, eq. 8: the gradients of an answer's tokens are summed, not averaged. Departs
    from it after the first optimizer step on a rollout, where each token's ratio is clipped.
    """

    def advantage(batch: Batch) -> Credit:
        return leave_one_out(batch.rewards, batch.action_mask, batch.group_index)

    clip = partial(clip_tokens, epsilon=s.epsilon, epsilon_high=s.epsilon)
    kl = KL(beta=s.beta, place="reward") if s.beta else None
    return replace(with_group(s, advantage, clip, reads="total", kl=kl), weight=sequence_sum)


@dataclass(frozen=True, kw_only=True)
class ReinforceBaselineSettings:
    """REINFORCE++ (arXiv:2501.03262): no critic, one normalisation for the whole batch."""

    epsilon: Positive = 0.2
    """Ratio kept within [1 - epsilon, 1 + epsilon]."""
    beta: NotNegative = 0.01
    """KL coefficient of the reward (k1 against the starting policy)."""
    num_iterations: Count = 1
    num_mini_batches: Count = 1


@dataclass(frozen=True, kw_only=True)
class ReinforceSettings(ReinforceBaselineSettings):
    """REINFORCE++ without a group."""

    gamma: Share = 1.0
    """Discount from one policy token to the next."""


def reinforce_plus_plus(s: ReinforceSettings) -> Algorithm:
    """REINFORCE++: returns-to-go of the policy tokens, normalised over the whole batch.

    arXiv:2501.03262: PPO's clip and KL in the reward without its critic.
    """

    def advantage(batch: Batch) -> Credit:
        return returns_to_go(batch.rewards, batch.action_mask, gamma=s.gamma)

    return _normalised(s, advantage)


def reinforce_plus_plus_baseline(s: ReinforceBaselineSettings) -> Algorithm:
    """REINFORCE++-baseline: a sample's return minus its group's mean, normalised over the batch.

    arXiv:2501.03262, section 3.2. Otherwise as `reinforce_plus_plus`.
    """

    def advantage(batch: Batch) -> Credit:
        return less_group_mean(batch.rewards, batch.action_mask, batch.group_index)

    return replace(_normalised(s, advantage), min_members=2, reads="total")


def _normalised(s: ReinforceBaselineSettings, advantage: Callable[[Batch], Credit]) -> Algorithm:
    return Algorithm(
        advantage=advantage,
        trust_region=partial(clip_tokens, epsilon=s.epsilon, epsilon_high=s.epsilon),
        weight=token_mean,
        kl=KL(beta=s.beta, place="reward") if s.beta else None,
        num_iterations=s.num_iterations,
        num_mini_batches=s.num_mini_batches,
        whiten_advantages=True,
    )
