"""Attacks on the sandbox as data: a program, its tests, and the statuses that are right for it.

`{canary}` stands for the path of a host file whose content must never be seen, `{port}` for a
listening port of the host, `{pid}` for the process id of the test run. Unless "passed" is among the
allowed statuses no single test of the attack may pass.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Attack:
    """One hostile program; `number` is its class in the list of known attack classes."""

    name: str
    number: int
    code: str
    allowed: tuple[str, ...]
    tests: tuple[str, ...] = ("assert f(1) == 41",)
    timeout_s: float = 1.0


RIGHT = "\ndef f(x):\n    return x + 40\n"
WRONG = "\ndef f(x):\n    return 0\n"
