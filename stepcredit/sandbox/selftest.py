"""Self-tests: each backend tries, inside its own jail, what it promises to prevent."""

from __future__ import annotations

import functools
import secrets
import socket
import subprocess
import tempfile
from dataclasses import dataclass
from typing import Any

from stepcredit.sandbox import bwrap, local, wire
from stepcredit.sandbox.pool import Command, Job, Report, Worker, WorkerLost, python_args
from stepcredit.sandbox.program import Limits

COMMANDS: dict[str, Command] = {"bwrap": bwrap.command, "unsafe_local": local.command}
DISK_MB = 16
MEMORY_MB, PROCESSES, MAX_OUTPUT = 96, 16, 100_000

_FACTS = """
import os, socket
def can_read(path):
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return None
def can_connect(port):
    try:
        with socket.socket() as s:
            s.settimeout(0.2)
            return s.connect_ex(("127.0.0.1", port)) == 0
    except OSError:
        return False
def interfaces():
    lines = open("/proc/self/net/dev").read().splitlines()[2:]
    return [line.split(":")[0].strip() for line in lines]
def processes():
    return sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
def environment():
    return dict(os.environ)
def status(name):
    for line in open("/proc/self/status"):
        if line.startswith(name + ":"):
            return line.split()[1]
def can_write_runtime():
    try:
        os.close(os.open(os.__file__, os.O_WRONLY))
        return True
    except OSError:
        return False
def can_unshare():
    import ctypes
    return ctypes.CDLL(None).unshare(0x10000000) == 0
"""
_FORKS = f"""
import os, time
def forks():
    made = 0
    while made < {PROCESSES} + 20:
        try:
            if os.fork() == 0:
                time.sleep(60)
                os._exit(0)
        except OSError:
            break
        made += 1
    return made
"""
_MEMORY = """
def fill():
    kept = []
    while len(kept) < 40:
        kept.append(bytearray(8 << 20))
    return len(kept)
"""
_SHARED = """
import mmap, os, time
def share():
    for _ in range(8):
        if os.fork() == 0:
            kept = mmap.mmap(-1, 24 << 20)
            kept.write(bytes(24 << 20))
            time.sleep(0.5)
            os._exit(7)
    return sum(os.waitstatus_to_exitcode(os.wait()[1]) == 7 for _ in range(8))
"""
_OUTPUT = f"""
import os
def flood():
    for _ in range({20 * MAX_OUTPUT} // 1000):
        os.write(1, b"x" * 1000)
    return True
"""
_LOOP = "def loop():\n    while True: pass\n"


@dataclass(frozen=True, kw_only=True)
class BackendReport:
    """What one backend proved on this machine; `reason` and `fix` say why it is not available."""

    name: str
    available: bool
    guarantees: dict[str, bool]
    reason: str
    fix: str


# Not held where the architecture has no table of calls; the namespaces then stand alone.
OPTIONAL = frozenset({"seccomp"})


def probe() -> list[BackendReport]:
    """Run the self-test of every backend, strongest first."""
    report.cache_clear()
    return [report(name) for name in COMMANDS]


@functools.cache
def report(name: str) -> BackendReport:
    """Give one backend's self-test, kept for the life of this process."""
    jail = name != "unsafe_local"
    missing = bwrap.why_not() if jail else None
    guarantees: dict[str, bool] = {}
    if missing is None:
        try:
            guarantees = self_test(COMMANDS[name], namespaces=jail)
        except (WorkerLost, OSError, ValueError, subprocess.SubprocessError) as error:
            missing = bwrap.explain(str(error)) if jail else (str(error), "report it as a bug")
    broken = [key for key, held in guarantees.items() if not held and key not in OPTIONAL]
    if missing is None and jail and broken:
        missing = f"not held: {', '.join(broken)}", "use a newer kernel or bubblewrap"
    note = ("", "") if jail else ("no jail: taken only when named", "")
    reason, fix = missing or note
    return BackendReport(
        name=name, available=missing is None, guarantees=guarantees, reason=reason, fix=fix
    )


def self_test(command: Command, *, namespaces: bool) -> dict[str, bool]:
    """Try every promise once inside a fresh worker; takes about a second."""
    limits = Limits(
        namespaces=namespaces, memory_mb=MEMORY_MB, processes=PROCESSES, disk_mb=DISK_MB
    )
    secret = secrets.token_hex(16)
    with (
        tempfile.NamedTemporaryFile("w", prefix="stepcredit-canary-") as canary,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        canary.write(secret)
        canary.flush()
        worker = Worker(command(python_args(limits)))
        try:
            return _try_all(worker, canary.name, listener.getsockname()[1])
        finally:
            worker.stop()


def _try_all(worker: Worker, canary: str, port: int) -> dict[str, bool]:
    facts = [
        *(f"[can_read({canary!r}), can_read({__file__!r})]", "can_write_runtime()"),
        *(f"can_connect({port})", "interfaces()", "processes()", "environment()"),
        *("status('NoNewPrivs')", "status('Seccomp')", "status('CapEff')", "can_unshare()"),
    ]
    programs = [(_FACTS, facts), (_FORKS, ["forks()"]), (_MEMORY, ["fill()"])]
    programs += [(_SHARED, ["share()"]), (_OUTPUT, ["flood()"])]
    first, forks, memory, shared, output = worker.run(
        Job(programs=programs, timeout_s=10.0, max_output=MAX_OUTPUT)
    )
    (loop,) = worker.run(Job(programs=[(_LOOP, ["loop()"])], timeout_s=0.2, max_output=MAX_OUTPUT))
    answers = values(first, len(facts))
    read, write, connected, nets, pids, env, nnp, seccomp, caps, unshared = answers
    made = values(forks, 1)[0]
    return {
        "host_files_hidden": read == [None, None],
        "runtime_read_only": write is False,
        "network": connected is False and nets == ["lo"],
        "processes_hidden": isinstance(pids, list) and len(pids) == 2 and pids[0] == 1,
        "environment_empty": env == {},
        "memory": wire.split_frames(memory.replies)[1:2] == [b"M"] or memory.how == "memory",
        "shared_memory": shared.how == "memory" or values(shared, 1) == [0],
        "process_count": isinstance(made, int) and made < PROCESSES,
        "output": output.how == "output_limit",
        "time": loop.how == "timeout" and loop.seconds < 5.0,
        "no_new_privileges": nnp == "1" and caps == "0" * 16,
        "no_user_namespaces": unshared is False,
        "seccomp": seccomp == "2",
    }


def values(report: Report, count: int) -> list[Any]:
    """Decode a program's values; what it could not answer is the text "no answer"."""
    answers: list[Any] = ["no answer"] * count
    for i, reply in enumerate(wire.split_frames(report.replies)[1 : 1 + count]):
        if reply[:1] == b"V":
            answers[i] = wire.decode(reply[1:])
    return answers
