"""What an environment's answer must be like, for whoever takes it in: a breach is an `EnvError`."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from stepcredit.envs.core import Message, StepResult, StepReward, is_messages
from stepcredit.envs.errors import EnvError

# Rewards are trained on as 32-bit numbers, which end at 3e38: this leaves room for their sums.
MAX_NUMBER = 1e30
WHOLE = (int, np.integer)
NUMBERS = (int, float, np.integer, np.floating, np.bool_)
# Below this share of what was summed, a left-over is the rounding of the environment's own sum.
ROUNDING = 1e-9


def left_over(reward: float, spans: Sequence[StepReward]) -> float:
    """Returns what the spans leave of the reward; rounding counts as 0."""
    rest = reward - math.fsum(span.value for span in spans)
    scale = max(1.0, math.fsum(abs(span.value) for span in spans))
    return rest if abs(rest) > ROUNDING * scale else 0.0


def is_number(value: Any) -> bool:
    """Says whether the value is a real number of at most `MAX_NUMBER` in size."""
    return isinstance(value, NUMBERS) and bool(-MAX_NUMBER <= value <= MAX_NUMBER)


def checked_number(name: str, value: Any) -> float:
    """Returns the value as a float; raises `EnvError` unless it is one of at most `MAX_NUMBER`."""
    if not is_number(value):
        raise EnvError(
            f"{name}={shown(value)}: must be a finite number from -{MAX_NUMBER:g} to {MAX_NUMBER:g}"
        )
    return float(value)


def checked_text(name: str, value: Any) -> str:
    """Returns the text; raises `EnvError` unless it is one that can be stored as UTF-8."""
    if not isinstance(value, str):
        raise EnvError(f"{name}={shown(value)}: must be a text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise EnvError(
            f"{name}={value[:60]!a}: must be Unicode text without lone surrogates; decode "
            "bytes with errors='replace'"
        ) from None
    return value


def checked_bool(name: str, value: Any) -> bool:
    """Returns the value as a bool; raises `EnvError` unless it is one."""
    if not isinstance(value, bool | np.bool_):
        raise EnvError(f"{name}={shown(value)}: must be a bool")
    return bool(value)


def checked_answer(answer: Any) -> StepResult:
    """Returns what ``step`` answered; raises `EnvError` unless it has the shape of an answer.

    Reward and the keys of the info are left to whoever needs them, and so is everything but the
    status of an environment that could not score.
    """
    if not (isinstance(answer, tuple) and len(answer) == 5):
        raise EnvError(
            f"step() returned {shown(answer)}: must be five values "
            "(observation, reward, terminated, truncated, info)"
        )
    obs, reward, terminated, truncated, info = answer
    if not isinstance(info, dict):
        raise EnvError(f"info={shown(info)}: must be a dict; return {{}} for none")
    if scored(info):
        terminated = checked_bool("terminated", terminated)
        truncated = checked_bool("truncated", truncated)
    return obs, reward, terminated, truncated, info


def scored(info: dict[str, Any]) -> bool:
    """Says whether the environment could score the step."""
    return bool(info.get("status", "ok") == "ok")


def checked_first(obs: Any) -> list[Message]:
    """Returns a first observation as messages, at least one; raises `EnvError`."""
    messages = checked_messages(obs)
    if not messages:
        raise EnvError("observation=[]: must hold a message, as nothing precedes it")
    return messages


def checked_messages(obs: Any) -> list[Message]:
    """Returns an observation as messages, a text as one of the user; raises `EnvError`."""
    if not isinstance(obs, str) and not is_messages(obs):
        raise EnvError(
            f"observation={shown(obs)}: must be a text or a list of messages with role and content"
        )
    messages = [Message(role="user", content=obs)] if isinstance(obs, str) else obs
    return [
        Message(
            role=checked_text("role", message["role"]),
            content=checked_text("observation", message["content"]),
        )
        for message in messages
    ]


def checked_spans(info: dict[str, Any], name: str = "step_rewards") -> list[StepReward]:
    """Returns the judged steps in their order in the text; raises `EnvError` for anything else."""
    spans = info.get(name, [])
    if not isinstance(spans, list | tuple):
        raise EnvError(f"{name}={shown(spans)}: must be a list of StepReward; leave out the key")
    for span in spans:
        if not isinstance(span, StepReward):
            raise EnvError(f"{name} holds {shown(span)}: must be a StepReward")
        if not isinstance(span.start, WHOLE) or not isinstance(span.end, WHOLE):
            raise EnvError(f"{name} holds {shown(span)}: start and end must be whole numbers")
        if not is_number(span.value):
            checked_number(f"the value of {shown(span)}", span.value)
    return sorted(spans, key=lambda span: span.start)


def checked_info(info: dict[str, Any]) -> dict[str, Any]:
    """Returns the info of a step; raises `EnvError` where a key that means something is wrong."""
    for name in ("step_rewards", "env_step_rewards"):
        checked_spans(info, name)
    if "outcome" in info and not 0.0 <= checked_number("outcome", info["outcome"]) <= 1.0:
        raise EnvError(f"outcome={info['outcome']}: must be in [0, 1]")
    checked_bool("success", info.get("success", False))
    if "env_reward" in info:
        checked_number("env_reward", info["env_reward"])
    for key in ("components", "reward_forms", "owed"):
        parts = info.get(key, {})
        if not isinstance(parts, dict):
            raise EnvError(f"{key}={shown(parts)}: must be a dict of numbers by name")
        for name, value in parts.items():
            checked_text("a name of a part", name)
            if not is_number(value):
                checked_number(f"{key}[{name!r}]", value)
    return info


def shown(value: object) -> str:
    """Returns the value as Python would write it, cut to 80 characters, also where that fails."""
    try:
        text = repr(value)
    except Exception as problem:
        return f"<{type(value).__name__} whose repr raises {type(problem).__name__}>"
    return text if len(text) <= 80 else f"{text[:77]}..."
