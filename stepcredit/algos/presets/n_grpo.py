"""N-GRPO: GRPO on rollouts with neighbour-mixed input embeddings."""

from dataclasses import dataclass, replace

from stepcredit.agents.engines.base import Mixing
from stepcredit.algos.algorithm import Algorithm
from stepcredit.algos.presets.grpo import GRPOSettings, grpo
from stepcredit.algos.presets.settings import Count, Share


@dataclass(frozen=True, kw_only=True)
class NGRPOSettings(GRPOSettings):
    """GRPO's settings and those of the mixture."""

    mix_rate: Share = 0.1
    """Share of the sampled tokens whose input embedding is mixed."""
    mix_neighbours: Count = 3
    """Embeddings in a mixture: the likeliest token's and its nearest ones'."""


def n_grpo(s: NGRPOSettings) -> Algorithm:
    """N-GRPO: some sampled tokens are read as a mixture of the likeliest one and its neighbours.

    arXiv:2606.10768. The trainer rebuilds the mixtures, so that ratios are those of the policy that
    sampled; evaluation does not mix. The paper needs the KL term of GRPO.
    """
    return replace(grpo(s), mixing=Mixing(rate=s.mix_rate, k=s.mix_neighbours))
