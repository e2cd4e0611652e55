"""VAPO: PPO whose critic is trained first and apart from the policy's lambda."""

from dataclasses import dataclass, replace
from functools import partial

from stepcredit.algos.algorithm import Algorithm
from stepcredit.algos.batch import Batch
from stepcredit.algos.credit import Credit
from stepcredit.algos.gae import length_adaptive_lam, token_gae
from stepcredit.algos.presets.ppo import CriticSettings, clip_tokens, values_of, with_critic
from stepcredit.algos.presets.settings import CountOrZero, NotNegative, Positive, Share


@dataclass(frozen=True, kw_only=True)
class VAPOSettings(CriticSettings):
    """PPO's settings with the defaults of VAPO, and its own lambdas."""

    epsilon_high: Positive = 0.28
    """Ratio kept below 1 + epsilon_high."""
    beta: NotNegative = 0.0
    value_pretrain_steps: CountOrZero = 50
    lam_value: Share = 1.0
    """Lambda of the value targets."""
    alpha: Positive = 0.05
    """The policy's lambda for an episode of l policy tokens is 1 - 1 / (alpha l)."""
    positive_nll: NotNegative = 0.1
    """Coefficient of the likelihood of successful episodes."""


def vapo(s: VAPOSettings) -> Algorithm:
    """VAPO: value pretraining, a lambda for the critic and one by length, likelihood of successes.

    arXiv:2504.05118, after VC-PPO (arXiv:2503.01491); clip-higher and the token mean of DAPO.
    Departs from it where an episode is shorter than 1 / alpha tokens: lambda is 0 there, not less.
    """

    def advantage(batch: Batch) -> Credit:
        values, final = values_of(batch)
        lam = length_adaptive_lam(batch.action_mask, s.alpha)  # [B]
        return token_gae(
            batch.rewards,
            values,
            batch.action_mask,
            gamma=s.gamma,
            lam=lam,
            lam_value=s.lam_value,
            final_values=final,
        )

    return replace(
        with_critic(s, advantage, reads="steps"),
        trust_region=partial(
            clip_tokens, epsilon=s.epsilon, epsilon_high=s.epsilon_high, dual_clip=s.dual_clip
        ),
        positive_nll=s.positive_nll,
    )
