"""Run the attack corpus and name what went wrong; also a script, to run it as another user."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from stepcredit.sandbox import Sandbox, open_sandbox
from tests.sandbox.attack import Attack
from tests.sandbox.attacks import ATTACKS


def tree(pid: int) -> list[int]:
    """List a process and all its descendants."""
    found = [pid]
    # Each thread has children of its own; threads and processes may end while they are listed.
    with contextlib.suppress(OSError):
        for tasks in Path("/proc", str(pid), "task").iterdir():
            with contextlib.suppress(OSError):
                children = (tasks / "children").read_text().split()
                found += [below for child in children for below in tree(int(child))]
    return found


def faults(sandbox: Sandbox, attacks: Iterable[Attack] = ATTACKS) -> list[str]:
    """Run every attack and check its status, what it left running, the canary and the next job."""
    found = []
    secret = secrets.token_hex(16)
    with (
        tempfile.NamedTemporaryFile("w+", prefix="canary-", dir="/var/tmp") as canary,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        canary.write(secret)
        canary.flush()
        right = sandbox.grade("def f(x): return x", ["assert f(3) == 3"])
        time.sleep(0.2)
        idle = settle(sandbox, 0)
        if right.status != "passed":
            found.append(f"an honest program: {right.status} ({right.message})")
        for attack in attacks:
            code, port = attack.code, listener.getsockname()[1]
            for name, value in (("canary", canary.name), ("port", port), ("pid", os.getpid())):
                code = code.replace("{" + name + "}", str(value))
            verdict = sandbox.grade(code, attack.tests, timeout_s=attack.timeout_s)
            if verdict.status not in attack.allowed:
                found.append(f"{attack.name}: {verdict.status} ({verdict.message})")
            if "passed" not in attack.allowed and verdict.passed:
                found.append(f"{attack.name}: {verdict.passed} of its tests passed")
            if secret in repr(verdict) or Path(canary.name).read_text() != secret:
                found.append(f"{attack.name}: reached the canary")
            if not all(char.isprintable() for char in verdict.message):
                found.append(f"{attack.name}: control characters in the message")
            if settle(sandbox, idle) != idle:
                found.append(f"{attack.name}: processes left running")
            if sandbox.grade("def f(x): return x", ["assert f(3) == 3"]).status != "passed":
                found.append(f"{attack.name}: the next job is wrong")
    return found


def settle(sandbox: Sandbox, expected: int) -> int:
    """Count the workers' processes, waiting up to a second for the expected number."""
    for _ in range(100 if expected else 1):
        count = sum(len(tree(pid)) for pid in sandbox.worker_pids())
        if count == expected:
            break
        time.sleep(0.01)
    return count


def main() -> None:
    """Print the faults as JSON, with the user they were found for."""
    with open_sandbox("bwrap", workers=1) as sandbox:
        print(json.dumps({"uid": os.getuid(), "faults": faults(sandbox)}))


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())
    main()
