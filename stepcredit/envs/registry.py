"""Environments by name, on gymnasium's registry: one id works in both ``make`` functions."""

import importlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec, WrapperSpec, load_env_creator, parse_env_id

from stepcredit.envs.bounded import described
from stepcredit.envs.core import Env
from stepcredit.envs.errors import EnvError, UnknownNameError, unknown_name, whole_number
from stepcredit.envs.rewards import RewardSetup, reward_name

EntryPoint = str | Callable[..., gym.Env[Any, Any]]

_BUILD = "stepcredit.envs.registry:build"
_REWARD_SETUP = WrapperSpec("RewardSetup", "stepcredit.envs.rewards:RewardSetup", {"reward": None})


@dataclass(frozen=True)
class EnvRow:
    """What `list_envs` says of one environment; without a default it says ``required``."""

    id: str
    summary: str
    parameters: dict[str, Any]


def register(
    id: str,
    entry_point: EntryPoint,
    *,
    max_episode_steps: int | None = None,
    kwargs: dict[str, Any] | None = None,
) -> None:
    """Registers an environment under ``[namespace/]Name-vN`` for ``gymnasium.make`` and `make`.

    ``entry_point`` is the class, a function that returns an environment, or its ``"module:Name"``;
    ``kwargs`` are its default arguments. ``max_episode_steps`` truncates episodes without telling
    the policy. Raises `EnvError` for an id that gymnasium cannot read, `BadValueError` for a limit
    below 1.
    """
    _check_limit(max_episode_steps)
    try:
        parse_env_id(id)
    except gym.error.Error as problem:
        raise EnvError(
            f"id={id!r}: must read [namespace/]Name-vN; name it for example 'my/Env-v0'"
        ) from problem
    gym.register(
        id,
        _BUILD,
        max_episode_steps=max_episode_steps,
        # gymnasium's own checker knows no text; `check_env` is the one for these environments.
        disable_env_checker=True,
        # Outermost, so that an episode cut by the time limit is paid as well.
        additional_wrappers=(_REWARD_SETUP,),
        kwargs={"env_entry_point": _by_name(entry_point), **(kwargs or {})},
    )


def _check_limit(max_episode_steps: object) -> None:
    if max_episode_steps is not None:
        whole_number("max_episode_steps", max_episode_steps, low=1, fix="leave it out for no limit")


def _by_name(entry_point: EntryPoint) -> EntryPoint:
    """Returns ``"module:Name"`` where that finds the same object, so that specs go through JSON."""
    if isinstance(entry_point, str):
        return entry_point
    module, name = entry_point.__module__, getattr(entry_point, "__qualname__", "")
    found = getattr(sys.modules.get(module), name, None)
    return f"{module}:{name}" if found is entry_point and module != "__main__" else entry_point


def build(
    *, env_entry_point: EntryPoint, reward: str | None = None, **kwargs: Any
) -> gym.Env[Any, Any]:
    """Creates a registered environment; gymnasium calls this and `RewardSetup` reads ``reward``.

    Raises `UnknownNameError` for an unknown argument or reward, `EnvError` for a missing argument.
    """
    if reward is not None:
        reward_name(reward)
    creator = _loaded(env_entry_point)
    _check_arguments(creator, kwargs)
    env = creator(**kwargs)
    if not isinstance(env, gym.Env):
        raise EnvError(
            f"{env_entry_point} returned a {type(env).__name__}: must be a gymnasium.Env; "
            "subclass stepcredit.envs.Env"
        )
    return _Whole(env) if isinstance(env, gym.Wrapper) else env


class _Whole(gym.Wrapper[Any, Any, Any, Any]):
    """An environment that its entry point has wrapped, and will wrap again when made from a spec.

    gymnasium would take those wrappers for some of the ones that it has to put around it, and leave
    out the reward switch.
    """

    @property
    def spec(self) -> EnvSpec | None:  # type: ignore[override]  # a property in Wrapper as well
        """What the environment is made from, without the wrappers of its entry point."""
        return self.env.unwrapped.spec


def _loaded(entry_point: EntryPoint) -> Callable[..., gym.Env[Any, Any]]:
    """Returns the class or function of an entry point; raises `EnvError` where there is none."""
    if not isinstance(entry_point, str):
        return entry_point
    try:
        return cast(Callable[..., gym.Env[Any, Any]], load_env_creator(entry_point))
    except (Exception, SystemExit) as problem:  # a module may raise anything when it is imported
        raise EnvError(
            f"entry point {entry_point!r} cannot be loaded ({described(problem)}): must be the "
            "'module:Name' of a class; register the class itself where it has no such name"
        ) from problem


def _check_arguments(creator: Callable[..., Any], kwargs: dict[str, Any]) -> None:
    parameters = _parameters(creator)
    if parameters is None:
        return
    for name in kwargs:
        if name not in parameters:
            raise unknown_name("parameter", name, (*parameters, "reward"))
    missing = [n for n, default in parameters.items() if default == "required" and n not in kwargs]
    if missing:
        raise EnvError(f"{missing[0]} is missing: it has no default; pass {missing[0]}=...")


def _parameters(creator: Callable[..., Any]) -> dict[str, Any] | None:
    """Returns names and defaults of the arguments, or None when any name is accepted."""
    found = {}
    for parameter in inspect.signature(creator).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            return None
        if parameter.kind is not parameter.VAR_POSITIONAL:
            required = parameter.default is parameter.empty
            found[parameter.name] = "required" if required else parameter.default
    return found


def make(id: str, *, reward: str | None = None, **kwargs: Any) -> gym.Env[Any, Any]:
    """Creates any registered environment, with the reward switch on it.

    ``reward`` is ``outcome``, ``dense`` or ``dense@end``; ``module:my/Env-v0`` imports the module
    first. An environment of another library gets the switch when ``reward`` is given, and then must
    put an ``outcome`` in its last info. ``max_episode_steps`` works as in gymnasium.
    Raises `UnknownNameError` for an unknown id, reward or argument, with the nearest valid name.
    """
    if reward is not None:
        reward_name(reward)
    if kwargs.get("max_episode_steps") != -1:  # gymnasium's word for no limit
        _check_limit(kwargs.get("max_episode_steps"))
    spec = _find(id)
    if spec.entry_point == _BUILD:
        return (
            gym.make(spec, **kwargs) if reward is None else gym.make(spec, reward=reward, **kwargs)
        )
    creator = spec.entry_point
    if creator is not None:
        call = _loaded(creator)
        checked = {k: v for k, v in kwargs.items() if k not in ("max_episode_steps", "render_mode")}
        _check_arguments(call, {**spec.kwargs, **checked})
    env = gym.make(spec, **kwargs)
    return env if reward is None else RewardSetup(env, reward=reward)


def _find(id: str) -> Any:
    """Returns the spec of an id, its module imported first; gymnasium's own errors become ours."""
    if not isinstance(id, str):
        raise EnvError(f"id={id!r}: must be a text such as 'stepcredit/Doors-v0'")
    module, _, name = id.rpartition(":")
    if module:
        try:
            importlib.import_module(module)
        except (Exception, SystemExit) as problem:  # a module may raise anything
            raise EnvError(
                f"{id!r}: module {module!r} cannot be imported ({described(problem)}); "
                "it must be on the Python path and register the environment"
            ) from problem
    if name in gym.registry:
        return gym.registry[name]
    raise _unknown(id, module)


def _unknown(id: str, module: str) -> UnknownNameError:
    """Returns the error for an id that is not registered; only what can be trained is suggested."""
    own = [row for row, spec in gym.registry.items() if _is_text(spec)]
    if module:
        own = [row if row.startswith("stepcredit/") else f"{module}:{row}" for row in own]
        return unknown_name("environment", id, own)
    module = id if id.isidentifier() else "my_envs"
    named = f"{module}:{id if '/' in id else 'my/Env-v0'}"
    return unknown_name(
        "environment",
        id,
        own,
        otherwise=f"one of your own is named with its module, {named}, where {module}.py lies in "
        "the folder that the command is called from, or on the Python path",
    )


def _is_text(spec: EnvSpec) -> bool:
    """Says whether a registered environment is one in text, as far as can be told unloaded."""
    creator: Any = spec.entry_point
    if isinstance(creator, str):
        module, _, name = creator.partition(":")
        creator = getattr(sys.modules.get(module), name, None)
    return spec.entry_point == _BUILD or (inspect.isclass(creator) and issubclass(creator, Env))


def list_envs() -> list[EnvRow]:
    """Returns the environments registered here, by id, with their parameters and defaults.

    One whose module cannot be loaded is listed with the reason as its summary.
    """
    rows = []
    for id, spec in sorted(gym.registry.items()):
        if spec.entry_point != _BUILD:
            continue
        try:
            creator = _loaded(spec.kwargs["env_entry_point"])
        except EnvError as problem:
            rows.append(EnvRow(id, str(problem), {}))
            continue
        summary = (inspect.getdoc(creator) or "").partition("\n")[0]
        defaults = {k: v for k, v in spec.kwargs.items() if k != "env_entry_point"}
        rows.append(EnvRow(id, summary, {**(_parameters(creator) or {}), **defaults}))
    return rows
