"""What a study shows: tables, paired differences and declared claims, from the runs' numbers."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Literal

from stepcredit.config import UserError, nearest
from stepcredit.results import Result
from stepcredit.statistics import (
    Interval,
    excludes_zero,
    mean_interval,
    number,
    paired_difference,
    verdict,
    within,
)
from stepcredit.study import Cell, Claim, Label, Panel, cell_text

Measure = Literal["auc", "final", "sft_start"]
Side = tuple[str, Cell, Measure]
"""(arm, cell, measure): one list of per-seed numbers."""

REWARD_PAIRS = (
    ("dense@end", "outcome", "what content alone explains"),
    ("dense", "dense@end", "what placement adds"),
    ("dense", "outcome", "content and placement together"),
)
EVERY_PAIR = "every pair of arms"


@dataclass(frozen=True)
class TableRow:
    """One arm in one cell: numbers over its finished seeds."""

    arm: str
    cell: Cell
    sft_start: Interval | None
    final: Interval | None
    auc: Interval | None
    zero_variance_share: Interval | None
    wall_s: Interval | None
    cpu_s: Interval | None
    num_seeds: int
    reasons: tuple[tuple[str, int], ...]
    """Why seeds are missing, with how many each."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One paired difference with the sentence that its numbers allow."""

    where: str
    on: str
    first: str
    second: str
    interval: Interval | None
    sentence: str


@dataclass(frozen=True)
class RewardQuestion:
    """All paired differences between two reward set-ups."""

    title: str
    differences: list[Difference]


@dataclass(frozen=True)
class ClaimVerdict:
    """A declared claim, the differences that decide it, and whether they met it."""

    text: str
    differences: list[Difference]
    met: bool


def table(panel: Panel, results: Sequence[Result]) -> list[TableRow]:
    """One row per cell and arm, in the order of the file."""
    rows = []
    for cell, arm in product(panel.grid, panel.arms):
        mine = [r for r in results if r.spec.cell == cell and r.spec.arm == arm]
        done = [r for r in mine if r.ok]
        reasons = Counter(r.reason for r in mine if not r.ok)
        rows.append(
            TableRow(
                arm,
                cell,
                mean_interval([r.sft_start for r in done if r.sft_start is not None]),
                mean_interval([r.final for r in done if r.final is not None]),
                mean_interval([r.auc for r in done if r.auc is not None]),
                mean_interval(
                    [r.zero_variance_share for r in done if r.zero_variance_share is not None]
                ),
                mean_interval([r.wall_s for r in done if r.wall_s is not None]),
                mean_interval([r.cpu_s for r in done if r.cpu_s is not None]),
                len(done),
                tuple(reasons.most_common()),
            )
        )
    return rows


def arm_differences(panel: Panel, results: Sequence[Result]) -> list[Difference]:
    """Every pair of arms within every cell, AUC and final."""
    return [
        _difference(results, (first, cell, on), (second, cell, on), where=cell_text(cell))
        for cell in panel.grid
        for first, second in combinations(panel.arms, 2)
        for on in _MEASURES
    ]


def reward_questions(panel: Panel, results: Sequence[Result]) -> list[RewardQuestion]:
    """Within each arm: content alone, placement alone, and both, each reported apart."""
    labels = [label for label, _ in panel.axes.get("reward", [])]
    questions = []
    for first, second, title in REWARD_PAIRS:
        if first not in labels or second not in labels:
            continue
        differences = []
        for cell, arm, on in product(panel.grid, panel.arms, _MEASURES):
            if dict(cell)["reward"] != first:
                continue
            other = _with_label(cell, "reward", second)
            where = _join(arm, _without(cell, "reward"))
            differences.append(_difference(results, (arm, cell, on), (arm, other, on), where=where))
        questions.append(RewardQuestion(f"{first} - {second}: {title}", differences))
    return questions


_MEASURES: tuple[Measure, Measure] = ("auc", "final")


def judge(panel: Panel, results: Sequence[Result]) -> list[ClaimVerdict]:
    """Every declared claim against the numbers.

    Raises:
        UserError: a claim names an arm, an axis or a label that the panel does not have.
    """
    return [_judge(panel, claim, results) for claim in panel.claims]


def _judge(panel: Panel, claim: Claim, results: Sequence[Result]) -> ClaimVerdict:
    differences = []
    outcomes = []
    for first, second, where in _sides(panel, claim):
        difference = _difference(results, first, second, where=where, margin=claim.margin)
        differences.append(difference)
        outcomes.append(difference.interval is not None and _meets(claim, difference.interval))
    any_of = any(isinstance(value, list) for value in claim.at.values())
    met = any(outcomes) if any_of else all(outcomes)
    return ClaimVerdict(_claim_text(claim), differences, met)


def _meets(claim: Claim, interval: Interval) -> bool:
    if claim.expect == "excludes_zero":
        return excludes_zero(interval)
    if claim.expect == "above_zero":
        return excludes_zero(interval) and interval.mean > 0
    assert claim.margin is not None
    if claim.expect == "within":
        return within(interval, claim.margin)
    return interval.low is not None and interval.low >= claim.margin


def _claim_text(claim: Claim) -> str:
    margin = number(claim.margin) if claim.margin is not None else ""
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
    on = "" if claim.difference == "final - start" else f", on {_measure_name(claim.on)}"
    return f"{claim.difference} {expectation}{where}{on}"


def _sides(panel: Panel, claim: Claim) -> list[tuple[Side, Side, str]]:
    """The pairs of per-seed numbers that a claim is about."""
    cells, arms = _places(panel, claim)
    if claim.difference == EVERY_PAIR:
        pairs = list(combinations(arms, 2))
        return [((a, c, claim.on), (b, c, claim.on), cell_text(c)) for c in cells for a, b in pairs]
    first, minus, second = claim.difference.partition(" - ")
    if not minus:
        raise UserError(f"claims: difference: {claim.difference!r}: write it as `first - second`")
    if (first, second) == ("final", "start"):
        places = product(cells, arms)
        return [((a, c, "final"), (a, c, "sft_start"), _join(a, c)) for c, a in places]
    if first in panel.arms and second in panel.arms:
        return [((first, c, claim.on), (second, c, claim.on), cell_text(c)) for c in cells]
    for axis, labelled in panel.axes.items():
        named = {str(label): label for label, _ in labelled}
        if first in named and second in named:
            lower = [c for c in cells if dict(c)[axis] == named[first]]
            return [
                (
                    (arm, cell, claim.on),
                    (arm, _with_label(cell, axis, named[second]), claim.on),
                    _join(arm, _without(cell, axis)),
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


def _difference(
    results: Sequence[Result], first: Side, second: Side, *, where: str, margin: float | None = None
) -> Difference:
    interval = paired_difference(_by_seed(results, first), _by_seed(results, second))
    names = _names(first, second)
    return Difference(
        where=where,
        on=_measure_name(first[2]),
        first=names[0],
        second=names[1],
        interval=interval,
        sentence=verdict(*names, interval, margin),
    )


def _names(first: Side, second: Side) -> tuple[str, str]:
    """What tells the two sides apart: measure, arm, or the label of one axis."""
    if first[2] != second[2]:
        return _measure_name(first[2]), _measure_name(second[2])
    if first[0] != second[0]:
        return first[0], second[0]
    apart = [(a[1], b[1]) for a, b in zip(first[1], second[1], strict=True) if a != b]
    return ", ".join(str(a) for a, _ in apart), ", ".join(str(b) for _, b in apart)


def _measure_name(measure: Measure) -> str:
    return {"auc": "AUC", "final": "final", "sft_start": "start"}[measure]


def _by_seed(results: Sequence[Result], side: Side) -> dict[int, float]:
    arm, cell, measure = side
    found: dict[int, float] = {}
    for result in results:
        value: float | None = getattr(result, measure)
        if (result.spec.arm, result.spec.cell) == (arm, cell) and value is not None:
            found[result.spec.seed] = value
    return found


def _with_label(cell: Cell, axis: str, label: Label) -> Cell:
    return tuple((name, label if name == axis else old) for name, old in cell)


def _without(cell: Cell, axis: str) -> Cell:
    return tuple((name, label) for name, label in cell if name != axis)


def _join(arm: str, cell: Cell) -> str:
    return f"{arm}, {cell_text(cell)}" if cell else arm
