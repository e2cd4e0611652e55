"""Rewards of characters to rewards of tokens: where a judged step ends and what it earns."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from stepcredit.agents.errors import SpanError
from stepcredit.envs import StepReward
from stepcredit.envs.contract import left_over

UNJUDGED = -1


@dataclass(frozen=True, kw_only=True)
class Placement:
    """The policy tokens of one turn, each list as long as they are many."""

    steps: list[int]
    """Step of each token, numbered from 0 within the turn; -1 where no step was judged."""
    step_end: list[bool]
    """True on the last token of each step."""
    rewards: list[float]
    """Non-zero only where `step_end` is True; sums to the turn's reward."""


def place_rewards(
    token_spans: Sequence[tuple[int, int]],
    length: int,
    reward: float,
    step_rewards: Sequence[StepReward] = (),
) -> Placement:
    """Place the reward of an action of `length` characters on its tokens.

    A token belongs to the span that holds its first character; the stop token, which lies behind
    the text, belongs to a span that reaches the end. A span in which no token begins joins the step
    of the token that covers it. What the spans leave over goes to the last token; where that one is
    unjudged, the unjudged tokens at the end become a step. Without spans the turn is one step.
    Raises SpanError for spans that overlap, are empty, leave the action or are not finite.
    """
    spans = sorted(step_rewards, key=lambda span: span.start)
    _check(spans, length, reward)
    if not spans:
        return _placed([0] * len(token_spans), {0: reward})
    starts = [start for start, _ in token_spans]
    owner = _owners(spans, starts, length)
    with_tokens = set(owner)
    value: dict[int, float] = {}
    for number, span in enumerate(spans):
        if number in with_tokens:
            value[number] = value.get(number, 0.0) + span.value
            continue
        cover = max(i for i, start in enumerate(starts) if start <= span.start)
        if owner[cover] == UNJUDGED:
            owner[cover] = number
        value[owner[cover]] = value.get(owner[cover], 0.0) + span.value
    rest = left_over(reward, spans)
    if rest:
        if owner[-1] == UNJUDGED:
            tail = len(owner) - next(
                (i for i, step in enumerate(reversed(owner)) if step != UNJUDGED), len(owner)
            )
            owner[tail:] = [len(spans)] * (len(owner) - tail)
        value[owner[-1]] = value.get(owner[-1], 0.0) + rest
    return _placed(owner, value)


def _owners(spans: Sequence[StepReward], starts: Sequence[int], length: int) -> list[int]:
    """Return the number of the span that each token belongs to."""
    span_starts = [span.start for span in spans]
    owner = []
    for start in starts:
        number = bisect_right(span_starts, start) - 1  # -1 before the first span
        inside = number >= 0 and (start < spans[number].end or start == length == spans[number].end)
        owner.append(number if inside else UNJUDGED)
    return owner


def _placed(owner: Sequence[int], value: dict[int, float]) -> Placement:
    """Number the steps by their order and put each value on the step's last token."""
    numbers: dict[int, int] = {}
    for step in owner:
        if step != UNJUDGED:
            numbers.setdefault(step, len(numbers))
    last = {step: i for i, step in enumerate(owner) if step != UNJUDGED}
    ends = [last.get(step) == i for i, step in enumerate(owner)]
    return Placement(
        steps=[numbers.get(step, UNJUDGED) for step in owner],
        step_end=ends,
        rewards=[value[s] if end else 0.0 for s, end in zip(owner, ends, strict=True)],
    )


def _check(spans: Sequence[StepReward], length: int, reward: float) -> None:
    if not math.isfinite(reward):
        raise SpanError(f"reward={reward}: must be finite; return a number from step()")
    end = 0
    for span in spans:
        if not math.isfinite(span.value):
            raise SpanError(f"{span}: the value must be finite")
        if not 0 <= span.start < span.end <= length:
            raise SpanError(
                f"{span}: must be a non-empty range inside the action of {length} characters"
            )
        if span.start < end:
            raise SpanError(f"{span}: overlaps the step before it, which ends at {end}")
        end = span.end
