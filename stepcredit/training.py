"""How a run reaches the trainer: settings checked first, torch loaded late."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepcredit.config import Layered, UserError, build
from stepcredit.envs import UnknownNameError, make
from stepcredit.explain import nearest

if TYPE_CHECKING:
    from stepcredit.algos.settings import RunConfig


def build_config(layer: Layered) -> dict[str, Any]:
    """One run's settings, complete: schema, environment and preset are all checked, in that order.

    Raises:
        UserError: an unknown key, preset, environment or argument, or a value out of range.
    """
    from stepcredit.algos.settings import RunConfig

    config = build(RunConfig, layer)
    _check_made(config)
    # the presets load torch: what went wrong before is told at once
    from stepcredit.algos.fit import check_fit
    from stepcredit.algos.presets import build as build_preset

    _check_algo_keys(config.algo.preset, config.algo.further)
    try:
        check_fit(config, build_preset(config.algo.preset, config.algo.further))
        _check_env(config)
        _check_env(_as_demonstrated(config))
    except ValueError as error:
        raise UserError(str(error)) from error
    return config.model_dump(mode="json")


def _check_made(config: "RunConfig") -> None:
    """Make the environment once as it is trained on and once as it is demonstrated."""
    taught = dict.fromkeys(config.model.sft.env, "model.sft.env.")
    for run, keys in ((config, {}), (_as_demonstrated(config), taught)):
        settings = run.env.model_dump()
        key = dumps(settings, sort_keys=True, default=str)
        if key in _CHECKED:
            continue
        try:
            make(**settings).close()
        except ValueError as error:
            places = {**dict.fromkeys(settings, "env."), **keys}
            raise UserError(_with_places(error, places)) from error
        _CHECKED.add(key)


def _with_places(error: ValueError, places: Mapping[str, str]) -> str:
    """An environment's complaint about an argument, in the names that the command line takes."""
    if isinstance(error, UnknownNameError):
        key = {"environment": "id", "parameter": error.name}.get(error.kind, error.kind)
        place, told = places.get(key, "env."), str(error)
        if error.kind == "parameter":
            told = told.replace(f"mean {error.near!r}", f"mean {place}{error.near}")
        return f"{place}{key}: {told}"
    names = "|".join(map(re.escape, places))
    return re.sub(
        rf"(?<![\w.])({names})=", lambda found: f"{places[found[1]]}{found[1]}=", str(error)
    )


def _check_algo_keys(preset: str, further: Iterable[str]) -> None:
    """A key that no preset has may be meant for the section itself, `preset` above all."""
    from stepcredit.algos.presets import ALGORITHMS, ALIASES
    from stepcredit.algos.settings import AlgoSettings

    if preset not in ALGORITHMS:
        return
    known = [*AlgoSettings.model_fields, *(f.name for f in fields(ALGORITHMS[preset][1]))]
    for key in further:
        if key not in known and not set(ALIASES.get(key, ())) & set(known):
            near = nearest(key, known)
            hint = f"did you mean algo.{near}?" if near else f"known: {', '.join(known)}"
            raise UserError(f"algo.{key}: {preset} has no such setting ({hint})")


_CHECKED: set[str] = set()


def _as_demonstrated(config: "RunConfig") -> "RunConfig":
    """The run with the environment's settings of the warm start's demonstrations."""
    env = config.env.model_copy(update=config.model.sft.env)
    return config.model_copy(update={"env": env})


def _check_env(config: "RunConfig") -> None:
    # a study has hundreds of runs on a handful of environments and presets
    key = dumps([config.env.model_dump(), config.algo.model_dump()], sort_keys=True, default=str)
    if key in _CHECKED:
        return
    from stepcredit.algos.fit import check_env_fit
    from stepcredit.algos.presets import build as build_preset

    check_env_fit(config, build_preset(config.algo.preset, config.algo.further))
    _CHECKED.add(key)


def notes_of(config: dict[str, Any]) -> list[str]:
    """What a user should know of one run's settings before it starts."""
    from stepcredit.algos.fit import notes
    from stepcredit.algos.presets import build as build_preset
    from stepcredit.algos.settings import RunConfig

    run = RunConfig.model_validate(config)
    return notes(run, build_preset(run.algo.preset, run.algo.further))


def preset_lines() -> str:
    """Every preset with the first line of its documentation."""
    from stepcredit.algos.presets import ALGORITHMS, summary

    width = max(map(len, ALGORITHMS))
    return "\n".join(f"  {name:<{width}}  {summary(name)}" for name in ALGORITHMS)


def run_one(
    config: dict[str, Any], folder: Path, on_step: Callable[[dict[str, Any]], None]
) -> None:
    """Train one configuration into a folder."""
    from stepcredit.algos.settings import RunConfig
    from stepcredit.algos.trainer import train

    train(RunConfig.model_validate(config), folder, on_step=on_step)
