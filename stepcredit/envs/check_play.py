"""The part of the contract check that plays: bounded calls, whole episodes, what they showed."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import gymnasium as gym
import numpy as np

from stepcredit.envs.bounded import HangError, call_all
from stepcredit.envs.check_values import (
    Problem,
    check_action,
    check_characters,
    check_end,
    check_reset,
    check_state_key,
    check_step,
)
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
        alphabet: str = "",
        most: int | None = None,
    ) -> Episode:
        """Plays one episode, judging all it returns; raises `Broken` when it cannot go on.

        With an `alphabet`, what is read and said must keep to it. After `most` steps it is left.
        """
        call = f"reset(seed={seed}, options={options})"
        start = self.call(call, lambda: env.reset(seed=seed, options=options))
        self._judge(check_reset(start))
        self._look(env, start[0], alphabet)
        episode = Episode(shown=[start[0]])
        limit = env.spec.max_episode_steps if env.spec is not None else None
        for number in range(STEP_LIMIT):
            action = policy(env, number)
            self.add(*check_characters("the action", action, alphabet))
            result = self.call(f"step({shown(action)})", partial(env.step, action))
            self._judge(check_step(result, action))
            obs, reward, terminated, truncated, info = result
            parts = (info.get("step_rewards"), info.get("components"))
            episode.actions.append(action)
            episode.shown.append((obs, float(reward), terminated, truncated, *parts))
            if terminated or truncated:
                self.add(*check_end(info))
                episode.outcome = info.get("outcome")
                episode.shown.append((info.get("outcome"), info.get("success")))
                return episode
            if getattr(env.unwrapped, "one_turn", False):
                raise Broken(
                    Problem(
                        "ends",
                        "one_turn is True and the episode went on after its first action: must end",
                        "return terminated=True with the first step, or leave one_turn out",
                    )
                )
            self._look(env, obs, alphabet)
            if number + 1 in (most, limit):
                return episode
        raise Broken(
            Problem(
                "ends",
                f"an episode was still going after {STEP_LIMIT} steps: every episode must end",
                "return terminated=True at some point, or register with max_episode_steps=...",
            )
        )

    def _look(self, env: gym.Env[Any, Any], obs: Any, alphabet: str) -> None:
        """Judges what a policy would read before its next action, and its name as a state."""
        for text in [obs] if isinstance(obs, str) else [message["content"] for message in obs]:
            self.add(*check_characters("observation", text, alphabet))
        inner: Any = env.unwrapped
        if hasattr(inner, "state_key"):
            self._judge(check_state_key(self.call("state_key()", inner.state_key)))

    def expert(self, what: str, call: Callable[[], Any]) -> Policy:
        """Returns the policy that asks the environment itself what to do."""

        def act(env: gym.Env[Any, Any], step: int) -> str:
            action: Any = self.call(what, call)
            self._judge(check_action(what, action))
            said: str = action
            return said

        return act

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
