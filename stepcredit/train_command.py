"""`stepcredit train`: mistakes first, torch last, and what to do after Ctrl-C."""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from stepcredit.config import Layered, UserError, load_layers, read_mapping, with_overrides
from stepcredit.folders import need_place, need_writable, only_one
from stepcredit.show import print_json
from stepcredit.study import is_study


def run_train(args: argparse.Namespace) -> int:
    """Train one run."""
    # before torch is imported: a tiny model is fastest on one thread
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from stepcredit.training import build_config, notes_of

    out: Path = args.out or Path("runs") / args.config.stem
    layer = _layer(args)
    _need_own_folder(out, args.resume)
    config = build_config(layer)
    if args.resume and read_mapping(out / "config.yaml").values != config:
        raise UserError(
            f"{out}: holds a run of another config; pass the same one, or another --out"
        )
    need_writable(out)
    for note in notes_of(config):
        print(f"note: {note}", file=sys.stderr)
    try:
        with only_one(out, "training"):
            summary = _train(config, out, args.resume, Console(stderr=True))
    except KeyboardInterrupt:
        again = " ".join(["stepcredit train", str(args.config), *args.overrides])
        told = _stopped(out, config["train"]["save_every"], f"{again} --out {out}")
        print(f"\n{told}", file=sys.stderr)
        return 130
    if args.json:
        print_json({"out": str(out), **summary})
        return 0
    start, final = summary["start"]["eval/success"], summary["final"]["eval/success"]
    tokens = f"{summary['sampled_tokens']:,} sampled tokens"
    print(f"success on evaluation tasks {start:.3f} -> {final:.3f} after {tokens}")
    print(f"run folder: {out}")
    return 0


def _layer(args: argparse.Namespace) -> Layered:
    layer = load_layers(args.config)
    if is_study(layer.values):
        raise UserError(f"{args.config}: is a study; use: stepcredit compare {args.config}")
    return with_overrides(layer, args.overrides)


def _need_own_folder(out: Path, resume: bool) -> None:
    need_place(out)
    holds_run = (out / "config.yaml").exists()
    if (out / "study.yaml").exists():
        raise UserError(f"{out}: holds a study; pass another folder as --out")
    if holds_run and not resume:
        raise UserError(f"{out}: holds a run already; pass --resume, or --out with another folder")
    if resume and not holds_run:
        raise UserError(f"{out}: holds no run to resume; leave --resume out, or correct --out")


def presets_help() -> str:
    """The presets that `algo.preset` takes, a line each."""
    from stepcredit.training import preset_lines

    return f"algo.preset is one of these, or module:function:\n{preset_lines()}"


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
        TextColumn("{task.fields[success]}"),
        TextColumn("{task.fields[speed]} tokens/s"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=1.0, step=0, success="", speed="-")
        started, first = time.perf_counter(), None

        def on_step(row: dict[str, Any]) -> None:
            nonlocal first
            tokens = row["sampled_tokens"]
            first = tokens if first is None else first
            speed = (tokens - first) / max(time.perf_counter() - started, 1e-9)
            share = max(row["step"] / max(steps, 1), tokens / budget if budget else 0.0)
            shown, speed_text = _success_text(row), f"{speed:,.0f}"
            bar.update(task, completed=share, step=row["step"], success=shown, speed=speed_text)

        try:
            return train(RunConfig.model_validate(config), out, resume=resume, on_step=on_step)
        except TrainingError as error:
            raise UserError(str(error)) from error


def _success_text(row: dict[str, Any]) -> str:
    """The success of a metrics row, and which episodes it is of."""
    if "success" in row:
        return f"success on this step's episodes {row['success']:.3f}"
    return f"success on evaluation tasks {row['eval/success']:.3f}" if "eval/success" in row else ""
