"""The life of one program inside its process: give up every right, load, answer the calls.

The file imports the standard library, `kernel` and `wire` alone: its source also runs in the jail.
"""

from __future__ import annotations

import builtins
import mmap
import os
import resource
import signal
import sys
import types
from typing import NamedTuple

from stepcredit.sandbox import kernel, wire


class Limits(NamedTuple):
    """What one program may use; `namespaces` is False for the backend without a jail."""

    namespaces: bool
    memory_mb: int
    processes: int
    disk_mb: int


def be_program(
    source: mmap.mmap, reply: int, output: int, timeout_s: float, limits: Limits
) -> None:
    """Drop every right, load the program, answer the calls; never returns."""
    try:
        confine(reply, output, timeout_s, limits)
        code, calls = wire.decode(source[:])
        answer(code, calls, 3)
    finally:
        os._exit(70)


def confine(reply: int, output: int, timeout_s: float, limits: Limits) -> None:
    """Keep stdin at its end, the output pipe and the reply pipe (3); set limits; filter calls."""
    os.setsid()
    if sys.platform == "linux":
        kernel.set_process(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    null = os.open(os.devnull, os.O_RDONLY)
    # Moved out of the way first: dup2 onto 0..3 would close whichever of them sits there.
    high = [os.dup2(fd, 60 + i) for i, fd in enumerate((null, output, output, reply))]
    for target, fd in enumerate(high):
        os.dup2(fd, target)
    os.closerange(4, 128)
    for name, value in rlimits(timeout_s, limits).items():
        kind = getattr(resource, name, None)
        if kind is not None:
            lower_limit(kind, value)
    if limits.namespaces:
        kernel.set_process(kernel.PR_SET_NO_NEW_PRIVS, 1)
        kernel.drop_capabilities()
        # The init hides its own memory, which its children inherit, but looks at theirs.
        kernel.set_process(kernel.PR_SET_DUMPABLE, 1)
        kernel.deny_calls(kernel.PRIVILEGED)


def rlimits(timeout_s: float, limits: Limits) -> dict[str, int]:
    """Give the limit of each resource; address space counts on top of the bare interpreter."""
    try:
        with open("/proc/self/statm") as file:
            base = int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        base = 64 << 20
    return {
        "RLIMIT_AS": base + (limits.memory_mb << 20),
        "RLIMIT_NPROC": limits.processes,
        "RLIMIT_FSIZE": limits.disk_mb << 20,
        "RLIMIT_NOFILE": 64,
        "RLIMIT_CPU": int(timeout_s) + 2,
        "RLIMIT_CORE": 0,
        "RLIMIT_MEMLOCK": 0,
        "RLIMIT_MSGQUEUE": 0,
    }


def lower_limit(kind: int, value: int) -> None:
    """Set soft and hard limit, never above the hard limit already there."""
    hard = resource.getrlimit(kind)[1]
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    try:
        resource.setrlimit(kind, (value, value))
    except (ValueError, OSError):
        # macOS refuses some of them; the self-test reports what then does not hold.
        return


def answer(code: str, calls: list[str], reply: int) -> None:
    """Load the program and send one frame for the load and one per call."""
    module = types.ModuleType("solution")
    names = module.__dict__
    names["__builtins__"] = builtins
    sys.modules["solution"] = module
    me = os.getpid()
    try:
        exec(compile(code, "<solution>", "exec"), names)
        outcome = b"V"
    except BaseException as error:
        outcome = describe(error)
    send(reply, outcome, me)
    for call in calls if outcome == b"V" else ():
        try:
            value = eval(compile(call, "<test>", "eval"), names)
            data, kind = wire.encode(value), wire.own_equality(value)
            mark = b"W" + wire.frame(kind.encode("utf-8", "replace")) if kind else b"V"
            outcome = mark + data
        except wire.WireError as error:
            outcome = b"U" + str(error).encode("utf-8", "replace")
        except BaseException as error:
            outcome = describe(error)
        send(reply, outcome, me)
        outcome = b"V"
    os._exit(0)


def describe(error: BaseException) -> bytes:
    """Say what was raised and on which line of the program."""
    if isinstance(error, MemoryError):
        return b"M"
    line = getattr(error, "lineno", None) if isinstance(error, SyntaxError) else None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<solution>":
            line = trace.tb_lineno
        trace = trace.tb_next
    try:
        text = f"{type(error).__name__}: {error}"
    except BaseException:
        text = type(error).__name__
    where = f" (line {line})" if line else ""
    return b"E" + (text[:300] + where).encode("utf-8", "replace")


def send(reply: int, outcome: bytes, me: int) -> None:
    """Write a frame whole; a copy of the process that the program forked has nothing to say."""
    if os.getpid() != me:
        os._exit(0)
    data = wire.frame(outcome)
    while data:
        data = data[os.write(reply, data) :]
