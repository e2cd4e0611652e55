"""Dr. GRPO: GRPO without its two divisions."""

from dataclasses import dataclass, replace
from functools import partial

from stepcredit.algos.algorithm import Algorithm
from stepcredit.algos.batch import Batch
from stepcredit.algos.credit import Credit
from stepcredit.algos.group import group_outcome
from stepcredit.algos.presets.grpo import (
    ClippedGroupSettings,
    loss_kl,
    ratio_clip,
    with_group,
)
from stepcredit.algos.presets.settings import Count, NotNegative
from stepcredit.algos.weights import constant


@dataclass(frozen=True, kw_only=True)
class DrGRPOSettings(ClippedGroupSettings):
    """GRPO's settings and the constant that takes the length's place."""

    beta: NotNegative = 0.0
    max_completion_length: Count = 256
    """Tokens by which every episode's sum is divided, whatever its length."""


def dr_grpo(s: DrGRPOSettings) -> Algorithm:
    """Dr. GRPO: no division by the standard deviation, none by the length.

    arXiv:2503.20783: both divisions bias GRPO, to tasks of low variance and long wrong answers.
    """

    def advantage(batch: Batch) -> Credit:
        mask = batch.action_mask
        return group_outcome(batch.rewards, mask, batch.group_index, scale_rewards="none")

    return replace(
        with_group(s, advantage, ratio_clip(s), reads="total", kl=loss_kl(s)),
        weight=partial(constant, max_tokens=s.max_completion_length),
    )
