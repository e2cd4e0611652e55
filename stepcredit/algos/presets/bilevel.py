"""PPO with GAE on two levels: over turns, then over the tokens of each turn."""

from dataclasses import dataclass

from stepcredit.algos.algorithm import Algorithm
from stepcredit.algos.batch import Batch
from stepcredit.algos.credit import Credit
from stepcredit.algos.gae import bilevel_gae
from stepcredit.algos.presets.ppo import PPOSettings, values_of, with_critic
from stepcredit.algos.presets.settings import Share


@dataclass(frozen=True, kw_only=True)
class BilevelSettings(PPOSettings):
    """PPO's settings; `gamma` and `lam` hold within a turn."""

    gamma_turn: Share = 0.99
    """Discount from one turn to the next."""
    lam_turn: Share = 0.95


def ppo_bilevel(s: BilevelSettings) -> Algorithm:
    """PPO with GAE over turns, whose result then spreads over each turn's tokens.

    Bi-level GAE of VAGEN (arXiv:2510.16907). With every gamma and lambda 1 it is `ppo`.
    """

    def advantage(batch: Batch) -> Credit:
        values, final = values_of(batch)
        return bilevel_gae(
            batch.rewards,
            values,
            batch.action_mask,
            batch.turn_ids,
            gamma=s.gamma,
            lam=s.lam,
            gamma_turn=s.gamma_turn,
            lam_turn=s.lam_turn,
            final_values=final,
        )

    return with_critic(s, advantage, reads="turns")
