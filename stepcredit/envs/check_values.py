"""The part of the contract check that looks at one returned value at a time."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from numbers import Integral, Real
from typing import Any

import numpy as np

from stepcredit.envs.contract import (
    MAX_NUMBER,
    checked_first,
    checked_info,
    checked_messages,
    checked_text,
    is_number,
    shown,
)
from stepcredit.envs.core import StepReward, is_messages
from stepcredit.envs.errors import EnvError
from stepcredit.envs.rewards import check_part_names

_SPAN_KEYS = ("step_rewards", "env_step_rewards")


@dataclass(frozen=True)
class Problem:
    """One broken rule: its short name, what was seen and must be, and what to do."""

    rule: str
    message: str
    fix: str

    def __str__(self) -> str:
        """One line."""
        return f"{self.rule}: {self.message}; {self.fix}"


def check_reset(result: Any) -> list[Problem]:
    """Judges what ``reset`` returned."""
    if not isinstance(result, tuple) or len(result) != 2:
        return [
            Problem(
                "tuple",
                f"reset returned {_described(result)}: must be a tuple of 2, observation and info",
                "return obs, {}",
            )
        ]
    obs, info = result
    problems = _types("reset", obs, info)
    if not problems:
        problems = _refused(lambda: checked_first(obs), "return text, or the task as a message")
    return [*problems, *_json("reset", info)]


def check_step(result: Any, action: str) -> list[Problem]:
    """Judges what ``step(action)`` returned."""
    if not isinstance(result, tuple) or len(result) != 5:
        return [
            Problem(
                "tuple",
                f"step returned {_described(result)}: must be a tuple of 5",
                "return obs, reward, terminated, truncated, info",
            )
        ]
    obs, reward, terminated, truncated, info = result
    problems = _types("step", obs, info)
    if isinstance(reward, bool) or not isinstance(reward, Real):
        problems.append(
            Problem("types", f"reward is {_described(reward)}: must be a number", "return a float")
        )
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(flag, bool | np.bool_):
            problems.append(
                Problem(
                    "types", f"{name} is {_described(flag)}: must be a bool", f"pass bool({name})"
                )
            )
    if problems:
        return problems
    if info.get("status", "ok") != "ok":
        return [
            Problem(
                "status",
                f"step reported status {info['status']!r} ({info.get('error', 'no reason')}): "
                "must be 'ok' on a healthy machine",
                "mend what the reason names",
            )
        ]
    apart = ("step_rewards", "outcome", "success")  # with rules of their own
    return [
        *_finite("reward", reward),
        *_spans(info.get("step_rewards", []), action),
        *_refused(
            lambda: checked_info({key: info[key] for key in info if key not in apart}),
            "see the keys of info that mean something, in stepcredit.envs.core",
        ),
        *_refused(lambda: check_part_names(info), "leave it out where it is the same"),
        *_result(info),
        *_json("step", info),
    ]


def check_state_key(key: Any) -> list[Problem]:
    """Judges what ``state_key()`` returned."""
    return _refused(lambda: checked_text("state_key", str(key)), "return text that UTF-8 can hold")


def check_alphabet(alphabet: Any) -> list[Problem]:
    """Judges what an environment offers as its ``alphabet``."""
    if isinstance(alphabet, str) and alphabet:
        return []
    return [
        Problem(
            "alphabet",
            f"alphabet is {_described(alphabet)}: must be a text of at least one character",
            "make it an attribute or a property that holds every character in use",
        )
    ]


def check_action(what: str, action: Any) -> list[Problem]:
    """Judges an action that the environment itself names."""
    if isinstance(action, str):
        return _refused(lambda: checked_text(what, action), "return text that UTF-8 can hold")
    return [
        Problem("types", f"{what} gave {_described(action)}: must be text", "return the action")
    ]


def check_characters(what: str, text: str, alphabet: str) -> list[Problem]:
    """Judges whether the alphabet, where there is one, holds the characters of a text."""
    missing = sorted(set(text) - set(alphabet)) if alphabet else []
    if not missing:
        return []
    named = ", ".join(map(repr, missing[:8]))
    return [
        Problem(
            "alphabet",
            f"{what} {shown(text)} holds {named}: alphabet must hold every character",
            "add what is missing to alphabet",
        )
    ]


def check_end(info: dict[str, Any]) -> list[Problem]:
    """Judges the info of an episode's last step."""
    if "outcome" not in info:
        return [
            Problem(
                "outcome",
                "the episode ended without info['outcome']: the graded result is required",
                "put 'outcome': a number in [0, 1] into the last step's info",
            )
        ]
    return []


def _result(info: dict[str, Any]) -> list[Problem]:
    outcome, success = info.get("outcome", 0.0), info.get("success", False)
    if not isinstance(outcome, Real) or not 0 <= float(outcome) <= 1:
        return [
            Problem(
                "outcome",
                f"info['outcome'] is {outcome!r}: must be a number in [0, 1]",
                "divide by the best possible result",
            )
        ]
    if not isinstance(success, bool | np.bool_):
        return [
            Problem(
                "outcome", f"info['success'] is {success!r}: must be a bool", "pass True or False"
            )
        ]
    return []


def _types(where: str, obs: Any, info: Any) -> list[Problem]:
    problems = []
    if not isinstance(obs, str) and not is_messages(obs):
        problems.append(
            Problem(
                "types",
                f"{where} gave as observation {_described(obs)}: must be text or messages",
                "return text, or [{'role': 'user', 'content': ...}]",
            )
        )
    else:
        problems += _refused(lambda: checked_messages(obs), "return text that UTF-8 can hold")
    if not isinstance(info, dict):
        problems.append(
            Problem(
                "types", f"{where} gave as info {_described(info)}: must be a dict", "return {}"
            )
        )
    return problems


def _refused(look: Callable[[], Any], fix: str) -> list[Problem]:
    """The problem that a rollout would have with a value, where it has one."""
    try:
        look()
    except EnvError as problem:
        return [Problem("types", f"{problem}", fix)]
    return []


def _finite(what: str, value: Any) -> list[Problem]:
    if is_number(value):
        return []
    return [
        Problem(
            "finite",
            f"{what} is {shown(value)}: must be finite, at most {MAX_NUMBER:g} in size",
            "judge the case it comes from as wrong, or report info['status'] = 'error'",
        )
    ]


def _spans(spans: Any, action: str) -> list[Problem]:
    if not isinstance(spans, list | tuple) or not all(
        isinstance(span, StepReward) for span in spans
    ):
        return [
            Problem(
                "types",
                f"info['step_rewards'] is {_described(spans)}: must be a list of StepReward",
                "return [StepReward(start, end, value), ...]",
            )
        ]
    problems = []
    for span in spans:
        problems += _finite(f"the value of {span}", span.value)
        whole = isinstance(span.start, Integral) and isinstance(span.end, Integral)
        if not whole or not 0 <= span.start < span.end <= len(action):
            problems.append(
                Problem(
                    "spans",
                    f"{span} on an action of {len(action)} characters: must have "
                    f"0 <= start < end <= {len(action)}",
                    "leave out steps that were not written; end is one past the last character",
                )
            )
    if not problems:
        ordered = sorted(spans, key=lambda span: span.start)
        for before, after in pairwise(ordered):
            if after.start < before.end:
                problems.append(
                    Problem(
                        "spans",
                        f"{before} and {after} overlap: a character belongs to one step at most",
                        "end a span where the next one starts",
                    )
                )
    return problems


def _json(where: str, info: Any) -> list[Problem]:
    if not isinstance(info, dict):
        return []
    for key, value in info.items():
        if key in _SPAN_KEYS:
            continue
        try:
            json.dumps({key: value}, allow_nan=False)
        except (TypeError, ValueError) as error:
            return [
                Problem(
                    "json",
                    f"info[{key!r}] of {where} is {_described(value)} ({error}): "
                    "must be serialisable as JSON",
                    "use str, int, float, bool, None, lists and dicts of them; no NaN",
                )
            ]
    return []


def same(one: Any, two: Any) -> bool:
    """Says whether two observed values are equal, arrays and containers included."""
    if isinstance(one, np.ndarray) or isinstance(two, np.ndarray):
        return bool(np.array_equal(one, two))
    if isinstance(one, list | tuple) and isinstance(two, list | tuple):
        return len(one) == len(two) and all(same(a, b) for a, b in zip(one, two, strict=True))
    return bool(one == two)


def _described(value: Any) -> str:
    return f"{type(value).__name__} {shown(value)}"
