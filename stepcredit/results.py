"""What a study measured: one record per run, read from run folders, written as Parquet."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from stepcredit.folders import whole
from stepcredit.plan import RunSpec
from stepcredit.statistics import area_under_curve

_CLOCKS = {"wall_s", "cpu_s"}
_ROW = {"step", "sampled_tokens", *_CLOCKS}

Curve = list[tuple[int, float]]
"""(sampled policy tokens so far, value) of each training step."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """One run of the study; a failed one has a reason and no numbers."""

    spec: RunSpec
    folder: Path
    reason: str = ""
    sft_start: float | None = None
    """The metric before training, on the evaluation split."""
    final: float | None = None
    """The metric after training, on the evaluation split."""
    auc: float | None = None
    """Mean over sampled tokens of the metric of the training episodes."""
    zero_variance_share: float | None = None
    """Share of groups whose members all got the same return, over training."""
    wall_s: float | None = None
    """Training alone, the warm start apart."""
    cpu_s: float | None = None
    sampled_tokens: int | None = None
    curve: tuple[tuple[int, float], ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the run finished."""
        return not self.reason


def is_finished(spec: RunSpec, out: Path) -> bool:
    """Whether the run's folder holds a finished run of exactly this configuration."""
    return is_whole(out / spec.name, spec.config_hash)


def is_whole(folder: Path, config_hash: str) -> bool:
    """Whether a folder holds a finished run of a configuration, in files that can be read."""
    try:
        done = json.loads((folder / "done.json").read_text())
        rows = read_metrics(folder)
        complete = done.keys() >= _CLOCKS and all(row.keys() >= _ROW for row in rows)
        return bool(rows) and complete and bool(done["config_hash"] == config_hash)
    except (OSError, ValueError, LookupError, AttributeError):
        return False


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The rows of a run's metrics.jsonl."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def read_result(spec: RunSpec, out: Path, metric: str) -> Result:
    """One run's numbers under the panel's metric, or why it has none."""
    folder = out / spec.name
    if not is_finished(spec, out):
        failed = folder / "failed.json"
        reason = json.loads(failed.read_text())["reason"] if failed.exists() else "not run"
        return Result(spec=spec, folder=folder, reason=reason or "failed")
    rows = read_metrics(folder)
    curve: Curve = [(row["sampled_tokens"], row[metric]) for row in rows if metric in row]
    evaluated = [row[f"eval/{metric}"] for row in rows if f"eval/{metric}" in row]
    flat = [row["frac_reward_zero_std"] for row in rows if "frac_reward_zero_std" in row]
    if not curve or not evaluated:
        return Result(spec=spec, folder=folder, reason=f"metrics.jsonl holds no {metric}")
    return Result(
        spec=spec,
        folder=folder,
        sft_start=evaluated[0],
        final=evaluated[-1],
        auc=area_under_curve([tokens for tokens, _ in curve], [value for _, value in curve]),
        zero_variance_share=fmean(flat) if flat else None,
        wall_s=rows[-1]["wall_s"],
        cpu_s=rows[-1]["cpu_s"],
        sampled_tokens=rows[-1]["sampled_tokens"],
        curve=tuple(curve),
    )


def write_results(results: Sequence[Result], path: Path) -> None:
    """One row per run, with one column per axis of any panel (`cell.T`, `cell.reward`)."""
    axes = _axes(results)
    columns: dict[str, list[Any]] = {
        "panel": [r.spec.panel for r in results],
        **{f"cell.{axis}": _labels(results, axis) for axis in axes},
        "arm": [r.spec.arm for r in results],
        "seed": [r.spec.seed for r in results],
        "tuning": [r.spec.tuning for r in results],
        "status": ["ok" if r.ok else "failed" for r in results],
        "reason": [r.reason for r in results],
    }
    for name in ("sft_start", "final", "auc", "zero_variance_share", "wall_s", "cpu_s"):
        columns[name] = [getattr(r, name) for r in results]
    columns["sampled_tokens"] = [r.sampled_tokens for r in results]
    columns["learning_rate"] = [r.spec.config["algo"].get("learning_rate") for r in results]
    columns["config_hash"] = [r.spec.config_hash for r in results]
    columns["folder"] = [r.spec.name for r in results]
    with whole(path) as part:
        pq.write_table(pa.table(columns), part, compression="zstd")


def write_curves(results: Sequence[Result], path: Path) -> None:
    """One row per run and training step."""
    pairs = [(r, tokens, value) for r in results for tokens, value in r.curve]
    owners = [r for r, _, _ in pairs]
    columns: dict[str, list[Any]] = {
        "panel": [r.spec.panel for r in owners],
        **{f"cell.{axis}": _labels(owners, axis) for axis in _axes(results)},
        "arm": [r.spec.arm for r in owners],
        "seed": [r.spec.seed for r in owners],
        "sampled_tokens": [tokens for _, tokens, _ in pairs],
        "value": [value for _, _, value in pairs],
    }
    with whole(path) as part:
        pq.write_table(pa.table(columns), part, compression="zstd")


def _axes(results: Sequence[Result]) -> list[str]:
    return list(dict.fromkeys(axis for r in results for axis, _ in r.spec.cell))


def _labels(results: Sequence[Result], axis: str) -> list[Any]:
    """An axis as one column: numbers, or truth values, where all labels are; else text."""
    labels = [dict(r.spec.cell).get(axis) for r in results]
    kinds = {type(label) for label in labels if label is not None}
    if kinds <= {int, float} or kinds == {bool}:
        return labels
    return [None if label is None else str(label) for label in labels]
