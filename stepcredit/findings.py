"""What a study shows: tables and paired differences, from the runs' numbers."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Literal

from stepcredit.results import Result
from stepcredit.statistics import (
    Interval,
    mean_interval,
    paired_difference,
    verdict,
)
from stepcredit.study import Cell, Label, Panel, cell_text

Measure = Literal["auc", "final", "sft_start"]
Side = tuple[str, Cell, Measure]
"""(arm, cell, measure): one list of per-seed numbers."""

REWARD_MEANINGS = {
    "outcome": "1 at the end if all is right",
    "dense@end": "what was earned, paid at the end",
    "dense": "what was earned, paid at each step",
}
REWARD_PAIRS = (
    ("dense@end", "outcome", "what content alone explains"),
    ("dense", "dense@end", "what placement adds"),
    ("dense", "outcome", "content and placement together"),
)


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
    shortfall: str = ""
    """Why the claim that it was declared for is not met here."""

    @property
    def label(self) -> str:
        """Which minus which."""
        return f"{self.first} - {self.second}"


@dataclass(frozen=True)
class RewardQuestion:
    """All paired differences between two reward set-ups."""

    title: str
    differences: list[Difference]


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
    """Every pair of arms within every cell, AUC and final, with the sign of a claim about it."""
    claimed = {claim.difference for claim in panel.claims}
    pairs = [
        (b, a) if f"{b} - {a}" in claimed and f"{a} - {b}" not in claimed else (a, b)
        for a, b in combinations(panel.arms, 2)
    ]
    return [
        difference_of(results, (first, cell, on), (second, cell, on), where=cell_text(cell))
        for cell in panel.grid
        for first, second in pairs
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
            other = with_label(cell, "reward", second)
            where = join(arm, without(cell, "reward"))
            differences.append(
                difference_of(results, (arm, cell, on), (arm, other, on), where=where)
            )
        questions.append(RewardQuestion(f"{first} - {second}: {title}", differences))
    return questions


_MEASURES: tuple[Measure, Measure] = ("auc", "final")


def difference_of(
    results: Sequence[Result],
    first: Side,
    second: Side,
    *,
    where: str,
    margin: float | None = None,
    bounds: Sequence[float] = (),
) -> Difference:
    """The paired difference of two sides; `margin` and `bounds` as in `statistics.verdict`."""
    interval = paired_difference(_by_seed(results, first), _by_seed(results, second))
    names = _names(first, second)
    return Difference(
        where=where,
        on=measure_name(first[2]),
        first=names[0],
        second=names[1],
        interval=interval,
        sentence=verdict(*names, interval, margin, bounds),
    )


def _names(first: Side, second: Side) -> tuple[str, str]:
    """What tells the two sides apart: measure, arm, or the label of one axis."""
    if first[2] != second[2]:
        return measure_name(first[2]), measure_name(second[2])
    if first[0] != second[0]:
        return first[0], second[0]
    apart = [(a[1], b[1]) for a, b in zip(first[1], second[1], strict=True) if a != b]
    return ", ".join(str(a) for a, _ in apart), ", ".join(str(b) for _, b in apart)


def measure_name(measure: Measure) -> str:
    """A measure as the report's tables call it."""
    return {"auc": "AUC", "final": "final", "sft_start": "start"}[measure]


def _by_seed(results: Sequence[Result], side: Side) -> dict[int, float]:
    arm, cell, measure = side
    found: dict[int, float] = {}
    for result in results:
        value: float | None = getattr(result, measure)
        if (result.spec.arm, result.spec.cell) == (arm, cell) and value is not None:
            found[result.spec.seed] = value
    return found


def with_label(cell: Cell, axis: str, label: Label) -> Cell:
    """The cell that differs in one axis."""
    return tuple((name, label if name == axis else old) for name, old in cell)


def without(cell: Cell, axis: str) -> Cell:
    """The cell with one axis left out."""
    return tuple((name, label) for name, label in cell if name != axis)


def join(arm: str, cell: Cell) -> str:
    """An arm and what is left of its cell, as people read it."""
    return f"{arm}, {cell_text(cell)}" if cell else arm
