"""GiGPO: groups of episodes, and inside them groups of equal states."""

from dataclasses import dataclass, replace
from typing import Literal

from stepcredit.algos.algorithm import Algorithm
from stepcredit.algos.batch import Batch
from stepcredit.algos.credit import Credit
from stepcredit.algos.group import gigpo as by_state
from stepcredit.algos.presets.grpo import (
    ClippedGroupSettings,
    loss_kl,
    ratio_clip,
    with_group,
)
from stepcredit.algos.presets.settings import NotNegative, Share


@dataclass(frozen=True, kw_only=True)
class GiGPOSettings(ClippedGroupSettings):
    """GRPO's settings and those of the state groups."""

    gamma: Share = 0.95
    """Discount of a turn's return."""
    step_coef: NotNegative = 1.0
    """Weight of the state group's advantage beside the episode's."""
    scale_rewards: Literal["group", "none"] = "group"
    """Divide by the group's standard deviation, or not."""
    beta: NotNegative = 0.01


def gigpo(s: GiGPOSettings) -> Algorithm:
    """GiGPO: the episode's advantage plus that of the turn among turns taken in the same state.

    arXiv:2505.10978. States are equal when the environment's `state_key` is; a state that the group
    met once adds nothing.
    """

    def advantage(batch: Batch) -> Credit:
        return by_state(
            batch.rewards,
            batch.action_mask,
            batch.turn_ids,
            batch.state_index,
            batch.group_index,
            gamma=s.gamma,
            step_coef=s.step_coef,
            scale=s.scale_rewards,
        )

    group = with_group(s, advantage, ratio_clip(s), reads="turns", kl=loss_kl(s))
    return replace(group, needs_states=True)
