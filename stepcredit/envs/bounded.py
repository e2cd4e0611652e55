"""Calls into code that may raise or never return: each bounded, no bad one spoils another."""

import ctypes
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_WORKERS = 16


class HangError(TimeoutError):
    """A call did not return in time."""


@dataclass(frozen=True)
class Outcome:
    """What one call came to: its value, or its failure and the text of that."""

    value: Any = None
    error: str = ""
    problem: BaseException | None = None


def call_all(
    calls: Sequence[Callable[[], Any]],
    *,
    timeout_s: float,
    workers: int = 1,
    most: int = MAX_WORKERS,
) -> list[Outcome]:
    """Make every call and return the outcomes in order; no call takes longer than `timeout_s`.

    Calls share `workers` threads, so that a thread is paid per batch and not per call; the time of
    a call begins when a thread takes it up. A call that runs out of time is interrupted where
    Python can (a loop, not a system call), its thread is left behind, and the calls that waited
    behind it are spread over new threads, `most` of them.
    """
    workers = max(1, min(workers, len(calls), most))
    outcomes: list[Outcome] = [Outcome()] * len(calls)
    threads = [_Worker(calls[first::workers], most) for first in range(workers)] if calls else []
    for first, worker in enumerate(threads):
        outcomes[first::workers] = worker.collect(timeout_s)
    return outcomes


class _Stopped(BaseException):
    """Raised inside a call that ran out of time."""


class _Worker:
    """A thread that makes its calls one after another."""

    def __init__(self, calls: Sequence[Callable[[], Any]], most: int):
        self.calls = calls
        self.most = most
        self.outcomes: list[Outcome] = []
        self.begun = time.monotonic()
        self.stopped = False
        self.turn = threading.Lock()
        self.done = threading.Event()
        # A daemon: a call that cannot be stopped must not keep the program from ending.
        self.thread = threading.Thread(target=self._run, daemon=True, name="stepcredit-call")
        self.thread.start()

    def _run(self) -> None:
        try:
            for call in self.calls:
                with self.turn:
                    if self.stopped:
                        return
                    self.begun = time.monotonic()
                outcome = _attempt(call)
                with self.turn:
                    if self.stopped:
                        return
                    self.outcomes.append(outcome)
        except _Stopped:
            return
        finally:
            self.done.set()

    def collect(self, timeout_s: float) -> list[Outcome]:
        """Wait for the calls; where one hangs, name it and finish the rest without it."""
        while not self.done.wait(max(0.0, self.begun + timeout_s - time.monotonic())):
            with self.turn:
                self.stopped = time.monotonic() - self.begun >= timeout_s and not self.done.is_set()
            if self.stopped:
                _interrupt(self.thread)
                hang = HangError(f"no answer within {timeout_s:g} s")
                late = Outcome(error=f"TimeoutError: {hang}", problem=hang)
                rest = self.calls[len(self.outcomes) + 1 :]
                later = call_all(rest, timeout_s=timeout_s, workers=self.most, most=self.most)
                return [*self.outcomes, late, *later]
        return self.outcomes


def _attempt(call: Callable[[], Any]) -> Outcome:
    try:
        return Outcome(call())
    except _Stopped:
        raise
    except BaseException as problem:  # also sys.exit() in foreign code must not end the program
        frame = traceback.extract_tb(problem.__traceback__)[-1]
        where = f"{Path(frame.filename).name}:{frame.lineno}"
        return Outcome(error=f"{described(problem)} ({where})", problem=problem)


def described(problem: BaseException) -> str:
    """Return an exception's type and text, also where the text cannot be had."""
    try:
        return f"{type(problem).__name__}: {problem}"
    except Exception:
        return type(problem).__name__


def _interrupt(thread: threading.Thread) -> None:
    if thread.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(thread.ident), ctypes.py_object(_Stopped)
        )
