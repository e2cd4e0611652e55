"""The runs of a study: every arm in every cell on every seed, matched in sampled tokens."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from stepcredit.config import Layered, UserError, content_hash, override
from stepcredit.explain import nearest
from stepcredit.study import SECTIONS, Cell, Changes, Study, cell_text

NO_STEP_LIMIT = 10**9
LONGEST_SLUG = 120
"""Characters of a folder's name that tell arm and cell; file systems take 255 in all."""

BuildConfig = Callable[[Layered], dict[str, Any]]
"""Validates one run's settings and returns them complete, defaults included."""


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """One run: where it stands in the study and its whole configuration."""

    panel: str
    cell: Cell
    arm: str
    seed: int
    config: dict[str, Any]
    config_hash: str
    trial: tuple[tuple[str, Any], ...] = ()
    """The tuned values, empty without tuning."""
    tuning: bool = False

    @property
    def group(self) -> tuple[str, Cell, str]:
        """What all seeds of this run share."""
        return (self.panel, self.cell, self.arm)

    @property
    def name(self) -> str:
        """The run's folder inside the study folder."""
        labels = [f"{axis}={label}" for axis, label in self.cell]
        slug = re.sub(r"[^A-Za-z0-9_.@+=-]", "-", "_".join([self.arm, *labels]))[:LONGEST_SLUG]
        kind = "tuning" if self.tuning else "runs"
        return f"{kind}/{self.panel}/{slug}_s{self.seed}_{self.config_hash}"


def expand(
    study: Study,
    build_config: BuildConfig,
    chosen: Mapping[tuple[str, Cell, str], Changes] | None = None,
) -> list[RunSpec]:
    """Every run of the comparison, the same seeds for every arm of a cell.

    `chosen` holds each group's tuned values; without it the first trial stands in.

    Raises:
        UserError: a run's settings are wrong, arms of a cell differ in sampled tokens, or a label
            would not say what was run.
    """
    _check_labels_hold(study)
    specs = []
    for name, panel in study.file.panels.items():
        for cell, arm in product(panel.grid, panel.arms):
            first = panel.tune.trials[0] if panel.tune else {}
            trial = (chosen or {}).get((name, cell, arm), first)
            specs += _runs(study, name, cell, arm, trial, panel.seeds, build_config)
    _check_matched(specs)
    _check_distinct(specs)
    return specs


def tuning_runs(study: Study, build_config: BuildConfig) -> list[RunSpec]:
    """Every tuning run: the same trials and seeds for every arm of every cell."""
    specs = []
    for name, panel in study.file.panels.items():
        if panel.tune is None:
            continue
        for cell, arm, trial in product(panel.grid, panel.arms, panel.tune.trials):
            seeds = panel.tune.seeds
            specs += _runs(study, name, cell, arm, trial, seeds, build_config, tuning=True)
    return specs


def _runs(
    study: Study,
    name: str,
    cell: Cell,
    arm: str,
    trial: Changes,
    seeds: Iterable[int],
    build_config: BuildConfig,
    tuning: bool = False,
) -> list[RunSpec]:
    panel = study.file.panels[name]
    tokens = {
        "train.sampled_tokens": study.file.budget.sampled_tokens,
        "train.steps": NO_STEP_LIMIT,
    }
    layer = override(study.base, tokens, "budget")
    layer = _apply(layer, panel.set, f"panel {name}")
    layer = _apply(layer, panel.grid[cell], f"panel {name}, cell {cell_text(cell)}")
    layer = _apply(layer, panel.arms[arm], f"panel {name}, arm {arm}")
    layer = _apply(layer, trial, f"panel {name}, tune")
    layer = _apply(layer, study.on_top, "command line")
    specs = []
    for seed in seeds:
        try:
            config = build_config(override(layer, {"train.seed": seed}, "seeds"))
        except UserError as error:
            place = f"panel {name}, arm {arm}, {cell_text(cell)}"
            raise UserError(f"{place}:\n{error}") from error
        specs.append(
            RunSpec(
                panel=name,
                cell=cell,
                arm=arm,
                seed=seed,
                config=config,
                config_hash=content_hash(config),
                trial=tuple(trial.items()),
                tuning=tuning,
            )
        )
    return specs


def _apply(layer: Layered, changes: Changes, where: str) -> Layered:
    for key in changes:
        section = key.split(".")[0]
        if section not in SECTIONS:
            near = nearest(section, SECTIONS)
            hint = f"did you mean {near}?" if near else f"a key starts with {', '.join(SECTIONS)}"
            raise UserError(f"{key}: unknown key ({hint}; set in {where})")
        if key == "train.seed":
            told = f"; pass seeds=[{changes[key]}]" if where == "command line" else ""
            raise UserError(f"train.seed: is what `seeds` sets{told} (set in {where})")
        if key == "train":
            raise UserError(
                "train: replacing the whole section would drop the budget; set single keys, e.g. "
                f"train.eval_every (set in {where})"
            )
    return override(layer, changes, where)


def _check_labels_hold(study: Study) -> None:
    """Refuse a later setting that would make an axis or a tuned value say what was not run."""
    for name, panel in study.file.panels.items():
        axes = [key for key, values in panel.cells.items() if isinstance(values, list)]
        tuned = list(panel.tune.trials[0]) if panel.tune else []
        arms = [
            (f"panel {name}, arm {arm}", key) for arm, keys in panel.arms.items() for key in keys
        ]
        top = [("command line", key) for key in study.on_top]
        tune = [(f"panel {name}, tune", key) for key in tuned]
        for where, key in [*arms, *tune, *top]:
            _refuse_overlap(key, axes, f"an axis of panel {name}", "cells", where)
        for where, key in [*arms, *top]:
            _refuse_overlap(key, tuned, f"tuned in panel {name}", "tune", where)


def _refuse_overlap(key: str, taken: Sequence[str], what: str, section: str, where: str) -> None:
    for other in taken:
        mine, theirs = key.split("."), other.split(".")
        shared = min(len(mine), len(theirs))
        if mine[:shared] == theirs[:shared]:
            raise UserError(
                f"{key}: would overwrite {other}, {what}; change it in `{section}` alone "
                f"(set in {where})"
            )


def _check_distinct(specs: Sequence[RunSpec]) -> None:
    """Refuse two cells of an arm, or two arms of a cell, that are one and the same run."""
    seen: dict[tuple[Any, ...], RunSpec] = {}
    for spec in specs:
        run = (spec.panel, spec.seed, spec.config_hash)
        first = seen.setdefault((*run, "arm", spec.arm), spec)
        if first.cell != spec.cell:
            both = f"{cell_text(first.cell)} and {cell_text(spec.cell)}"
            raise UserError(f"panel {spec.panel}, {both}: are the same run; drop one of them")
        first = seen.setdefault((*run, "cell", spec.cell), spec)
        if first.arm != spec.arm:
            both = f"arm {first.arm} and arm {spec.arm}"
            raise UserError(f"panel {spec.panel}, {both}: are the same run; drop one of them")


def _check_matched(specs: Sequence[RunSpec]) -> None:
    matched: dict[tuple[str, Cell, str], Any] = {}
    for spec, key in product(specs, ("sampled_tokens", "steps")):
        mine = spec.config["train"][key]
        if mine is None:
            raise UserError(f"train.{key}: null: a study needs it; leave the key out")
        theirs = matched.setdefault((spec.panel, spec.cell, key), mine)
        if mine != theirs:
            raise UserError(
                f"panel {spec.panel}, arm {spec.arm}: train.{key}={mine}: the arms of a "
                f"cell are matched at {theirs}; set it once, in the panel"
            )
