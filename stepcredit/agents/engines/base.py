"""What every engine offers: sessions that keep an episode's state and sample one turn at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Mixing:
    """Neighbour mixing of N-GRPO (arXiv:2606.10768): some tokens are read as a mix of embeddings.

    With probability `rate` the input embedding of a sampled token is sum_c alpha_c E[c]: c runs
    over the likeliest token and the k - 1 rows of the embedding matrix E nearest to its own by
    cosine, and alpha is the softmax of the temperature-scaled logits over these. The text keeps the
    sampled token. A rate or k of 0 mixes nothing.
    """

    rate: float
    k: int


@dataclass(frozen=True, kw_only=True)
class Completion:
    """What the policy said in one turn."""

    token_ids: list[int]
    """At least one; the stop token is the last one where `finish_reason` is "stop"."""
    logprobs: list[float]
    """Of each token, under the distribution it was drawn from (temperature applied)."""
    finish_reason: str
    """"stop" | "length"."""
    policy_version: int

    topk_ids: list[list[int]] | None = None
    """Of each token, the K likeliest under the distribution it was drawn from, likeliest first."""
    topk_logprobs: list[list[float]] | None = None
    """Their log-probabilities."""
    mix_ids: list[list[int]] | None = None
    """Of each token, the k tokens whose embeddings were read in place of its own."""
    mix_weights: list[list[float]] | None = None
    """The weights they were read with, which sum to 1; all 0 where the token's own was read."""


class Session(Protocol):
    """The episodes of one rollout."""

    def generate(
        self,
        rows: Sequence[int],
        new_ids: Sequence[Sequence[int]],
        max_tokens: Sequence[int],
        seeds: Sequence[int],
    ) -> list[Completion]:
        """Append `new_ids` to each named row's history, then sample one turn.

        Sampled ids become history by themselves. A row samples at most its `max_tokens`; what it
        samples depends on its own history and seed alone, not on the other rows.
        """
        ...


class Engine(Protocol):
    """A policy that can be sampled."""

    max_context: int

    def start(self, num_rows: int) -> Session:
        """Open a session of `num_rows` empty histories."""
        ...

    def update_weights(self, policy_version: int) -> None:
        """Make later completions come from the current weights, and carry this version."""
        ...

    @property
    def sampling(self) -> dict[str, Any]:
        """The sampling parameters, as recorded on each trajectory."""
        ...
