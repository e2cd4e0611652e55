"""What a study will cost, from a few timed steps of each kind of run or from finished ones."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from pathlib import Path
from statistics import fmean
from typing import Any

from stepcredit.plan import RunSpec
from stepcredit.results import read_metrics
from stepcredit.study import Cell, Label

PROBE_STEPS = 4

Kind = tuple[str, str]
"""(panel, arm): what is probed once, in the panel's biggest cell."""
Row = dict[str, Any]


@dataclass(frozen=True)
class Cost:
    """CPU and wall seconds of one run: its training, and the warm start before it."""

    train_cpu_s: float
    train_wall_s: float
    warm_cpu_s: float
    warm_wall_s: float


@dataclass(frozen=True)
class Estimate:
    """What all runs still to do will take together."""

    num_runs: int
    cpu_s: float
    wall_s: float

    def sentence(self, num_workers: int) -> str:
        """`54 runs x 7.1 CPU-seconds measured, warm starts included = 6.4 CPU-minutes ...`."""
        each = self.cpu_s / max(self.num_runs, 1)
        return (
            f"{self.num_runs} runs x {each:.1f} CPU-seconds measured, warm starts included = "
            f"{self.cpu_s / 60:.1f} CPU-minutes, about {self.wall_s / 60:.1f} minutes wall "
            f"on {num_workers} {'core' if num_workers == 1 else 'cores'}"
        )


def biggest_cell(cells: Sequence[Cell]) -> Cell:
    """The cell with the largest number on every numeric axis, the last label on the others."""

    def size(cell: Cell) -> tuple[tuple[float, int], ...]:
        return tuple(_size(label, position, cells) for position, (_, label) in enumerate(cell))

    return max(cells, key=size)


def _size(label: Label, position: int, cells: Sequence[Cell]) -> tuple[float, int]:
    labels = [cell[position][1] for cell in cells]
    return (float(label) if not isinstance(label, str) else 0.0, labels.index(label))


def probe_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The same run cut to a few steps, evaluated before the first and after the last alone."""
    short = {"steps": PROBE_STEPS, "sampled_tokens": None}
    quiet = {"eval_every": 0, "save_every": 0, "trajectories_every": 0}
    return {**config, "train": {**config["train"], **short, **quiet}}


def probed_cost(folder: Path, config: Mapping[str, Any]) -> Cost:
    """The cost of a full run of `config`, from the folder of its probe."""
    rows, train = read_metrics(folder), config["train"]
    tokens_per_step = max(rows[-1]["sampled_tokens"] / rows[-1]["step"], 1)
    steps = min(ceil(train["sampled_tokens"] / tokens_per_step), train["steps"])
    every = train["eval_every"]
    evaluations = 2 + ((steps - 1) // every if every else 0)
    spent = {}
    for clock in ("cpu_s", "wall_s"):
        deltas = [after[clock] - before[clock] for before, after in pairwise(rows)]
        step = fmean(deltas[1:-1])
        evaluation = max(0.0, deltas[-1] - step)
        spent[clock] = steps * step + evaluations * evaluation
    return _with_warm_start(folder, rows, spent)


def recorded_cost(folder: Path) -> Cost:
    """The cost of a finished run."""
    rows = read_metrics(folder)
    spent = {clock: rows[-1][clock] - rows[0][clock] for clock in ("cpu_s", "wall_s")}
    return _with_warm_start(folder, rows, spent)


def _with_warm_start(folder: Path, rows: Sequence[Row], spent: Mapping[str, float]) -> Cost:
    total = json.loads((folder / "done.json").read_text())
    warm = {
        clock: max(0.0, total[clock] - (rows[-1][clock] - rows[0][clock]))
        for clock in ("cpu_s", "wall_s")
    }
    return Cost(spent["cpu_s"], spent["wall_s"], warm["cpu_s"], warm["wall_s"])


def estimate(specs: Sequence[RunSpec], costs: Mapping[Kind, Cost], num_workers: int) -> Estimate:
    """All runs together; arms and reward set-ups share the warm start of their seed."""
    warm: dict[str, Cost] = {}
    for spec in specs:
        cost = costs[spec.panel, spec.arm]
        key = warm_key(spec)
        if key not in warm or cost.warm_cpu_s > warm[key].warm_cpu_s:
            warm[key] = cost
    each = [costs[spec.panel, spec.arm] for spec in specs]
    cpu_s = sum(c.train_cpu_s for c in each) + sum(c.warm_cpu_s for c in warm.values())
    wall_s = sum(c.train_wall_s for c in each) + sum(c.warm_wall_s for c in warm.values())
    return Estimate(len(specs), cpu_s, wall_s / num_workers)


def warm_key(spec: RunSpec) -> str:
    """What a run's warm start depends on: runs with the same key share it."""
    model = spec.config.get("model", {})
    env = {**spec.config["env"], **model.get("sft", {}).get("env", {}), "reward": ""}
    return json.dumps([env, model, spec.seed], sort_keys=True, default=str)
