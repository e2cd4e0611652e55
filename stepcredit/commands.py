"""What each command does; everything heavy is imported by the command that needs it."""

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from itertools import chain, islice
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from stepcredit.config import (
    UserError,
    load_layers,
    need_writable,
    only_one,
    parse_override,
    read_mapping,
    with_overrides,
)
from stepcredit.study import is_study


def run_envs(args: argparse.Namespace) -> int:
    """List the registered environments."""
    from stepcredit.envs import list_envs

    rows = [asdict(row) for row in list_envs()]
    if args.json:
        _print_json(rows)
        return 0
    _print_table(rows)
    return 0


def run_check(args: argparse.Namespace) -> int:
    """Check an environment's contract; 1 when a rule is broken."""
    from stepcredit.envs import check_env

    problems = check_env(args.env_id, **dict(parse_override(text) for text in args.arguments))
    if args.json:
        _print_json([asdict(problem) for problem in problems])
        return 1 if problems else 0
    console = Console()
    for problem in problems:
        console.print(f"[red]{problem.rule}[/]", highlight=False)
        console.print(f"  {problem.message}", markup=False, highlight=False)
        console.print(f"  fix: {problem.fix}", markup=False, highlight=False)
    if not problems:
        console.print(f"[green]{args.env_id} keeps every rule[/]", highlight=False)
    return 1 if problems else 0


def run_train(args: argparse.Namespace) -> int:
    """Train one run."""
    from stepcredit.training import build_config

    layer = load_layers(args.config)
    if is_study(layer.values):
        raise UserError(f"{args.config}: is a study; use: stepcredit compare {args.config}")
    config = build_config(with_overrides(layer, args.overrides))
    out: Path = args.out or Path("runs") / args.config.stem
    if (out / "config.yaml").exists() and not args.resume:
        raise UserError(f"{out}: holds a run already; pass --resume, or --out with another folder")
    if args.resume and not (out / "config.yaml").exists():
        raise UserError(f"{out}: holds no run to resume; leave --resume out, or correct --out")
    if args.resume and read_mapping(out / "config.yaml").values != config:
        raise UserError(
            f"{out}: holds a run of another config; pass the same one, or another --out"
        )
    if (out / "study.yaml").exists():
        raise UserError(f"{out}: holds a study; pass another folder as --out")
    need_writable(out)
    # before torch is imported: a tiny model is fastest on one thread
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        with only_one(out, "training"):
            summary = _train(config, out, args.resume, Console(stderr=True))
    except KeyboardInterrupt:
        again = " ".join(["stepcredit train", str(args.config), *args.overrides])
        told = _stopped(out, config["train"]["save_every"], f"{again} --out {out}")
        print(f"\n{told}", file=sys.stderr)
        return 130
    if args.json:
        _print_json({"out": str(out), **summary})
        return 0
    start, final = summary["start"]["eval/success"], summary["final"]["eval/success"]
    print(f"success {start:.3f} -> {final:.3f} after {summary['sampled_tokens']:,} sampled tokens")
    print(f"run folder: {out}")
    return 0


def _stopped(out: Path, save_every: int, command: str) -> str:
    """What Ctrl-C left, and how to go on from it."""
    from stepcredit.algos.checkpoint import latest

    if not (out / "config.yaml").exists():
        return f"stopped before anything was written; start again with: {command}"
    last = latest(out / "checkpoints")
    if last is None:
        return (
            f"stopped before the first checkpoint (train.save_every={save_every}): "
            f"the same command with --resume starts from step 0: {command} --resume"
        )
    step = json.loads((last / "counters.json").read_text())["step"]
    return f"stopped; go on from step {step} with: {command} --resume"


def _train(config: dict[str, Any], out: Path, resume: bool, console: Console) -> dict[str, Any]:
    from stepcredit.algos.errors import TrainingError
    from stepcredit.algos.settings import RunConfig
    from stepcredit.algos.trainer import train

    budget, steps = config["train"]["sampled_tokens"], config["train"]["steps"]
    columns = (
        TextColumn("step {task.fields[step]}"),
        BarColumn(),
        TextColumn("success {task.fields[success]}"),
        TextColumn("{task.fields[speed]} tokens/s"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=1.0, step=0, success="-", speed="-")
        started, first = time.perf_counter(), None

        def on_step(row: dict[str, Any]) -> None:
            nonlocal first
            tokens = row["sampled_tokens"]
            first = tokens if first is None else first
            speed = (tokens - first) / max(time.perf_counter() - started, 1e-9)
            share = max(row["step"] / max(steps, 1), tokens / budget if budget else 0.0)
            success = row.get("success", row.get("eval/success"))
            shown = "-" if success is None else f"{success:.3f}"
            bar.update(
                task, completed=share, step=row["step"], success=shown, speed=f"{speed:,.0f}"
            )

        try:
            return train(RunConfig.model_validate(config), out, resume=resume, on_step=on_step)
        except TrainingError as error:
            raise UserError(str(error)) from error


def run_compare(args: argparse.Namespace) -> int:
    """Run a study; 1 when some of its runs failed."""
    from stepcredit.compare import compare, training_runner

    out: Path = args.out or Path("runs") / args.study.stem
    num_workers = _num_workers(args.workers)
    console = Console(stderr=True)
    try:
        done = compare(
            args.study,
            out,
            training_runner(),
            console,
            overrides=args.overrides,
            num_workers=num_workers,
            over_budget=args.yes,
        )
    except KeyboardInterrupt:
        print(
            f"\nstopped; finished runs are kept in {out}: the same command goes on from there",
            file=sys.stderr,
        )
        return 130
    if args.json:
        claims = [{"claim": c.text, "met": c.met, "reason": c.reason} for c in done.claims]
        failed = [{"run": r.spec.name, "reason": r.reason} for r in done.failed]
        report = str(out / "report.html")
        _print_json({"report": report, "runs": done.num_runs, "failed": failed, "claims": claims})
        return 1 if done.failed else 0
    for claim in done.claims:
        print(f"{claim.word:<11} {claim.text}" + (f" ({claim.reason})" if claim.reason else ""))
    if done.failed:
        print(f"{len(done.failed)} runs failed; the report says which and why", file=sys.stderr)
    print(f"report: {out / 'report.html'}")
    return 1 if done.failed else 0


def _num_workers(asked: int | None) -> int:
    if asked is None:
        return len(os.sched_getaffinity(0))
    if asked < 1:
        raise UserError(f"--workers {asked}: must be at least 1; leave it out to use every core")
    return asked


def run_sandbox(args: argparse.Namespace) -> int:
    """Show every backend and what it proved; 1 when there is no jail."""
    from stepcredit.sandbox import probe

    reports = probe()
    usable = any(report.available and report.name != "unsafe_local" for report in reports)
    if args.json:
        _print_json([asdict(report) for report in reports])
        return 0 if usable else 1
    console = Console()
    for report in reports:
        state = "[green]works[/]" if report.available else "[red]does not work[/]"
        if report.name == "unsafe_local":
            state = "[yellow]no jail[/]"
        console.print(f"[bold]{report.name}[/]: {state}", highlight=False)
        for line in _guarantees(report.guarantees):
            console.print(f"  {line}", markup=False, highlight=False)
        if report.reason:
            console.print(f"  {report.reason}", markup=False, highlight=False)
        if report.fix:
            console.print(f"  fix: {report.fix}", markup=False, highlight=False)
    return 0 if usable else 1


def _guarantees(guarantees: Any) -> list[str]:
    if isinstance(guarantees, dict):
        return [f"{'proved' if held else 'NOT held'}: {name}" for name, held in guarantees.items()]
    return [f"proved: {name}" for name in guarantees]


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
    with args.out.open("w") if args.out else nullcontext(sys.stdout) as file:
        for row in chain(first, rows):
            counts[row["status"]] += 1
            ungraded += row["total"] == 0
            file.write(json.dumps(row) + "\n")
            file.flush()
    told = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    print(f"{counts.total()} graded: {told}" if counts else "no line to grade", file=sys.stderr)
    return 1 if ungraded else 0


def _print_table(rows: Sequence[dict[str, Any]]) -> None:
    table = Table(box=None, pad_edge=False)
    for name in rows[0] if rows else []:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    Console().print(table, highlight=False)


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key}={part}" for key, part in value.items())
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    return str(value)


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, default=str))
