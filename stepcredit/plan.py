"""The runs of a study: every arm in every cell on every seed, matched in sampled tokens."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from stepcredit.config import Layered, UserError, content_hash, nearest, override
from stepcredit.study import SECTIONS, Cell, Changes, Study, cell_text

NO_STEP_LIMIT = 10**9

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
        slug = re.sub(r"[^A-Za-z0-9_.@+=-]", "-", "_".join([self.arm, *labels]))
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
        UserError: a run's settings are wrong, or arms of a cell differ in sampled tokens.
    """
    specs = []
    for name, panel in study.file.panels.items():
        for cell, arm in product(panel.grid, panel.arms):
            first = panel.tune.trials[0] if panel.tune else {}
            trial = (chosen or {}).get((name, cell, arm), first)
            specs += _runs(study, name, cell, arm, trial, panel.seeds, build_config)
    _check_matched(specs)
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
    layer = override(layer, trial, f"panel {name}, tune")
    layer = override(layer, study.on_top, "command line")
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
        if key == "train":
            raise UserError(
                "train: replacing the whole section would drop the budget; set single keys, e.g. "
                f"train.eval_every (set in {where})"
            )
    return override(layer, changes, where)


def _check_matched(specs: Sequence[RunSpec]) -> None:
    tokens: dict[tuple[str, Cell], int] = {}
    for spec in specs:
        mine = spec.config["train"]["sampled_tokens"]
        if mine is None:
            raise UserError("train.sampled_tokens: null: a study needs it; leave the key out")
        matched = tokens.setdefault((spec.panel, spec.cell), mine)
        if mine != matched:
            raise UserError(
                f"panel {spec.panel}, arm {spec.arm}: train.sampled_tokens={mine}: the arms of a "
                f"cell are matched at {matched}; set it once, in the panel"
            )
