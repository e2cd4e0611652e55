"""The recipe of DeepSeek-R1-Zero."""

from dataclasses import dataclass

from stepcredit.algos.algorithm import Algorithm
from stepcredit.algos.presets.grpo import GRPOSettings, grpo
from stepcredit.algos.presets.settings import Count, CountOrZero, NotNegative


@dataclass(frozen=True, kw_only=True)
class R1ZeroSettings(GRPOSettings):
    """GRPO's settings with the defaults of R1-Zero."""

    beta: NotNegative = 0.001
    num_mini_batches: Count = 16
    """Optimizer steps of one rollout."""
    reference_refresh_steps: CountOrZero = 25
    """Rollouts after which the policy becomes its own reference: 400 optimizer steps."""


def r1_zero(s: R1ZeroSettings) -> Algorithm:
    """GRPO with a weak KL whose reference is refreshed; rule rewards come from the environment.

    arXiv:2501.12948: accuracy and format rewards, summed by the environment; 16 samples of
    each of 512 tasks a rollout, cut into 16 optimizer steps.
    """
    return grpo(s)
