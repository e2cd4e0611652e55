"""How a run reaches the trainer: settings checked first, torch loaded late."""

from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import fields
from json import dumps
from pathlib import Path
from typing import Any

from stepcredit.config import Layered, UserError, build, nearest


def build_config(layer: Layered) -> dict[str, Any]:
    """One run's settings, complete: schema, preset and environment are all checked.

    Raises:
        UserError: an unknown key, preset, environment or argument, or a value out of range.
    """
    from stepcredit.algos.presets import build as build_preset
    from stepcredit.algos.settings import RunConfig
    from stepcredit.algos.trainer import check_fit

    config = build(RunConfig, layer)
    _check_algo_keys(config.algo.preset, config.algo.further)
    try:
        check_fit(config, build_preset(config.algo.preset, config.algo.further))
        _check_env(config.env.id, config.env.reward, config.env.further)
        _check_env(config.env.id, config.env.reward, config.env.further | config.model.sft.env)
    except ValueError as error:
        raise UserError(str(error)) from error
    return config.model_dump(mode="json")


def _check_algo_keys(preset: str, further: Iterable[str]) -> None:
    """A key that no preset has may be meant for the section itself, `preset` above all."""
    from stepcredit.algos.presets import ALGORITHMS
    from stepcredit.algos.settings import AlgoSettings

    if preset not in ALGORITHMS:
        return
    known = [*AlgoSettings.model_fields, *(f.name for f in fields(ALGORITHMS[preset][1]))]
    for key in further:
        if key not in known:
            near = nearest(key, known)
            hint = f"did you mean algo.{near}?" if near else f"known: {', '.join(known)}"
            raise UserError(f"algo.{key}: {preset} has no such setting ({hint})")


_CHECKED: set[str] = set()


def _check_env(env_id: str, reward: str, further: dict[str, Any]) -> None:
    # a study has hundreds of runs on a handful of environments
    key = dumps([env_id, reward, further], sort_keys=True, default=str)
    if key in _CHECKED:
        return
    from stepcredit.envs import make

    with closing(make(env_id, reward=reward, **further)):
        _CHECKED.add(key)


def run_one(
    config: dict[str, Any], folder: Path, on_step: Callable[[dict[str, Any]], None]
) -> None:
    """Train one configuration into a folder."""
    from stepcredit.algos.settings import RunConfig
    from stepcredit.algos.trainer import train

    train(RunConfig.model_validate(config), folder, on_step=on_step)
