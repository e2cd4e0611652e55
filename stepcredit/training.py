"""How a run reaches the trainer: settings checked first, torch loaded late."""

from collections.abc import Callable
from contextlib import closing
from json import dumps
from pathlib import Path
from typing import Any

from stepcredit.config import Layered, UserError, build


def build_config(layer: Layered) -> dict[str, Any]:
    """One run's settings, complete: schema, preset and environment are all checked.

    Raises:
        UserError: an unknown key, preset, environment or argument, or a value out of range.
    """
    from stepcredit.algos.presets import build as build_preset
    from stepcredit.algos.settings import RunConfig
    from stepcredit.algos.trainer import check_fit

    config = build(RunConfig, layer)
    try:
        check_fit(config, build_preset(config.algo.preset, config.algo.further))
        _check_env(config.env.id, config.env.reward, config.env.further)
    except ValueError as error:
        raise UserError(str(error)) from error
    return config.model_dump(mode="json")


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
