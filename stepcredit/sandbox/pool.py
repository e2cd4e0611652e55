"""Warm workers: one process and one thread each, jobs in a queue, one retry on a fresh worker."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from stepcredit.sandbox import wire
from stepcredit.sandbox.program import Limits

Command = Callable[[list[str]], list[str]]
# Slack of the host's own deadline over each program's limit: for lost workers alone.
GRACE_S = 10.0
START_S = 20.0
MAX_REPORT = 8 << 20

_BOOT = """
import sys, types
def load(name, source):
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(source, name, "exec"), module.__dict__)
    return module
load("stepcredit", "")
load("stepcredit.sandbox", "")
for name, source in {sources!r}.items():
    last = load("stepcredit.sandbox." + name, source)
last.main()
"""


class WorkerLost(RuntimeError):
    """The worker died, fell silent or said something it cannot say."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Programs to run one after the other in one jail: (code, expressions) each."""

    programs: Sequence[tuple[str, list[str]]]
    timeout_s: float
    max_output: int


@dataclass(frozen=True)
class Report:
    """What the jail's init saw of one program; `replies` are the program's own claims."""

    how: str
    number: int
    seconds: float
    replies: bytes


_CANARY = Job(
    programs=[("def f(x): return x + 1", ["f(1)"]), ("def f(x): return x", ["f(1)"])],
    timeout_s=START_S,
    max_output=1000,
)
_CANARY_VALUES = [2, 1]


def python_args(limits: Limits) -> list[str]:
    """Give the interpreter's arguments that start the zygote from source text alone."""
    here = Path(__file__).parent
    names = ("wire", "kernel", "program", "watch", "jail")
    sources = {name: (here / f"{name}.py").read_text(encoding="utf-8") for name in names}
    boot = _BOOT.format(sources=sources)
    # Not -I: it would ignore PYTHONHASHSEED, the one variable set, and set order would vary.
    return ["-S", "-s", "-P", "-B", "-X", "utf8", "-c", boot, json.dumps(limits._asdict())]


class Worker:
    """One zygote process and the socket to it; used by one thread at a time."""

    def __init__(self, command: list[str]) -> None:
        """Start the process and check with a right and a wrong program that it tells them apart."""
        self.jobs = 0
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the worker
        self._socket, theirs = socket.socketpair()
        try:
            self.process = subprocess.Popen(
                command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, stderr=self._stderr,
                start_new_session=True, cwd="/", env={"PYTHONHASHSEED": "0"},
            )  # fmt: skip
        except OSError as error:
            self._socket.close()
            self._stderr.close()
            raise WorkerLost(f"{command[0]} did not start: {error}") from error
        finally:
            theirs.close()
        try:
            values = [wire.split_frames(report.replies) for report in self.run(_CANARY)]
            right = [[b"V", b"V" + wire.encode(value)] for value in _CANARY_VALUES]
            if values != right:
                raise WorkerLost(f"the worker's canary programs gave {values}")
        except WorkerLost as error:
            message = str(error)
            raise WorkerLost(self.kill() or message) from error

    def run(self, job: Job) -> list[Report]:
        """Run one job; raises WorkerLost when no whole answer came by the host's deadline.

        A program is sent when the one before it was reported, so that none can read the next one.
        """
        self.jobs += 1
        try:
            self._send([len(job.programs), job.timeout_s, job.max_output])
            return [self._run_one(program, job.timeout_s) for program in job.programs]
        except (OSError, wire.WireError) as error:
            raise WorkerLost(f"a sandbox worker was lost: {error}") from error

    def _run_one(self, program: tuple[str, list[str]], timeout_s: float) -> Report:
        self._send(program)
        deadline = time.monotonic() + GRACE_S + timeout_s
        values = wire.decode(self._frame(deadline))
        if not isinstance(values, list) or [*map(type, values)] != [str, int, float]:
            raise WorkerLost("a sandbox worker sent a malformed report")
        how, number, seconds = values
        return Report(how, number, seconds, self._frame(deadline))

    def _send(self, value: object) -> None:
        self._socket.settimeout(GRACE_S)
        self._socket.sendall(wire.frame(wire.encode(value, wire.MAX_JOB)))

    def _frame(self, deadline: float) -> bytes:
        size = struct.unpack(">I", self._receive(4, deadline))[0]
        if size > MAX_REPORT:
            raise WorkerLost(f"a sandbox worker announced {size} bytes")
        return self._receive(size, deadline)

    def _receive(self, size: int, deadline: float) -> bytes:
        data = bytearray()
        while len(data) < size:
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            block = self._socket.recv(min(size - len(data), 1 << 20))
            if not block:
                raise WorkerLost("a sandbox worker ended in the middle of a job")
            data += block
        return bytes(data)

    def stop(self) -> None:
        """Let the process end by itself, as it does when its socket closes; kill it if it stays."""
        # close alone would not reach it while a forked copy of this process holds the socket too.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        try:
            self.process.wait(timeout=2.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._stderr.close()

    def kill(self) -> str:
        """End the process at once; returns the end of what it said on its error stream."""
        self.process.kill()
        self.process.wait()
        self._socket.close()
        self._stderr.seek(0)
        said = self._stderr.read(1 << 16).decode("utf-8", "replace").strip()
        self._stderr.close()
        return said[-2000:]


class Pool:
    """Threads that each keep one worker warm; any thread may submit, results come as futures."""

    def __init__(self, command: list[str], workers: int, recycle_after: int) -> None:
        """Start the threads; each starts its worker at once."""
        self._command, self._recycle_after = command, recycle_after
        self._queue: queue.SimpleQueue[tuple[Future[list[Report] | str], Job] | None]
        self._queue = queue.SimpleQueue()
        self._owner, self._closing = os.getpid(), threading.Event()
        # No job may enter the queue behind the marks that end the threads: nobody would answer it.
        self._gate = threading.Lock()
        self._live: dict[int, Worker] = {}
        # A worker dies with the thread that started it (bwrap's die-with-parent), so each thread
        # starts its own and lives as long as the pool.
        self._threads = [
            threading.Thread(target=self._serve, args=(i,), daemon=True, name=f"sandbox-{i}")
            for i in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Job) -> Future[list[Report] | str]:
        """Queue a job; the result is one report per program, or the reason why there is none."""
        if os.getpid() != self._owner:
            raise RuntimeError("this sandbox belongs to another process: open one in each process")
        future: Future[list[Report] | str] = Future()
        with self._gate:
            if self._closing.is_set():
                raise RuntimeError("this sandbox is closed: call open_sandbox again")
            self._queue.put((future, job))
        return future

    def close(self) -> None:
        """End all workers, running jobs included, and wait until their processes are gone."""
        if os.getpid() != self._owner:
            return
        with self._gate:
            if self._closing.is_set():
                return
            self._closing.set()
            for _ in self._threads:
                self._queue.put(None)
        for worker in list(self._live.values()):
            worker.process.kill()
        for thread in self._threads:
            thread.join()

    def pids(self) -> list[int]:
        """Process ids of the live workers, for tests and monitoring."""
        return [worker.process.pid for worker in list(self._live.values())]

    def _serve(self, index: int) -> None:
        try:
            self._worker(index)
        except (WorkerLost, OSError):
            # The first job meets the same failure and reports it.
            self._live.pop(index, None)
        while (item := self._queue.get()) is not None:
            future, job = item
            try:
                future.set_result(self._run(index, job))
            except Exception as error:
                future.set_exception(error)
        worker = self._live.pop(index, None)
        if worker is not None:
            worker.stop()

    def _run(self, index: int, job: Job) -> list[Report] | str:
        reason = "the sandbox was closed"
        for _ in range(2):
            try:
                worker = self._worker(index)
                # Only now: a worker that starts while the pool closes escapes its killing.
                if self._closing.is_set():
                    break
                return worker.run(job)
            except (WorkerLost, OSError) as error:
                reason = str(error)
                lost = self._live.pop(index, None)
                if lost is not None:
                    lost.kill()
        return reason

    def _worker(self, index: int) -> Worker:
        worker = self._live.get(index)
        if worker is not None and worker.jobs > self._recycle_after:
            self._live.pop(index).stop()
            worker = None
        if worker is None:
            worker = self._live[index] = Worker(self._command)
        return worker
