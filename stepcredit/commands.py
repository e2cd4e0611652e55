"""What each command does; everything heavy is imported by the command that needs it."""

import argparse
import os
import sys
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from stepcredit.config import UserError, load_layers, parse_override, with_overrides
from stepcredit.show import print_json, print_table
from stepcredit.study import is_study


def run_envs(args: argparse.Namespace) -> int:
    """List the registered environments."""
    from stepcredit.envs import list_envs

    rows = [asdict(row) for row in list_envs()]
    if args.json:
        print_json(rows)
        return 0
    print_table(rows)
    return 0


def run_check(args: argparse.Namespace) -> int:
    """Check an environment's contract; 1 when a rule is broken."""
    from stepcredit.envs import check_env

    problems = check_env(args.env_id, **dict(parse_override(text) for text in args.arguments))
    if args.json:
        print_json([asdict(problem) for problem in problems])
        return 1 if problems else 0
    console = Console()
    for problem in problems:
        console.print(f"[red]{problem.rule}[/]", highlight=False)
        console.print(f"  {problem.message}", markup=False, highlight=False)
        console.print(f"  fix: {problem.fix}", markup=False, highlight=False)
    if not problems:
        console.print(f"[green]{args.env_id} keeps every rule[/]", highlight=False)
    return 1 if problems else 0


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
        print_json({"report": report, "runs": done.num_runs, "failed": failed, "claims": claims})
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


def run_memory(args: argparse.Namespace) -> int:
    """Show which models a run keeps and what each takes, on paper and measured."""
    # before torch is imported: as in a training run
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from stepcredit.memory import memory_of
    from stepcredit.memory_table import as_json, as_rows, largest
    from stepcredit.training import build_config

    layer = load_layers(args.config)
    if is_study(layer.values):
        raise UserError(f"{args.config}: is a study; pass the config of one run")
    config = build_config(with_overrides(layer, args.overrides))
    memory = memory_of(config, tokens=args.tokens)
    if args.json:
        print_json(as_json(memory))
        return 0
    print_table(as_rows(memory))
    print("", largest(memory), *memory.notes, sep="\n")
    return 0
