"""The sandbox that callers hold: grade programs against asserts in the strongest jail there is."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator, Sequence
from types import TracebackType

from stepcredit.sandbox import local, selftest
from stepcredit.sandbox.judge import MAX_TEXT, Plan, Trust, Verdict, plan, verdict
from stepcredit.sandbox.pool import Job, Pool, Report, python_args
from stepcredit.sandbox.program import Limits
from stepcredit.sandbox.selftest import BackendReport

Programs = tuple[Sequence[str], Sequence[Sequence[str]]]
MAX_PROGRAMS = 256


class SandboxUnavailable(RuntimeError):
    """No backend proved its guarantees here; the message has the reasons and the fixes."""


class Sandbox:
    """Warm jails that judge programs; made by `open_sandbox`, safe to use from several threads.

    `backend` is the name of the backend in use and `guarantees` what its self-test proved.
    """

    def __init__(
        self, pool: Pool, report: BackendReport, timeout_s: float, max_output: int
    ) -> None:
        """Keep the pool and the defaults of one job."""
        self.backend, self.guarantees = report.name, report.guarantees
        self._pool, self._timeout_s, self._max_output = pool, timeout_s, max_output
        self._trust: Trust = "unsafe_local" if report.name == "unsafe_local" else "host_compared"

    def __enter__(self) -> Sandbox:
        """Give the sandbox itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        """Close the sandbox."""
        self.close()

    def close(self) -> None:
        """End every worker; nothing of the sandbox is left running when this returns."""
        self._pool.close()

    def worker_pids(self) -> list[int]:
        """Give the process ids of the live workers."""
        return self._pool.pids()

    def grade(self, code: str, tests: Sequence[str], *, timeout_s: float | None = None) -> Verdict:
        """Judge one program by assert sources such as "assert f(2) == 4"."""
        return self.grade_all([code], [tests], timeout_s=timeout_s)[0]

    def grade_all(
        self,
        codes: Sequence[str],
        tests_per_code: Sequence[Sequence[str]],
        *,
        timeout_s: float | None = None,
    ) -> list[Verdict]:
        """Judge several programs in one jail, each in its own process with its own time limit."""
        return self.grade_many([(codes, tests_per_code)], timeout_s=timeout_s)[0]

    def grade_many(
        self, jobs: Sequence[Programs], *, timeout_s: float | None = None
    ) -> list[list[Verdict]]:
        """Judge many (codes, tests_per_code) jobs on all workers at once; the order is kept.

        Raises ValueError when a job has unequal lengths or a limit is out of range, TypeError when
        code or tests are not text. What a program does never raises.
        """
        limit_s = self._timeout_s if timeout_s is None else check_timeout(timeout_s)
        plans = [_plans(codes, tests) for codes, tests in jobs]
        # Programs without a runnable test are not run, so that they cost nothing.
        running = [[p for p in job if p.calls] for job in plans]
        futures = [
            self._pool.submit(
                Job(
                    programs=[(p.code, p.calls) for p in job],
                    timeout_s=limit_s,
                    max_output=self._max_output,
                )
            )
            if job
            else None
            for job in running
        ]
        results = []
        for job, future in zip(plans, futures, strict=True):
            answer = future.result() if future else []
            reports: Iterator[Report | str]
            reports = iter(answer) if isinstance(answer, list) else itertools.repeat(answer)
            results.append(
                [verdict(p, next(reports) if p.calls else None, self._trust) for p in job]
            )
        return results


def _plans(codes: Sequence[str], tests_per_code: Sequence[Sequence[str]]) -> list[Plan]:
    if isinstance(codes, str) or len(codes) != len(tests_per_code):
        raise ValueError(
            f"{len(codes)} codes and {len(tests_per_code)} lists of tests: pass one list per code"
        )
    if len(codes) > MAX_PROGRAMS:
        raise ValueError(f"{len(codes)} programs in a job: at most {MAX_PROGRAMS}; pass more jobs")
    plans = [plan(code, tests) for code, tests in zip(codes, tests_per_code, strict=True)]
    size = sum(p.size for p in plans)
    if size > MAX_TEXT:
        raise ValueError(f"{size} characters in a job: at most {MAX_TEXT}; pass more jobs")
    return plans


def check_timeout(timeout_s: float) -> float:
    """Give the limit as float; raises ValueError outside 0.01 to 600 seconds."""
    if not (math.isfinite(timeout_s) and 0.01 <= timeout_s <= 600):
        raise ValueError(f"timeout_s={timeout_s}: must be from 0.01 to 600; pass timeout_s=5")
    return float(timeout_s)


def open_sandbox(
    backend: str = "auto",
    *,
    workers: int | None = None,
    timeout_s: float = 5.0,
    memory_mb: int = 256,
    max_output: int = 2_000_000,
    processes: int = 64,
    recycle_after: int = 1000,
) -> Sandbox:
    """Open warm jails for untrusted programs; use it as a context manager.

    Args:
        backend: "auto" takes the strongest that passes its self-test and never "unsafe_local".
        workers: number of jails that work at the same time; the processors of this process.
        timeout_s: wall-clock seconds of one program, loading and all its tests together.
        memory_mb: memory of one program in MB, on top of the bare interpreter.
        max_output: bytes that one program may print.
        processes: processes and threads that one program may have.
        recycle_after: jobs after which a worker is replaced by a fresh one.

    Raises:
        SandboxUnavailable: no backend, or not the named one, proved its guarantees here.
        ValueError: an unknown backend, or a limit out of range.
    """
    check_timeout(timeout_s)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    workers = (cores or 1) if workers is None else workers
    for name, value, low, high, good in (
        ("workers", workers, 1, 256, 2),
        ("memory_mb", memory_mb, 16, 1 << 20, 256),
        ("max_output", max_output, 1, 1 << 30, 2_000_000),
        ("processes", processes, 1, 4096, 64),
        ("recycle_after", recycle_after, 1, 10**9, 1000),
    ):
        if not low <= value <= high:
            raise ValueError(f"{name}={value}: must be from {low} to {high}; pass {name}={good}")
    report = _choose(backend)
    limits = Limits(
        namespaces=report.name != "unsafe_local",
        memory_mb=memory_mb,
        processes=processes,
        disk_mb=selftest.DISK_MB,
    )
    pool = Pool(selftest.COMMANDS[report.name](python_args(limits)), workers, recycle_after)
    return Sandbox(pool, report, timeout_s, max_output)


def _choose(backend: str) -> BackendReport:
    if backend != "auto" and backend not in selftest.COMMANDS:
        known = ", ".join(("auto", *selftest.COMMANDS))
        raise ValueError(f"backend={backend!r}: must be one of {known}; pass backend='auto'")
    if backend == "unsafe_local":
        local.warn()
    jails = [name for name in selftest.COMMANDS if name != "unsafe_local"]
    reports = [selftest.report(name) for name in (jails if backend == "auto" else [backend])]
    for report in reports:
        if report.available:
            return report
    lines = [f"{report.name}: {report.reason}; fix: {report.fix}" for report in reports]
    raise SandboxUnavailable("no sandbox can be trusted here. " + " | ".join(lines))
