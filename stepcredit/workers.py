"""A pool of persistent worker processes, one run at a time each, that Ctrl-C stops cleanly."""

import contextlib
import json
import multiprocessing
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal

SILENCE_LIMIT_S = 1800.0
"""A run that reports no step for this long is stopped and counted as failed."""
STOP_GRACE_S = 5.0

OnStep = Callable[[dict[str, Any]], None]
RunOne = Callable[[dict[str, Any], Path, OnStep], None]
"""Trains one configuration into a folder, reporting each metrics row."""


@dataclass(frozen=True)
class Job:
    """One configuration to run in one folder."""

    config: dict[str, Any]
    folder: Path
    config_hash: str


@dataclass(frozen=True)
class Event:
    """What a worker says of its job: a step done, the job done, or why it failed."""

    job: Job
    kind: Literal["step", "done", "failed"]
    sampled_tokens: int = 0
    reason: str = ""


@dataclass
class _Worker:
    process: BaseProcess
    connection: Connection
    job: Job | None = None
    last_seen: float = 0.0


class WorkerPool:
    """Runs jobs on spawned processes that import torch once and are reused.

    Use as a context manager: leaving it, by whatever exception, stops every process.
    """

    def __init__(self, num_workers: int, run_one: RunOne, log: Path) -> None:
        """`run_one` must be importable by name; what workers print goes to `log`."""
        self._size, self._run_one, self._log = num_workers, run_one, log
        self._workers: list[_Worker] = []

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.process.terminate()
        for worker in self._workers:
            _end(worker)
        self._workers.clear()

    def run(self, jobs: Sequence[Job]) -> Iterator[Event]:
        """Do all jobs in the order given, as workers come free; failures are events too."""
        waiting = deque(jobs)
        while waiting or any(worker.job for worker in self._workers):
            self._hand_out(waiting)
            yield from self._listen()

    def _hand_out(self, waiting: "deque[Job]") -> None:
        for worker in self._workers:
            if waiting and worker.job is None:
                _give(worker, waiting.popleft())
        while waiting and len(self._workers) < self._size:
            self._workers.append(_start(self._run_one, self._log))
            _give(self._workers[-1], waiting.popleft())

    def _listen(self) -> Iterator[Event]:
        busy = [worker for worker in self._workers if worker.job]
        ready = wait([worker.connection for worker in busy], timeout=1.0)
        for worker in busy:
            assert worker.job is not None
            if worker.connection in ready:
                yield self._receive(worker)
            elif time.monotonic() - worker.last_seen > SILENCE_LIMIT_S:
                yield self._lost(worker, f"no step for {SILENCE_LIMIT_S:.0f} s; stopped")

    def _receive(self, worker: _Worker) -> Event:
        job = worker.job
        assert job is not None
        try:
            kind, sampled_tokens, reason = worker.connection.recv()
        except (EOFError, ConnectionError):
            worker.process.join(STOP_GRACE_S)
            return self._lost(worker, f"its process ended with code {worker.process.exitcode}")
        worker.last_seen = time.monotonic()
        if kind != "step":
            worker.job = None
        return Event(job, kind, sampled_tokens, reason)

    def _lost(self, worker: _Worker, reason: str) -> Event:
        job = worker.job
        assert job is not None
        worker.process.kill()
        _end(worker)
        self._workers.remove(worker)
        _note_failure(job, reason)
        return Event(job, "failed", 0, reason)


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Write a small JSON file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(values))
    partial.replace(path)


def _start(run_one: RunOne, log: Path) -> _Worker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, run_one, log))
    # A terminal sends Ctrl-C to every process of the group; a worker must not die of it half-way
    # through its own start, so it is born ignoring the signal.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with _environment(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false"):
            process.start()
    finally:
        signal.signal(signal.SIGINT, before)
    theirs.close()
    return _Worker(process, ours)


@contextlib.contextmanager
def _environment(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _give(worker: _Worker, job: Job) -> None:
    worker.job, worker.last_seen = job, time.monotonic()
    # a worker that died between two jobs is noticed when its answer is read
    with contextlib.suppress(BrokenPipeError):
        worker.connection.send(job)


def _end(worker: _Worker) -> None:
    worker.process.join(STOP_GRACE_S)
    if worker.process.exitcode is None:
        worker.process.kill()
        worker.process.join(STOP_GRACE_S)
    worker.connection.close()


def _work(connection: Connection, run_one: RunOne, log: Path) -> None:
    """The life of a worker process."""
    # SystemExit lets `finally` blocks close what a run opened, sandboxes among it
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    while True:
        try:
            job: Job = connection.recv()
        except EOFError:
            return
        connection.send(_attempt(job, run_one, connection))


def _attempt(job: Job, run_one: RunOne, connection: Connection) -> tuple[str, int, str]:
    def on_step(row: dict[str, Any]) -> None:
        connection.send(("step", int(row["sampled_tokens"]), ""))

    wall, cpu = time.perf_counter(), _cpu_seconds()
    try:
        run_one(job.config, job.folder, on_step)
        spent = {"wall_s": time.perf_counter() - wall, "cpu_s": _cpu_seconds() - cpu}
        write_json(job.folder / "done.json", {"config_hash": job.config_hash, **spent})
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        _note_failure(job, reason, traceback.format_exc())
        return "failed", 0, reason
    return "done", 0, ""


def _note_failure(job: Job, reason: str, details: str = "") -> None:
    # the disk that made the run fail may have no room for the reason either: it is told anyway
    with contextlib.suppress(OSError):
        write_json(job.folder / "failed.json", {"reason": reason})
        if details:
            (job.folder / "error.txt").write_text(details)


def _cpu_seconds() -> float:
    """CPU seconds of this process and of the children it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(part.ru_utime + part.ru_stime for part in used)


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
