"""Declared claims held against the numbers: met, not met and why, or too few seeds to tell."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product

from stepcredit.config import UserError
from stepcredit.explain import nearest
from stepcredit.findings import (
    Difference,
    Side,
    difference_of,
    join,
    measure_name,
    with_label,
    without,
)
from stepcredit.results import Result
from stepcredit.statistics import (
    NO_SPREAD,
    Interval,
    bracket,
    digits_of,
    exact,
    excludes_zero,
    identical,
    number,
    within,
)
from stepcredit.study import Cell, Claim, Panel, cell_text

EVERY_PAIR = "every pair of arms"


@dataclass(frozen=True)
class ClaimVerdict:
    """A declared claim, the differences that decide it, and whether they met it."""

    text: str
    differences: list[Difference]
    met: bool | None
    """None where too few seeds finished to tell."""
    reason: str
    """Why it is not met, or cannot be told."""

    @property
    def word(self) -> str:
        """The verdict as people read it."""
        return {True: "met", False: "not met", None: "cannot tell"}[self.met]


def judge(panel: Panel, results: Sequence[Result]) -> list[ClaimVerdict]:
    """Every declared claim against the numbers.

    Raises:
        UserError: a claim names an arm, an axis or a label that the panel does not have.
    """
    return [_judge(panel, claim, results) for claim in panel.claims]


def _judge(panel: Panel, claim: Claim, results: Sequence[Result]) -> ClaimVerdict:
    differences = []
    outcomes: dict[object, list[bool | None]] = {}
    for first, second, where in _checked_sides(panel, claim):
        margin = claim.margin if claim.expect == "within" else None
        difference = difference_of(
            results, first, second, where=where, margin=margin, bounds=_bounds(claim)
        )
        short = _shortfall(claim, difference.interval)
        known = difference.interval is not None and difference.interval.n > 1
        differences.append(replace(difference, shortfall=short))
        outcomes.setdefault(_place(claim, first, second), []).append(not short if known else None)
    met = _all([_any(choices) for choices in outcomes.values()])
    return ClaimVerdict(_claim_text(claim), differences, met, _reason(panel, differences, met))


def _all(outcomes: Sequence[bool | None]) -> bool | None:
    """False if one is, else None if one is: what is not known cannot be counted on."""
    return False if False in outcomes else (None if None in outcomes else True)


def _any(outcomes: Sequence[bool | None]) -> bool | None:
    return True if True in outcomes else (None if None in outcomes else False)


def _reason(panel: Panel, differences: Sequence[Difference], met: bool | None) -> str:
    if met is None:
        return f"needs at least 2 {'seeds' if len(panel.seeds) < 2 else 'finished seeds'}"
    short = [difference for difference in differences if difference.shortfall]
    if met or not short:
        return ""
    first = short[0]
    more = f"; {len(short) - 1} more" if len(short) > 1 else ""
    return f"{first.label} at {first.where}: {first.shortfall}{more}"


def _shortfall(claim: Claim, interval: Interval | None) -> str:
    """Why the interval breaks the claim, mostly by which end; empty where it does not."""
    if interval is None or interval.n < 2:
        return ""
    if interval.low is None or interval.high is None:
        return NO_SPREAD
    digits, margin = digits_of(interval, _bounds(claim)), claim.margin or 0.0
    low, high = number(interval.low, digits), number(interval.high, digits)
    if claim.expect == "within":
        if within(interval, margin):
            return ""
        if interval.high > margin:
            return f"the upper end {high} is beyond {exact(margin)}"
        return f"the lower end {low} is beyond {exact(-margin)}"
    if claim.expect == "at_least":
        return f"the lower end {low} is below {exact(margin)}" if interval.low < margin else ""
    if identical(interval):
        return "the difference is 0 in every seed"
    if not excludes_zero(interval):
        return f"the interval {bracket(interval).partition(' ')[2]} holds 0"
    if claim.expect == "above_zero" and interval.mean < 0:
        return f"the upper end {high} is below 0"
    return ""


def _bounds(claim: Claim) -> tuple[float, ...]:
    """What the ends of the interval are held against, apart from 0."""
    if claim.margin is None or claim.expect not in ("within", "at_least"):
        return ()
    return (claim.margin, -claim.margin) if claim.expect == "within" else (claim.margin,)


def _claim_text(claim: Claim) -> str:
    margin = exact(claim.margin) if claim.margin is not None else ""
    expectation = {
        "excludes_zero": "excludes 0",
        "above_zero": "is above 0",
        "within": f"lies within ±{margin}",
        "at_least": f"is at least {margin}",
    }[claim.expect]
    places = []
    for key, value in claim.at.items():
        listed = " or ".join(map(str, value)) if isinstance(value, list) else value
        places.append(f"{key} = {listed}")
    where = f" at {', '.join(places)}" if places else ""
    on = "" if claim.difference == "final - start" else f", on {measure_name(claim.on)}"
    return f"{claim.difference} {expectation}{where}{on}"


def _place(claim: Claim, first: Side, second: Side) -> object:
    """Where the claim must hold: what is left when one of each list's labels may be chosen."""
    chosen = {key for key, value in claim.at.items() if isinstance(value, list)}
    arms = () if "arm" in chosen else (first[0], second[0])
    return arms, tuple((axis, label) for axis, label in first[1] if axis not in chosen)


def _checked_sides(panel: Panel, claim: Claim) -> list[tuple[Side, Side, str]]:
    """The sides, refused where the claim would be met, or not, by saying nothing."""
    sides = _sides(panel, claim)
    if not sides:
        raise UserError(f"claims: {claim.difference}: at leaves no cell to look at; widen it")
    if any(first == second for first, second, _ in sides):
        raise UserError(f"claims: {claim.difference}: is 0 by itself; name two different sides")
    return sides


def _sides(panel: Panel, claim: Claim) -> list[tuple[Side, Side, str]]:
    """The pairs of per-seed numbers that a claim is about."""
    cells, arms = _places(panel, claim)
    if claim.difference == EVERY_PAIR:
        pairs = list(combinations(arms, 2))
        if not pairs:
            raise UserError(f"claims: {EVERY_PAIR}: at leaves {arms}; a pair needs two arms")
        return [((a, c, claim.on), (b, c, claim.on), cell_text(c)) for c in cells for a, b in pairs]
    first, minus, second = claim.difference.partition(" - ")
    if not minus:
        raise UserError(f"claims: difference: {claim.difference!r}: write it as `first - second`")
    if (first, second) == ("final", "start"):
        places = product(cells, arms)
        return [((a, c, "final"), (a, c, "sft_start"), join(a, c)) for c, a in places]
    if first in panel.arms and second in panel.arms:
        if "arm" in claim.at:
            raise UserError(f"claims: {claim.difference}: names its arms; take arm out of at")
        return [((first, c, claim.on), (second, c, claim.on), cell_text(c)) for c in cells]
    for axis, labelled in panel.axes.items():
        named = {str(label): label for label, _ in labelled}
        if first in named and second in named:
            lower = [c for c in cells if dict(c)[axis] == named[first]]
            return [
                (
                    (arm, cell, claim.on),
                    (arm, with_label(cell, axis, named[second]), claim.on),
                    join(arm, without(cell, axis)),
                )
                for cell, arm in product(lower, arms)
            ]
    known = [*panel.arms, *(str(label) for labels in panel.axes.values() for label, _ in labels)]
    unknown = next((name for name in (first, second) if name not in known), None)
    if unknown is None:
        raise UserError(f"claims: {claim.difference}: both must be arms, or labels of one axis")
    raise UserError(f"claims: {claim.difference}: {unknown!r}: unknown{_hint(unknown, known)}")


def _places(panel: Panel, claim: Claim) -> tuple[list[Cell], list[str]]:
    """The cells and arms that a claim's `at` leaves."""
    choices: dict[str, list[str]] = {
        "arm": list(panel.arms),
        **{axis: [str(label) for label, _ in labels] for axis, labels in panel.axes.items()},
    }
    allowed = dict(choices)
    for key, value in claim.at.items():
        if key not in choices:
            raise UserError(f"claims: at: {key}: unknown{_hint(key, list(choices))}")
        wanted = [str(part) for part in (value if isinstance(value, list) else [value])]
        for label in wanted:
            if label not in choices[key]:
                raise UserError(f"claims: at: {key}: {label}: unknown{_hint(label, choices[key])}")
        allowed[key] = wanted
    cells = [c for c in panel.grid if all(str(label) in allowed[axis] for axis, label in c)]
    return cells, allowed["arm"]


def _hint(name: str, known: Sequence[str]) -> str:
    near = nearest(name, known)
    return f" (did you mean {near}?)" if near else f" (known: {', '.join(known)})"
