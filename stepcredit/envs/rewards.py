"""The reward switch: what is paid (content) and when (placement), for any environment.

============  =========================================  ==========================
set-up        content                                    placement
============  =========================================  ==========================
``outcome``   binary: 1 when all is right, else 0        end of the episode
``dense@end`` partial: the environment's own total       end of the episode
``dense``     partial: the environment's own rewards     each step
============  =========================================  ==========================

Only ``dense@end`` and ``dense`` have equal content: their difference is about credit, while
``outcome`` against ``dense@end`` is about what the reward says.

All set-ups have the same steps, which the environment alone decides: its spans, and, where its own
reward leaves something over that is more than rounding, the unjudged end of that action. A set-up
changes values only: paid at the end, every step is worth 0 and the episode's total lies on the last
step of the last turn.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import gymnasium as gym
from gymnasium.utils import RecordConstructorArgs

from stepcredit.envs.contract import (
    checked_answer,
    checked_bool,
    checked_number,
    checked_spans,
    left_over,
    scored,
)
from stepcredit.envs.core import StepResult, StepReward
from stepcredit.envs.errors import EnvError, unknown_name

REWARDS = ("outcome", "dense", "dense@end")
SYNONYMS = {"binary@end": "outcome", "partial@step": "dense", "partial@end": "dense@end"}


def reward_name(reward: str) -> str:
    """Returns the set-up's name, synonyms resolved; raises `UnknownNameError` for any other."""
    name = SYNONYMS.get(reward, reward) if isinstance(reward, str) else ""
    if name not in REWARDS:
        raise unknown_name("reward", str(reward), (*REWARDS, *SYNONYMS))
    return name


class RewardSetup(gym.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Pays one of the three set-ups and records what every one of them would have paid.

    Adds to the info of each step: ``reward_forms`` (what this step pays under each set-up),
    ``env_reward`` and ``env_step_rewards`` (the environment's own), and ``owed`` (what has been
    earned but not paid yet under each set-up: whoever cuts an episode short pays it).
    """

    def __init__(self, env: gym.Env[Any, Any], reward: str | None = None):
        """Without ``reward`` the one given to ``gymnasium.make`` counts, else ``dense``."""
        RecordConstructorArgs.__init__(self, reward=reward)
        super().__init__(env)
        if reward is None:
            spec = env.unwrapped.spec
            reward = (spec.kwargs.get("reward") if spec is not None else None) or "dense"
        self.reward = reward_name(reward)
        self._earned: list[float] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Starts an episode with nothing earned."""
        self._earned = []
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> StepResult:
        """Steps the environment and pays by the set-up.

        A step that the environment could not score pays 0. Raises `EnvError` for an answer of
        another shape, for an episode that ends without an outcome, for a reward, an outcome, a
        success or step rewards that are none, and for a component named as a set-up.
        """
        obs, reward, terminated, truncated, info = checked_answer(self.env.step(action))
        if not scored(info):
            return obs, 0.0, terminated, truncated, info
        own_reward = checked_number("reward", reward)
        own_spans = checked_spans(info)
        check_part_names(info)
        ended = terminated or truncated
        self._earned.append(own_reward)
        total = math.fsum(self._earned)
        success = _success(info, terminated, self.env) if ended else False
        forms = {
            "outcome": float(success),
            "dense": own_reward,
            "dense@end": total if ended else 0.0,
        }
        info = {
            **info,
            "reward_forms": forms,
            "env_reward": own_reward,
            "owed": {"outcome": 0.0, "dense": 0.0, "dense@end": 0.0 if ended else total},
        }
        if ended:
            info["success"] = success
        if "step_rewards" in info:
            info["env_step_rewards"] = own_spans
            info["step_rewards"] = (
                own_spans
                if self.reward == "dense"
                else _paid_at_end(own_spans, own_reward, len(action), forms[self.reward])
            )
        return obs, forms[self.reward], terminated, truncated, info


def check_part_names(info: dict[str, Any]) -> None:
    """Raises `EnvError` where a component has a set-up's name: totals are recorded under both."""
    parts = info.get("components", {})
    for name in REWARDS:
        if isinstance(parts, dict) and name in parts:
            raise EnvError(
                f"components names a part {name!r}: must not be one of {', '.join(REWARDS)}, under "
                f"which the set-ups are recorded; rename it"
            )


def _success(info: dict[str, Any], terminated: bool, env: gym.Env[Any, Any]) -> bool:
    if "success" in info:
        return checked_bool("success", info["success"])
    if "outcome" in info:
        return checked_number("outcome", info["outcome"]) >= 1.0
    if terminated:
        raise EnvError(
            f"{type(env.unwrapped).__name__} ended an episode without info['outcome']: the result "
            "in [0, 1] is required at the end; return {'outcome': ...} with the last step"
        )
    return False


def _paid_at_end(
    spans: Sequence[StepReward], own_reward: float, length: int, amount: float
) -> list[StepReward]:
    """The environment's steps in a turn, all worth 0 but the last, which gets the amount."""
    steps = [replace(span, value=0.0) for span in spans]
    if steps and steps[-1].end < length and left_over(own_reward, spans):
        steps.append(StepReward(steps[-1].end, length, 0.0))
    return [*steps[:-1], replace(steps[-1], value=amount)] if steps else []
