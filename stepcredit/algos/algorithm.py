"""What an algorithm is: a frozen composition of functions, and what it needs to be kept."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from stepcredit.agents.engines.base import Mixing
from stepcredit.agents.logprobs import Reading
from stepcredit.algos.batch import Batch
from stepcredit.algos.credit import Credit
from stepcredit.algos.kl import KLTerm, kl_term

TrustRegion = Callable[[Reading, Batch], tuple[Tensor, Tensor]]
"""What the policy now says of a batch -> (surrogate, where the region holds), all [B, T]."""


@dataclass(frozen=True, kw_only=True)
class KL:
    """A penalty for leaving the reference policy, which is the starting one unless refreshed."""

    beta: float
    place: Literal["reward", "loss"] = "loss"
    """`reward`: k1, detached, before the advantages; `loss`: `term`, with gradient."""
    term: KLTerm = field(default_factory=lambda: kl_term("k3", corrected=False))
    """What stands in the loss; not read in the reward."""
    target: float | None = None
    """Move beta after every step so that the KL comes to this value; None: beta stays."""
    refresh_steps: int = 0
    """Steps after which the policy becomes its own reference; 0: never."""


@dataclass(frozen=True, kw_only=True)
class Critic:
    """A value network, trained on the same episodes as the policy."""

    learning_rate: float
    epochs: int
    num_mini_batches: int
    cliprange_value: float | None
    pretrain_steps: int = 0
    """First steps in which the critic alone is trained."""


@dataclass(frozen=True, kw_only=True)
class MonteCarlo:
    """Values by sampling: the mean return of fresh continuations of every step."""

    num_continuations: int


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """One algorithm as a composition of functions."""

    advantage: Callable[[Batch], Credit]
    trust_region: TrustRegion
    weight: Callable[[Tensor], Tensor]
    """Loss mask [B, T] of one optimizer step -> weights [B, T]."""
    kl: KL | None = None
    baseline: Critic | MonteCarlo | None = None
    """Where `Batch.values` come from; None: there are none."""
    num_iterations: int = 1
    """Passes over each rollout."""
    num_mini_batches: int = 1
    """Optimizer steps of one pass."""
    whiten_advantages: bool = False
    """Centre and scale the advantages over the policy tokens of the whole batch."""
    positive_nll: float = 0.0
    """Coefficient of the negative log-likelihood of the successful episodes' tokens."""
    min_members: int = 1
    """Live trajectories a group needs; 2 where the group is the baseline."""
    zero_variance: Literal["keep", "drop", "resample"] = "keep"
    """Groups whose returns are all equal: train on them, leave them out, or sample others."""
    max_num_gen_batches: int = 10
    """Rollouts of one step, at most, where groups are resampled."""
    topk: int = 0
    """Likeliest tokens whose log-probabilities the rollout records; 0: none."""
    mixing: Mixing | None = None
    """Neighbour-mixed input embeddings in the rollout; None: the sampled tokens' own."""
    reads: Literal["total", "turns", "steps"] = "steps"
    """What of the rewards the estimator sees: their total, each turn's, or each step's."""
    needs_states: bool = False
    """The environment must name its states (`state_key`)."""

    @property
    def critic(self) -> Critic | None:
        """The value network's settings, where one is kept."""
        return self.baseline if isinstance(self.baseline, Critic) else None
