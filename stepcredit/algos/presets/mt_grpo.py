"""MT-GRPO: the outcome's advantage plus that of the turn."""

from dataclasses import dataclass

from stepcredit.algos.algorithm import Algorithm
from stepcredit.algos.batch import Batch
from stepcredit.algos.credit import Credit
from stepcredit.algos.group import mt_grpo as by_turn
from stepcredit.algos.presets.grpo import (
    ClippedGroupSettings,
    loss_kl,
    ratio_clip,
    with_group,
)
from stepcredit.algos.presets.settings import NotNegative


@dataclass(frozen=True, kw_only=True)
class MTGRPOSettings(ClippedGroupSettings):
    """GRPO's settings and the share of the turn."""

    turn_coef: NotNegative = 1.0
    """Weight of the turn's own advantage beside the outcome's."""


def mt_grpo(s: MTGRPOSettings) -> Algorithm:
    """MT-GRPO: every turn gets the outcome's advantage, those before the last also their own.

    arXiv:2505.11821. Both are normalised over the group, a turn's reward among its turns of that
    number that are not a sample's last. The paper has two turns; more are treated alike.
    """

    def advantage(batch: Batch) -> Credit:
        return by_turn(
            batch.rewards,
            batch.outcomes,
            batch.action_mask,
            batch.turn_ids,
            batch.group_index,
            turn_coef=s.turn_coef,
        )

    return with_group(s, advantage, ratio_clip(s), reads="turns", kl=loss_kl(s))
