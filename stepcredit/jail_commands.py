"""`stepcredit sandbox` and `stepcredit grade`: which jail there is, and files judged in it."""

import argparse
import json
import sys
from collections import Counter
from contextlib import nullcontext
from dataclasses import asdict
from itertools import chain, islice
from typing import TYPE_CHECKING

from rich.console import Console

from stepcredit.config import UserError
from stepcredit.show import print_json

if TYPE_CHECKING:
    from stepcredit.sandbox import BackendReport

EXAMPLE_LINE = '{"code": "def f(x): ...", "tests": ["assert f(2) == 4"]}'


def run_sandbox(args: argparse.Namespace) -> int:
    """Show every backend and what it proved; 1 when there is no jail."""
    from stepcredit.sandbox import probe

    reports = probe()
    used = next((r for r in reports if r.available and r.name != "unsafe_local"), None)
    if args.json:
        print_json([asdict(report) for report in reports])
        return 0 if used else 1
    console = Console()
    console.print(_used_text(used), markup=False, highlight=False, soft_wrap=True)
    for report in reports:
        _print_report(report, console)
    return 0 if used else 1


def _used_text(used: "BackendReport | None") -> str:
    """The backend that `auto` takes here, and its binary."""
    from stepcredit.sandbox.bwrap import find_bwrap

    if used is None:
        return "used: none, so that nothing is graded here; what is missing stands below"
    return f"used: {used.name}, {find_bwrap()}" if used.name == "bwrap" else f"used: {used.name}"


def _print_report(report: "BackendReport", console: Console) -> None:
    state = "[green]works[/]" if report.available else "[red]does not work[/]"
    if report.name == "unsafe_local":
        state = "[yellow]no jail; never chosen by itself, only by --backend unsafe_local[/]"
    console.print(f"[bold]{report.name}[/]: {state}", highlight=False)
    for name, held in report.guarantees.items():
        line = f"  {'proved' if held else 'NOT held'}: {name}"
        console.print(line, markup=False, highlight=False)
    # the state has said it
    if report.reason and report.name != "unsafe_local":
        console.print(f"  {report.reason}", markup=False, highlight=False)
    if report.fix:
        console.print(f"  fix: {report.fix}", markup=False, highlight=False)


def run_grade(args: argparse.Namespace) -> int:
    """Grade a file of code answers, one JSON object a line; 1 when a line could not be graded."""
    from stepcredit.sandbox import grade_file

    if not args.file.exists():
        raise UserError(f"{args.file}: no such file; pass a file of JSON lines")
    if args.out and args.out.exists() and args.out.samefile(args.file):
        raise UserError(f"--out {args.out}: is the file being read; pass another name")
    counts: Counter[str] = Counter()
    ungraded = 0
    rows = grade_file(args.file, args.backend)
    # the first row is asked for before --out is opened: a refusal must not empty an old file
    try:
        first = list(islice(rows, 1))
    except ValueError as error:
        raise UserError(str(error)) from error
    if not first:
        raise UserError(f"{args.file}: holds no line; write one JSON object a line: {EXAMPLE_LINE}")
    with args.out.open("w") if args.out else nullcontext(sys.stdout) as file:
        for row in chain(first, rows):
            counts[row["status"]] += 1
            ungraded += row["total"] == 0
            file.write(json.dumps(row) + "\n")
            file.flush()
    told = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    print(f"{counts.total()} graded: {told}", file=sys.stderr)
    return 1 if ungraded else 0
