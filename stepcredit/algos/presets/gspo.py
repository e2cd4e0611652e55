"""GSPO and CISPO: GRPO's advantage under other treatments of the ratio."""

from dataclasses import dataclass, replace

from torch import Tensor

from stepcredit.agents.logprobs import Reading
from stepcredit.algos.algorithm import Algorithm
from stepcredit.algos.batch import Batch
from stepcredit.algos.presets.grpo import LossKLSettings, group_advantage, loss_kl, with_group
from stepcredit.algos.presets.settings import NotNegative, Positive
from stepcredit.algos.trust import cispo as detached_clip
from stepcredit.algos.trust import sequence_clipped
from stepcredit.algos.weights import token_mean


@dataclass(frozen=True, kw_only=True)
class GSPOSettings(LossKLSettings):
    """A group's settings; the ratio is that of the whole answer."""

    epsilon: Positive = 3e-4
    """Sequence ratio kept above 1 - epsilon."""
    epsilon_high: Positive = 4e-4
    """Sequence ratio kept below 1 + epsilon_high."""
    beta: NotNegative = 0.0


def gspo(s: GSPOSettings) -> Algorithm:
    """GSPO: the clip looks at the whole answer's ratio, to the power 1/length.

    arXiv:2507.18071, eq. 5 to 7.
    """

    def trust_region(now: Reading, batch: Batch) -> tuple[Tensor, Tensor]:
        assert batch.advantages is not None
        return sequence_clipped(
            now.logprobs,
            batch.old_logprobs,
            batch.advantages,
            batch.loss_mask,
            epsilon=s.epsilon,
            epsilon_high=s.epsilon_high,
        )

    return with_group(s, group_advantage, trust_region, reads="total", kl=loss_kl(s))


@dataclass(frozen=True, kw_only=True)
class CISPOSettings(LossKLSettings):
    """A group's settings; the ratio is a clipped weight without gradient."""

    epsilon: Positive = 1.0
    """Weight kept above 1 - epsilon; 1: no lower bound."""
    epsilon_high: Positive = 4.0
    """Weight kept below 1 + epsilon_high."""
    beta: NotNegative = 0.0


def cispo(s: CISPOSettings) -> Algorithm:
    """CISPO: every token keeps its gradient, weighted by a clipped ratio that carries none.

    MiniMax-M1 (arXiv:2506.13585, eq. 4 and 5); token mean.
    """

    def trust_region(now: Reading, batch: Batch) -> tuple[Tensor, Tensor]:
        assert batch.advantages is not None
        return detached_clip(
            now.logprobs,
            batch.old_logprobs,
            batch.advantages,
            epsilon=s.epsilon,
            epsilon_high=s.epsilon_high,
        )

    group = with_group(s, group_advantage, trust_region, reads="total", kl=loss_kl(s))
    return replace(group, weight=token_mean)
