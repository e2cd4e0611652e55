"""The study file: panels of arms x cells x seeds, and what they were declared to show."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from stepcredit.config import (
    Layered,
    UserError,
    build,
    load_layers,
    override,
    parse_override,
    read_mapping,
)
from stepcredit.explain import nearest

SECTIONS = ("env", "model", "algo", "rollout", "train")
INHERITED = ("set", "metric", "arms", "cells", "seeds", "tune")
NAME = re.compile(r"(?!\.+$)[A-Za-z0-9_.@+-]+")

Label = bool | int | float | str
Cell = tuple[tuple[str, Label], ...]
"""One value of every axis: (("T", 4), ("reward", "dense"))."""
Changes = dict[str, Any]
"""Dotted key -> value."""


def _once(seeds: list[int]) -> list[int]:
    twice = next((seed for seed in seeds if seeds.count(seed) > 1), None)
    if twice is not None:
        raise ValueError(f"{twice} is listed twice; a seed is one run")
    return seeds


Seeds = Annotated[
    list[Annotated[int, Field(ge=0, lt=2**63)]], Field(min_length=1), AfterValidator(_once)
]


class Strict(BaseModel):
    """A section whose keys are all known."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Budget(Strict):
    """What one run may sample, and what the whole study may cost."""

    sampled_tokens: int = Field(ge=1)
    """Policy tokens of every run."""
    cpu_hours: float = Field(gt=0)
    """The study is refused when runs x measured cost exceed it."""


class Tune(BaseModel):
    """Values tried for every arm of every cell, on seeds that the comparison never uses."""

    model_config = ConfigDict(extra="allow", frozen=True)
    seeds: Seeds

    @model_validator(mode="after")
    def _dotted_lists(self) -> "Tune":
        for key, values in (self.model_extra or {}).items():
            if key.split(".")[0] not in SECTIONS:
                raise ValueError(f"{key}: not a setting of a run; write algo.{key}")
            if not isinstance(values, list) or not values:
                raise ValueError(f"{key}: {values!r}: must be a list of values to try")
        return self

    @property
    def trials(self) -> list[Changes]:
        """Every combination of the values, the same for all arms."""
        values = self.model_extra or {}
        return [
            dict(zip(values, combination, strict=True)) for combination in product(*values.values())
        ]


class Claim(Strict):
    """What a paired difference was declared to show before it was measured."""

    difference: str
    """`arm - arm`, `label - label` of one axis, `final - start`, or `every pair of arms`."""
    at: dict[str, Any] = {}
    """Axis or `arm` -> label; a list asks for at least one of its labels."""
    on: Literal["auc", "final"] = "auc"
    expect: Literal["excludes_zero", "above_zero", "within", "at_least"] = "excludes_zero"
    margin: float | None = Field(None, ge=0)

    @model_validator(mode="after")
    def _margin_given(self) -> "Claim":
        if self.expect in ("within", "at_least") and self.margin is None:
            raise ValueError(f"expect: {self.expect} needs a margin; add margin: .03")
        return self


class Panel(Strict):
    """One question: arms in the cells of a grid, on the same seeds."""

    title: str
    set: Changes = {}
    metric: Literal["success", "outcome"] = "success"
    arms: dict[str, Changes] = Field(min_length=1)
    cells: dict[str, list[Label] | dict[Label, Changes]] = {}
    seeds: Seeds
    tune: Tune | None = None
    claims: list[Claim] = []

    @field_validator("arms")
    @classmethod
    def _plain_names(cls, arms: dict[str, Changes]) -> dict[str, Changes]:
        for name in arms:
            if not NAME.fullmatch(name):
                raise ValueError(f"{name!r}: an arm's name is letters, digits and _ . @ + -")
        return arms

    @field_validator("cells")
    @classmethod
    def _own_axis_names(cls, cells: dict[str, Any]) -> dict[str, Any]:
        names = [_axis_name(key, values) for key, values in cells.items()]
        for name in names:
            if name == "arm" or names.count(name) > 1:
                raise ValueError(f"two axes are called {name}; label one: name: {{label: {{...}}}}")
        for key, values in cells.items():
            labels = list(values)
            if not labels:
                raise ValueError(f"{key} has no labels; write one, or leave the axis out")
            twice = next((v for i, v in enumerate(labels) if v in labels[:i]), None)
            if twice is not None:
                raise ValueError(f"{key}: {twice!r} is listed twice; a label is one cell")
        return cells

    @model_validator(mode="after")
    def _fits(self) -> "Panel":
        if self.tune and set(self.tune.seeds) & set(self.seeds):
            shared = sorted({*self.tune.seeds} & {*self.seeds})
            raise ValueError(f"tune.seeds share {shared} with seeds; tune on seeds of its own")
        return self

    @property
    def axes(self) -> dict[str, list[tuple[Label, Changes]]]:
        """Axis name -> its labels with the settings each stands for."""
        found: dict[str, list[tuple[Label, Changes]]] = {}
        for key, values in self.cells.items():
            pairs = values if isinstance(values, dict) else {v: {key: v} for v in values}
            found[_axis_name(key, values)] = list(pairs.items())
        return found

    @property
    def grid(self) -> dict[Cell, Changes]:
        """Every cell with the settings it stands for; one empty cell when there are no axes."""
        axes = self.axes
        grid = {}
        for combination in product(*axes.values()):
            cell = tuple(zip(axes, (label for label, _ in combination), strict=True))
            grid[cell] = {k: v for _, changes in combination for k, v in changes.items()}
        return grid


def _axis_name(key: str, values: Any) -> str:
    """A labelled axis has a name of its own; a list of values is called after its setting."""
    return key if isinstance(values, dict) else key.split(".")[-1]


class StudyFile(Strict):
    """A study as written, panels filled in."""

    title: str
    budget: Budget
    panels: dict[str, Panel] = Field(min_length=1)


@dataclass(frozen=True, kw_only=True)
class Study:
    """A loaded study: the file, the run settings under it, and the changes on top of all."""

    file: StudyFile
    base: Layered
    on_top: Changes
    source: dict[str, Any]
    """The study's mapping as read, for the record."""


def load_study(path: Path, overrides: Sequence[str] = ()) -> Study:
    """Read a study file; overrides of a run's sections apply to every run, others to the file.

    Raises:
        UserError: a missing file, an unknown key, or values that do not fit together.
    """
    layer = read_mapping(path)
    if not layer.values:
        raise UserError(
            f"{path}: holds nothing; a study needs "
            "budget: {sampled_tokens: ..., cpu_hours: ...}, "
            "seeds: [0, 1] and arms: {name: {algo.preset: ...}} (see studies/quick.yaml)"
        )
    if is_run(layer.values):
        raise UserError(f"{path}: is the config of one run; use: stepcredit train {path}")
    on_top: Changes = {}
    for text in overrides:
        key, value = parse_override(text)
        if key.split(".")[0] in SECTIONS:
            on_top[key] = value
        else:
            layer = override(layer, {key: value}, "command line")
    _check_keys(layer)
    base = _base(layer, path)
    values = {key: value for key, value in layer.values.items() if key != "base"}
    file = build(StudyFile, _with_panels(Layered(values, layer.origin), path.stem))
    for name in file.panels:
        if not NAME.fullmatch(name):
            raise UserError(f"panels.{name}: a panel's name is letters, digits and _ . @ + -")
    return Study(file=file, base=base, on_top=on_top, source=layer.values)


def is_study(values: Mapping[str, Any]) -> bool:
    """Whether a mapping is meant for `stepcredit compare`."""
    return bool(values.keys() & {"panels", "arms", "budget"})


def is_run(values: Mapping[str, Any]) -> bool:
    """Whether a mapping is meant for `stepcredit train`."""
    return not is_study(values) and bool(values.keys() & set(SECTIONS))


class _Shared(BaseModel):
    """What stands at the top for every panel, checked once and not once a panel."""

    seeds: Seeds | None = None
    metric: Literal["success", "outcome"] | None = None


def _check_keys(layer: Layered) -> None:
    """Refuse unknown keys at the top, with every key that may stand there as a suggestion."""
    known = ["base", *StudyFile.model_fields, *INHERITED]
    known += [] if "panels" in layer.values else ["claims"]
    for key in layer.values:
        if key in known:
            continue
        places = (place for keys, place in layer.origin.items() if keys[0] == str(key))
        place = next(places, "the study file")
        near = nearest(key, [*known, *SECTIONS]) if isinstance(key, str) else None
        hint = f"did you mean {near}?" if near else f"known: {', '.join(known)}"
        raise UserError(f"{key}: unknown key ({hint}; set in {place})")
    build(_Shared, layer)


def _base(layer: Layered, path: Path) -> Layered:
    name = layer.values.get("base")
    if name is None:
        return Layered()
    if not isinstance(name, str):
        raise UserError(f"{path.name}: base: {name!r}: must be the file name of a run's config")
    return load_layers(path.parent / name)


def _with_panels(layer: Layered, stem: str) -> Layered:
    """The file with every panel complete: what stands at the top holds for each panel."""
    values = dict(layer.values)
    values.setdefault("title", stem)
    shared = {key: values.pop(key) for key in INHERITED if key in values}
    origin = dict(layer.origin)
    if "panels" not in values:
        claims = {"claims": values.pop("claims")} if "claims" in values else {}
        values["panels"] = {stem: {"title": values["title"], **shared, **claims}}
        for keys, place in layer.origin.items():
            origin["panels", stem, *keys] = place
        return Layered(values, origin)
    if not isinstance(values["panels"], dict):
        raise UserError("panels: must be a section of named panels")
    panels = {}
    for name, panel in values["panels"].items():
        if not isinstance(panel, dict):
            raise UserError(f"panels.{name}: must be a section of `key: value` lines")
        panels[name] = {"title": name, **shared, **panel}
        both = [part for part in (shared.get("set"), panel.get("set")) if isinstance(part, dict)]
        panels[name]["set"] = {key: value for part in both for key, value in part.items()}
        for key in INHERITED:
            if key not in panel and (key,) in layer.origin:
                origin["panels", str(name), key] = layer.origin[key,]
    return Layered({**values, "panels": panels}, origin)


def cell_text(cell: Cell) -> str:
    """A cell as people read it: `T = 16, reward = dense`."""
    return ", ".join(f"{axis} = {label}" for axis, label in cell) or "the only cell"
