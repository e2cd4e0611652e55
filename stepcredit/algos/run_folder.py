"""The folder of one run: its config, its log, its clock and its summary."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from stepcredit.algos.errors import TrainingError
from stepcredit.algos.settings import RunConfig

OnStep = Callable[[dict[str, Any]], None]


def open_folder(config: RunConfig, out_dir: Path, resume: bool) -> None:
    """Write config.yaml into an empty folder, or accept one that holds the same run.

    Raises TrainingError for a folder that holds another run, or any run without `resume`.
    """
    path = out_dir / "config.yaml"
    ours = yaml.safe_dump(config.model_dump(), sort_keys=False)
    if not path.exists():
        (out_dir / "trajectories").mkdir(parents=True, exist_ok=True)
        _write_whole(path, ours)
    elif not resume:
        raise TrainingError(f"{out_dir}: holds a run already; pass --resume or another folder")
    elif yaml.safe_load(path.read_text()) != yaml.safe_load(ours):
        raise TrainingError(f"{out_dir}: holds a run of another config; pass another folder")


def _write_whole(path: Path, text: str) -> None:
    """Write a file that a kill leaves as it was or as it is meant, never half."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(text)
    part.replace(path)


class Clock:
    """Wall and CPU seconds of a run, over all its sittings."""

    def __init__(self, wall_s: float, cpu_s: float) -> None:
        """Start from what earlier sittings took."""
        self._wall = time.perf_counter() - wall_s
        self._cpu = time.process_time() - cpu_s

    def read(self) -> dict[str, float]:
        """Return the seconds so far."""
        return {
            "wall_s": time.perf_counter() - self._wall,
            "cpu_s": time.process_time() - self._cpu,
        }


class Log:
    """metrics.jsonl: one JSON object per step, nothing kept past the checkpoint resumed from."""

    def __init__(self, path: Path, *, keep_until: int, on_step: OnStep | None) -> None:
        """Open the log, dropping the steps after `keep_until` and a torn last line.

        Raises TrainingError where a step up to `keep_until` is missing.
        """
        self._path, self._on_step = path, on_step
        self.rows = [r for r in _rows(path) if r["step"] <= keep_until]
        if keep_until and [r["step"] for r in self.rows] != list(range(keep_until + 1)):
            raise TrainingError(
                f"{path}: does not hold every step up to {keep_until}, the last checkpoint's; "
                "start anew in another folder"
            )
        _write_whole(path, "".join(json.dumps(row) + "\n" for row in self.rows))

    @property
    def last(self) -> dict[str, Any] | None:
        """The newest row."""
        return self.rows[-1] if self.rows else None

    def write(self, row: dict[str, Any]) -> None:
        """Append one row and tell the caller."""
        self.rows.append(row)
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        if self._on_step is not None:
            self._on_step(row)


def _rows(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    rows = []
    for line in path.read_text().splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue  # torn by a kill; a gap before the last checkpoint is refused by the caller
        if isinstance(row, dict) and "step" in row:
            rows.append(row)
    return rows


def summarise(out_dir: Path, log: Log) -> dict[str, Any]:
    """Write summary.json, the mark of a finished run, and return what it says."""
    assert log.last is not None
    evaluated = [row for row in log.rows if "eval/success" in row]
    summary = {
        "start": evaluated[0],
        "final": evaluated[-1],
        "steps": log.last["step"],
        "sampled_tokens": log.last["sampled_tokens"],
        "wall_s": log.last["wall_s"],
        "cpu_s": log.last["cpu_s"],
    }
    _write_whole(out_dir / "summary.json", json.dumps(summary, indent=2))
    return summary
