"""What every engine offers: sessions that keep an episode's state and sample one turn at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


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
