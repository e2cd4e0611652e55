"""The part of the contract check that plays: bounded calls, whole episodes, what they showed."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import gymnasium as gym
import numpy as np

from stepcredit.envs.bounded import HangError, call_all
from stepcredit.envs.check_values import Problem, check_end, check_reset, check_step
from stepcredit.envs.contract import shown

STEP_LIMIT = 1000

_RAISE_FIXES = {
    "make": "mend the constructor",
    "copy": "pass the class or the id instead of an instance",
    "raises": "judge bad input as wrong (reward 0); when the environment itself fails return "
    "info['status'] = 'error'",
    "close": "let close() work on a new, a used and a closed environment",
}

T = TypeVar("T")
Policy = Callable[[gym.Env[Any, Any], int], str]


class Broken(Exception):
    """Stops the check at a problem after which nothing else can be judged."""

    def __init__(self, problem: Problem):
        super().__init__(problem.message)
        self.problem = problem


@dataclass
class Episode:
    """What an episode showed, as far as it must repeat, and the actions that led there."""

    shown: list[Any] = field(default_factory=list)
    actions: list[str] = field(default_factory=list)
    outcome: Any = None


class Player:
    """Calls an environment with bounded waits and keeps the problems met, one per rule."""

    def __init__(self, call_timeout: float):
        self.call_timeout = call_timeout
        self.problems: list[Problem] = []

    def add(self, *problems: Problem) -> None:
        """Keeps the first problem of every rule."""
        for problem in problems:
            if problem.rule not in {known.rule for known in self.problems}:
                self.problems.append(problem)

    def call(self, what: str, function: Callable[[], T], rule: str = "raises") -> T:
        """Returns ``function()``; raises `Broken` when it hangs or raises."""
        (outcome,) = call_all([function], timeout_s=self.call_timeout)
        if isinstance(outcome.problem, HangError):
            raise Broken(
                Problem(
                    "hangs",
                    f"{what} did not return within {self.call_timeout:g} s: every call must",
                    "bound every wait inside the environment, or pass a longer call_timeout",
                )
            )
        if outcome.problem is not None:
            raise Broken(
                Problem(rule, f"{what} raised {outcome.error}: must not raise", _RAISE_FIXES[rule])
            ) from outcome.problem
        value: T = outcome.value
        return value

    def play(
        self,
        env: gym.Env[Any, Any],
        policy: Policy,
        *,
        seed: int,
        options: dict[str, Any] | None = None,
    ) -> Episode:
        """Plays one episode, judging all it returns; raises `Broken` when it cannot go on."""
        call = f"reset(seed={seed}, options={options})"
        start = self.call(call, lambda: env.reset(seed=seed, options=options))
        self._judge(check_reset(start))
        episode = Episode(shown=[start[0]])
        limit = env.spec.max_episode_steps if env.spec is not None else None
        for number in range(STEP_LIMIT):
            action = policy(env, number)
            result = self.call(f"step({shown(action)})", partial(env.step, action))
            self._judge(check_step(result, action))
            obs, reward, terminated, truncated, info = result
            spans = info.get("step_rewards")
            episode.actions.append(action)
            episode.shown.append((obs, float(reward), terminated, truncated, spans))
            if terminated or truncated:
                self.add(*check_end(info))
                episode.outcome = info.get("outcome")
                episode.shown.append((info.get("outcome"), info.get("success")))
                return episode
            if limit is not None and number + 1 >= limit:
                return episode
        raise Broken(
            Problem(
                "ends",
                f"an episode was still going after {STEP_LIMIT} steps: every episode must end",
                "return terminated=True at some point, or register with max_episode_steps=...",
            )
        )

    def _judge(self, problems: list[Problem]) -> None:
        self.add(*problems)
        if any(problem.rule in ("tuple", "types", "status") for problem in problems):
            raise Broken(problems[0])


def random_policy(seed: int) -> Policy:
    """Samples the action space, seeded per episode."""
    rng = np.random.default_rng(seed)

    def act(env: gym.Env[Any, Any], step: int) -> str:
        if step == 0:
            env.action_space.seed(int(rng.integers(2**31)))
        action: str = env.action_space.sample()
        return action

    return act


def repeat_policy(episode: Episode) -> Policy:
    """Repeats the actions of an episode, then says nothing."""
    return lambda _, step: episode.actions[step] if step < len(episode.actions) else ""
