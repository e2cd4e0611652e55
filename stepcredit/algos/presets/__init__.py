"""The algorithms: each a dataclass of settings and a function that composes the parts.

A preset says where credit comes from (`advantage`), how far an update may go (`trust_region`), how
tokens are averaged (`weight`), where a KL term stands, and what is kept beside the policy. The
user's own is a function of the same kind, named as `module:function`.
"""

import importlib
from collections.abc import Callable
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from pydantic import TypeAdapter, ValidationError

from stepcredit.algos.algorithm import Algorithm
from stepcredit.algos.errors import TrainingError
from stepcredit.algos.presets.bilevel import BilevelSettings, ppo_bilevel
from stepcredit.algos.presets.dapo import DAPOSettings, dapo
from stepcredit.algos.presets.dppo import CPPOSettings, DPPOSettings, cppo, dppo
from stepcredit.algos.presets.dr_grpo import DrGRPOSettings, dr_grpo
from stepcredit.algos.presets.evpo import evpo
from stepcredit.algos.presets.gigpo import GiGPOSettings, gigpo
from stepcredit.algos.presets.grpo import (
    ClippedGroupSettings,
    GRPOSettings,
    grpo,
    grpo_process,
    grpo_process_positions,
    grpo_process_returns,
)
from stepcredit.algos.presets.gspo import CISPOSettings, GSPOSettings, cispo, gspo
from stepcredit.algos.presets.mt_grpo import MTGRPOSettings, mt_grpo
from stepcredit.algos.presets.n_grpo import NGRPOSettings, n_grpo
from stepcredit.algos.presets.ppo import PPOSettings, ppo, ppo_step, ppo_turn
from stepcredit.algos.presets.r1_zero import R1ZeroSettings, r1_zero
from stepcredit.algos.presets.rloo import (
    ReinforceBaselineSettings,
    ReinforceSettings,
    RLOOSettings,
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
    rloo,
)
from stepcredit.algos.presets.vapo import VAPOSettings, vapo
from stepcredit.algos.presets.vineppo import VinePPOSettings, vineppo
from stepcredit.envs.bounded import described

Preset = Callable[[Any], Algorithm]

ALGORITHMS: dict[str, tuple[Preset, type[Any]]] = {
    "ppo": (ppo, PPOSettings),
    "ppo_step": (ppo_step, PPOSettings),
    "ppo_turn": (ppo_turn, PPOSettings),
    "ppo_bilevel": (ppo_bilevel, BilevelSettings),
    "vapo": (vapo, VAPOSettings),
    "evpo": (evpo, PPOSettings),
    "vineppo": (vineppo, VinePPOSettings),
    "grpo": (grpo, GRPOSettings),
    "grpo_process": (grpo_process, ClippedGroupSettings),
    "grpo_process_returns": (grpo_process_returns, ClippedGroupSettings),
    "grpo_process_positions": (grpo_process_positions, ClippedGroupSettings),
    "mt_grpo": (mt_grpo, MTGRPOSettings),
    "gigpo": (gigpo, GiGPOSettings),
    "r1_zero": (r1_zero, R1ZeroSettings),
    "rloo": (rloo, RLOOSettings),
    "reinforce_plus_plus": (reinforce_plus_plus, ReinforceSettings),
    "reinforce_plus_plus_baseline": (reinforce_plus_plus_baseline, ReinforceBaselineSettings),
    "dr_grpo": (dr_grpo, DrGRPOSettings),
    "dapo": (dapo, DAPOSettings),
    "gspo": (gspo, GSPOSettings),
    "cispo": (cispo, CISPOSettings),
    "dppo": (dppo, DPPOSettings),
    "cppo": (cppo, CPPOSettings),
    "n_grpo": (n_grpo, NGRPOSettings),
}

ALIASES = {
    "clip_ratio": ("epsilon",),
    "clip_ratio_low": ("epsilon",),
    "clip_ratio_high": ("epsilon_high",),
    "clip_ratio_c": ("dual_clip",),
    "kl_coef": ("beta",),
    "kl_loss_coef": ("beta",),
    "ppo_epochs": ("num_ppo_epochs", "num_iterations"),
}
"""verl's names of settings, and those that mean the same here, whichever the preset has."""


def summary(preset: str) -> str:
    """Return the first line of a preset's documentation."""
    function, _ = ALGORITHMS[preset]
    assert function.__doc__ is not None
    return function.__doc__.splitlines()[0]


def build(preset: str, settings: dict[str, Any]) -> Algorithm:
    """Compose the named preset, or a user's `module:function`, with the given settings.

    Raises TrainingError, naming the nearest valid name, for an unknown preset or setting.
    """
    if ":" in preset:
        return _of_the_user(preset, settings)
    if preset not in ALGORITHMS:
        raise TrainingError(f"algo.preset={preset}: unknown{_nearest(preset, list(ALGORITHMS))}")
    function, kind = ALGORITHMS[preset]
    known = [f.name for f in fields(kind)]
    settings = ours(settings, known)
    for key in settings:
        if key not in known:
            raise TrainingError(f"algo.{key}: {preset} has no such setting{_nearest(key, known)}")
    try:
        return function(TypeAdapter(kind).validate_python(settings))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise TrainingError(f"algo.{where}={first['input']}: {first['msg']}") from error


def ours(settings: dict[str, Any], known: list[str]) -> dict[str, Any]:
    """Give every setting the name that it has here.

    Raises TrainingError for one that is given under two names.
    """
    out: dict[str, Any] = {}
    given: dict[str, str] = {}
    for key, value in settings.items():
        name = next((n for n in ALIASES.get(key, ()) if n in known), key)
        if name in out:
            raise TrainingError(
                f"algo.{key}={value}: the same as algo.{given[name]}; give one of them"
            )
        out[name], given[name] = value, key
    return out


def _of_the_user(preset: str, settings: dict[str, Any]) -> Algorithm:
    module, _, name = preset.partition(":")
    try:
        algorithm = getattr(importlib.import_module(module), name)(**settings)
    except TrainingError:
        raise
    except (Exception, SystemExit) as error:  # a module may raise anything when it is imported
        told = " ".join(described(error).split())
        raise TrainingError(f"algo.preset={preset}: cannot be called ({told})") from error
    if not isinstance(algorithm, Algorithm):
        raise TrainingError(
            f"algo.preset={preset}: returned {type(algorithm).__name__}, must return an Algorithm"
        )
    return algorithm


def _nearest(name: str, known: list[str]) -> str:
    close = get_close_matches(name.lower(), known, n=1)
    return f"; did you mean {close[0]}?" if close else f"; one of {', '.join(known)}"
