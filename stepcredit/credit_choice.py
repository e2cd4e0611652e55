"""Which run the credit page shows: of the long tasks with dense rewards, the most telling one."""

from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path

from stepcredit.cost import biggest_cell
from stepcredit.credit_page import CreditRow, render_credit
from stepcredit.results import Result
from stepcredit.study import cell_text

CreditRows = Callable[[Path], list[CreditRow]]


def credit_part(results: Sequence[Result], rows_of: CreditRows) -> tuple[str, str, str]:
    """The credit page, the run it comes from, and why there is none where there is none."""
    candidates = _candidates([result for result in results if result.ok])
    if not candidates:
        return "", "", "No run finished, so there is no trajectory to show."
    found: list[tuple[Result, list[CreditRow]]] = []
    failures = []
    for result in candidates:
        try:
            found.append((result, rows_of(result.folder)))
        except Exception as error:
            # the report of hours of runs must not be lost to its last picture
            name = type(error).__name__
            failures.append(f"The credit page of {result.spec.name} failed: {name}: {error}")
    if not found:
        return "", "", failures[0]
    shown, rows = max(found, key=lambda pair: how_telling(pair[1]))
    return render_credit(rows), _run_text(shown), ""


def _candidates(done: Sequence[Result]) -> list[Result]:
    """Dense rewards and a critic where there are any; of each panel its biggest cell."""
    dense = [r for r in done if r.spec.config["env"].get("reward") == "dense"] or done
    with_critic = [r for r in dense if str(r.spec.config["algo"].get("preset")).startswith("ppo")]
    kept = with_critic or dense
    chosen = []
    for panel in dict.fromkeys(r.spec.panel for r in kept):
        mine = [r for r in kept if r.spec.panel == panel]
        cell = biggest_cell([r.spec.cell for r in mine])
        chosen += [r for r in mine if r.spec.cell == cell]
    return chosen


def how_telling(rows: Sequence[CreditRow]) -> tuple[int, int, int]:
    """Turns that tell right from wrong, rows with any credit, and different credits in them.

    An episode that is all right, or all wrong, shows one colour; a long one has more to tell.
    """
    credits_of = [
        {round(a, 6) for a, mine in zip(row.advantages, row.action_mask, strict=True) if mine and a}
        for row in rows
    ]
    # the row with most rewards is the one that pays each turn
    paid, unpaid = max((_turns(row) for row in rows), default=(0, 0))
    return min(paid, unpaid), sum(map(bool, credits_of)), sum(map(len, credits_of))


def _turns(row: CreditRow) -> tuple[int, int]:
    """How many of the policy's turns were rewarded, and how many were not."""
    turns = [
        any(reward for _, reward in turn)
        for mine, turn in groupby(
            zip(row.action_mask, row.rewards, strict=True), key=lambda token: token[0]
        )
        if mine
    ]
    return sum(turns), len(turns) - sum(turns)


def _run_text(result: Result) -> str:
    spec = result.spec
    cell = f"{cell_text(spec.cell)}, " if spec.cell else ""
    return f"panel {spec.panel}, {cell}arm {spec.arm}, seed {spec.seed}"
