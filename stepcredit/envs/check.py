"""The contract check: plays an environment in every way a training run will and names what breaks.

Rules: ``make``, ``copy``, ``actions``, ``hangs``, ``raises``, ``tuple``, ``types``, ``finite``,
``spans``, ``json``, ``status``, ``outcome``, ``ends``, ``alphabet``, ``gold``,
``deterministic``, ``leak``, ``task``, ``close``.
"""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from stepcredit.envs.bounded import described
from stepcredit.envs.check_play import Broken, Episode, Player, random_policy, repeat_policy
from stepcredit.envs.check_values import Problem, check_alphabet, same
from stepcredit.envs.contract import shown
from stepcredit.envs.core import Env
from stepcredit.envs.errors import EnvError
from stepcredit.envs.registry import make
from stepcredit.envs.rewards import RewardSetup

# The longest wait for one call unless the caller says otherwise, in seconds.
CALL_SECONDS = 10.0

# Training draws tasks and seeds of 63 bits.
LARGE_SEED = 2**63 - 1

_AWKWARD_ACTIONS = ("", " ", "\n", "0", "é\U0001f600\x00", "9" * 300)

Factory = Callable[[], gym.Env[Any, Any]]


def check_env(
    env_or_id: str | gym.Env[Any, Any] | Callable[..., gym.Env[Any, Any]],
    *,
    call_timeout: float = CALL_SECONDS,
    **kwargs: Any,
) -> list[Problem]:
    """Returns every broken rule of an environment's contract; an empty list is a pass.

    ``env_or_id`` is an id (made with ``kwargs``), a class or function (called with ``kwargs``) or
    an environment, which is copied and left alone. No call into it is waited for longer than
    ``call_timeout`` seconds, and nothing it raises while it plays gets out of here.
    Raises `EnvError` when the id or an argument is refused.
    """
    player = Player(call_timeout)
    create: Callable[[], Any]
    if isinstance(env_or_id, gym.Env):
        create = partial(copy.deepcopy, env_or_id)
    elif isinstance(env_or_id, str):
        create = partial(make, env_or_id, **kwargs)
    else:
        create = partial(env_or_id, **kwargs)
    making = ("copying the environment", "copy")
    if not isinstance(env_or_id, gym.Env):
        making = ("making the environment", "make")
    fresh = partial(_fresh, player, create, *making)
    try:
        _check_episodes(player, fresh)
        if not player.problems:
            _check_repeats(player, fresh)
        _check_close(player, fresh)
    except Broken as broken:
        player.add(broken.problem)
    except EnvError:
        raise
    except (Exception, SystemExit) as error:  # from the values themselves, when looked at
        player.add(
            Problem(
                "types",
                f"looking at what it returned raised {described(error)}: values must be plain",
                "return text, numbers, bools, and lists and dicts of them",
            )
        )
    return player.problems


def _fresh(player: Player, create: Callable[[], Any], what: str, rule: str) -> gym.Env[Any, Any]:
    """Makes a new environment, without the wrappers whose own errors would hide its errors."""
    try:
        env = player.call(what, create, rule)
    except Broken as broken:
        if isinstance(broken.__cause__, EnvError):
            raise broken.__cause__ from None
        raise
    if not isinstance(env, gym.Env):
        raise Broken(
            Problem(
                "make",
                f"got a {type(env).__name__}: must be a gymnasium.Env",
                "subclass stepcredit.envs.Env",
            )
        )
    limit = env.spec.max_episode_steps if env.spec is not None else None
    while isinstance(env, RewardSetup | OrderEnforcing | PassiveEnvChecker | TimeLimit):
        env = env.env
    if limit is not None and env.spec is not None:
        env.spec.max_episode_steps = limit
    if not isinstance(player.call("action_space.sample()", lambda: env.action_space.sample()), str):
        raise Broken(
            Problem(
                "actions",
                f"action_space is {shown(env.action_space)}: actions must be text",
                "use stepcredit.envs.TextSpace() and read the text in step()",
            )
        )
    return env


def _check_episodes(player: Player, fresh: Factory) -> None:
    """Plays random, awkward, expert and right actions on one environment."""
    env = fresh()
    player.play(env, random_policy(0), seed=0)
    player.play(env, lambda _, step: _AWKWARD_ACTIONS[step % len(_AWKWARD_ACTIONS)], seed=1)
    inner: Any = env.unwrapped
    alphabet = ""
    if hasattr(inner, "alphabet"):
        offered: Any = player.call("alphabet", lambda: inner.alphabet)
        faults = check_alphabet(offered)
        player.add(*faults)
        alphabet = "" if faults else offered
    if hasattr(inner, "demonstration"):
        noisy = partial(inner.demonstration, np.random.default_rng(0))
        player.play(env, player.expert("demonstration(rng)", noisy), seed=2, alphabet=alphabet)
    if hasattr(inner, "gold"):
        right = player.expert("gold()", inner.gold)
        episode = player.play(env, right, seed=2, alphabet=alphabet)
        if not player.problems and episode.outcome != 1.0:
            player.add(
                Problem(
                    "gold",
                    f"gold() actions ended with outcome {episode.outcome}: must be 1.0",
                    "make gold() return what step() accepts as right",
                )
            )
    if isinstance(inner, Env):
        for split in inner.splits:
            options = {"task": LARGE_SEED, "split": split, "chance_seed": LARGE_SEED}
            player.play(env, random_policy(0), seed=LARGE_SEED, options=options)
    player.call("close()", env.close, rule="close")


def _check_repeats(player: Player, fresh: Factory) -> None:
    """Compares episodes that must be equal: same seed, on a new and on a used environment."""
    first = player.play(fresh(), random_policy(1), seed=3)
    again = player.play(fresh(), repeat_policy(first), seed=3)
    if not same(first.shown, again.shown):
        player.add(_differs("deterministic", "a new environment, the same seed", first, again))
        return
    used = fresh()
    player.play(used, random_policy(2), seed=4)
    later = player.play(used, repeat_policy(first), seed=3)
    if not same(first.shown, later.shown):
        player.add(_differs("leak", "another episode before it, the same seed", first, later))
        return
    # A training run cuts episodes at its own limits and uses the environment again.
    cut = fresh()
    player.play(cut, random_policy(2), seed=4, most=1)
    after = player.play(cut, repeat_policy(first), seed=3)
    if not same(first.shown, after.shown):
        before = "an episode before it that was cut short, the same seed"
        player.add(_differs("leak", before, first, after))
    elif isinstance(used.unwrapped, Env):
        _check_task(player, fresh())


def _check_task(player: Player, env: gym.Env[Any, Any]) -> None:
    """Task and chance seed must be taken from the options, and together decide everything."""
    options = {"task": 5, "chance_seed": 6}
    first = player.play(env, random_policy(1), seed=7, options=options)
    again = player.play(env, repeat_policy(first), seed=8, options=options)
    given = (getattr(env.unwrapped, "task", None), getattr(env.unwrapped, "chance_seed", None))
    if given != (5, 6):
        player.add(
            Problem(
                "task",
                f"reset(options={options}) left task and chance_seed at {given}: must be (5, 6)",
                "call super().reset(seed=seed, options=options) first in reset",
            )
        )
    elif not same(first.shown, again.shown):
        player.add(_differs("deterministic", f"another seed, options {options}", first, again))
    elif _ignores_task(player, env):
        player.add(
            Problem(
                "task",
                "the first observation is equal for six tasks and differs between chance seeds: "
                "members of a group must meet the same task",
                "draw the problem from self.task_rng, and only later luck from self.chance",
            )
        )


def _ignores_task(player: Player, env: gym.Env[Any, Any]) -> bool:
    """Says whether the first observation follows the chance and not the task."""

    def first(task: int, chance: int) -> Any:
        options = {"task": task, "chance_seed": chance}
        return player.call("reset", lambda: env.reset(seed=0, options=options))[0]

    by_chance = [[first(task, chance) for task in range(6)] for chance in range(6)]
    if not all(same(row[0], obs) for row in by_chance for obs in row):
        return False
    return not all(same(by_chance[0][0], row[0]) for row in by_chance)


def _check_close(player: Player, fresh: Factory) -> None:
    """Closes an unused environment, and closes it again."""
    env = fresh()
    player.call("close()", env.close, rule="close")
    player.call("a second close()", env.close, rule="close")


def _differs(rule: str, condition: str, first: Episode, second: Episode) -> Problem:
    fixes = {
        "deterministic": "draw everything from self.task_rng and self.chance, never from a global "
        "generator, the clock or the order of a set",
        "leak": "set every attribute of an episode anew in reset",
    }
    pairs = zip(first.shown, second.shown, strict=False)
    step, (one, two) = next(
        ((number, pair) for number, pair in enumerate(pairs) if not same(*pair)),
        (min(len(first.shown), len(second.shown)), ("an end", "no end")),
    )
    return Problem(
        rule,
        f"with {condition} and the same actions, step {step} gave {shown(two)} "
        f"instead of {shown(one)}: must be equal",
        fixes[rule],
    )
