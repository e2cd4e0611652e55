"""One sandbox per process and backend for all environments that run code."""

import atexit
import os
import threading

from stepcredit.sandbox import Sandbox, open_sandbox

# Jails per process, and so how many programs are worth submitting at once: one more would wait.
WORKERS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

_lock = threading.Lock()
_open: dict[tuple[int, str], Sandbox] = {}


def shared_sandbox(backend: str) -> Sandbox:
    """Returns this process's sandbox, opened at the first call and closed when Python ends.

    Raises `SandboxUnavailable` when the backend does not prove its guarantees here.
    """
    # By process, since the workers behind a handle answer only to the process that started them.
    key = (os.getpid(), backend)
    with _lock:
        if key not in _open:
            _open[key] = open_sandbox(backend, workers=WORKERS)
        return _open[key]


def _unlock() -> None:
    """Another thread may have held the lock at a fork; in the child nobody will release it."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_unlock)


@atexit.register
def _close_all() -> None:
    for (process, _), sandbox in _open.items():
        if process == os.getpid():
            sandbox.close()
