"""Workers that die, parents that die, and what is left afterwards."""

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from stepcredit.sandbox import Sandbox, open_sandbox
from tests.sandbox.corpus import tree

RIGHT = "import time\ndef f(x):\n    time.sleep(0.5)\n    return x\n"
TESTS = ["assert f(3) == 3"]


def soon(condition: Callable[[], bool]) -> bool:
    """Wait up to five seconds."""
    for _ in range(500):
        if condition():
            return True
        time.sleep(0.01)
    return False


def alive(pid: int) -> bool:
    """Tell whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def kill_a_worker(sandbox: Sandbox, times: int) -> None:
    """Kill the worker that runs a job, `times` times, each in the middle of it."""
    for _ in range(times):
        assert soon(lambda: any(len(tree(pid)) >= 6 for pid in sandbox.worker_pids()))
        (pid,) = sandbox.worker_pids()
        os.kill(pid, signal.SIGKILL)
        assert soon(lambda pid=pid: pid not in sandbox.worker_pids())


@pytest.mark.parametrize(("kills", "status"), [(1, "passed"), (2, "infra_error")])
def test_a_killed_worker_is_retried_once(sandbox: Sandbox, kills: int, status: str) -> None:
    with open_sandbox("bwrap", workers=1) as own:
        killer = threading.Thread(target=kill_a_worker, args=(own, kills))
        killer.start()
        verdict = own.grade(RIGHT, TESTS)
        killer.join()
        assert verdict.status == status, verdict.message
        assert verdict.passed == (status == "passed")
        if status == "infra_error":
            assert verdict.tests[0].status == "infra_error"
            assert "lost" in verdict.message or "ended" in verdict.message
        assert own.grade(RIGHT, TESTS).status == "passed"


@pytest.mark.parametrize("backend", ["bwrap", "unsafe_local"])
def test_a_clean_end_leaves_no_process(sandbox: Sandbox, backend: str) -> None:
    before = set(tree(os.getpid()))
    with pytest.warns() if backend == "unsafe_local" else open(os.devnull):
        own = open_sandbox(backend, workers=2)
    with own:
        assert own.grade(RIGHT, TESTS).status == "passed"
        started = {pid for worker in own.worker_pids() for pid in tree(worker)}
    assert started
    assert soon(lambda: not any(map(alive, started)))
    assert set(tree(os.getpid())) <= before
    with pytest.raises(RuntimeError, match="closed"):
        own.grade(RIGHT, TESTS)


@pytest.mark.parametrize("backend", ["bwrap", "unsafe_local"])
def test_a_killed_parent_leaves_no_process(sandbox: Sandbox, backend: str) -> None:
    script = (
        "import threading\nfrom stepcredit.sandbox import open_sandbox\n"
        f"with open_sandbox({backend!r}, workers=2, timeout_s=60) as s:\n"
        "    s.grade('f = lambda: 1', ['assert f() == 1'])\n"
        "    print('ready', flush=True)\n"
        "    code = 'import os, time\\nos.fork()\\nos.fork()\\ntime.sleep(60)'\n"
        "    s.grade(code, ['assert f() == 1'])\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", script], stdout=subprocess.PIPE, text=True
    )
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        assert soon(lambda: len(tree(parent.pid)) >= 6)
        started = tree(parent.pid)
    finally:
        parent.kill()
        parent.wait()
        assert parent.stdout is not None
        parent.stdout.close()
    assert soon(lambda: not any(map(alive, started)))


def test_closing_ends_a_running_job_at_once(sandbox: Sandbox) -> None:
    own = open_sandbox("bwrap", workers=1, timeout_s=60)
    verdicts = []
    code = "import time\ndef f(x): time.sleep(60)"
    thread = threading.Thread(target=lambda: verdicts.append(own.grade(code, TESTS)))
    thread.start()
    assert soon(lambda: any(len(tree(pid)) >= 6 for pid in own.worker_pids()))
    start = time.monotonic()
    own.close()
    thread.join()
    assert time.monotonic() - start < 5
    assert [verdict.status for verdict in verdicts] == ["infra_error"]


def test_a_job_submitted_while_closing_is_refused_or_answered(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = open_sandbox("bwrap", workers=1)
    real, entered = own._pool._queue, threading.Event()

    class Slow:
        """Take a job in slowly: closing then starts between the check and the queue."""

        def put(self, item: object) -> None:
            if item is not None:
                entered.set()
                time.sleep(0.3)
            real.put(item)  # type: ignore[arg-type]  # whatever the pool puts

        def get(self) -> object:
            return real.get()

    monkeypatch.setattr(own._pool, "_queue", Slow())
    statuses: list[str] = []
    job = threading.Thread(target=lambda: statuses.append(own.grade(RIGHT, TESTS).status))
    job.daemon = True
    job.start()
    assert entered.wait(5)
    own.close()
    job.join(5)
    assert statuses in (["infra_error"], ["passed"])


def test_locks_on_shared_files_do_nothing(sandbox: Sandbox) -> None:
    """Devices and runtime files are the host's; sqlite must still be able to lock its own file."""
    code = (
        "import fcntl, os, sqlite3, time\nfiles = [open('/dev/null', 'w'), open(os.__file__)]\n"
        "fcntl.flock(files[0], fcntl.LOCK_EX)\nfcntl.lockf(files[0], fcntl.LOCK_EX)\n"
        "fcntl.flock(files[1], fcntl.LOCK_EX)\n"
        "def f(x):\n    with sqlite3.connect('a.db') as db:\n"
        "        db.execute('create table t (n)')\n        db.execute('insert into t values (3)')\n"
        "    time.sleep(1)\n    return db.execute('select n from t').fetchone()[0]\n"
    )
    verdicts = []
    job = threading.Thread(target=lambda: verdicts.append(sandbox.grade(code, TESTS)))
    job.start()
    taken = []
    while job.is_alive():
        for path in ("/dev/null", os.__file__):
            with open(path) as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    taken.append(path)
        time.sleep(0.05)
    assert taken == []
    assert [verdict.status for verdict in verdicts] == ["passed"], verdicts


def test_workers_are_replaced_after_their_share_of_jobs(sandbox: Sandbox) -> None:
    with open_sandbox("bwrap", workers=1, recycle_after=3) as own:
        seen = set()
        for i in range(8):
            assert own.grade(f"f = lambda x: x + {i}", [f"assert f(0) == {i}"]).status == "passed"
            seen |= set(own.worker_pids())
    assert len(seen) >= 2


def test_a_forked_copy_of_the_process_is_refused(sandbox: Sandbox) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            sandbox.grade("f = 1", ["assert f == 1"])
        except RuntimeError as error:
            os._exit(7 if "another process" in str(error) else 8)
        finally:
            os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


def test_descriptors_and_processes_stay_flat(sandbox: Sandbox) -> None:
    def count() -> tuple[int, int]:
        processes = sum(len(tree(pid)) for pid in sandbox.worker_pids())
        return len(os.listdir("/proc/self/fd")), processes

    job = (["f = lambda: 1", "import os; os._exit(3)"], [["assert f() == 1"]] * 2)
    sandbox.grade_many([job] * 4)
    time.sleep(0.2)
    before = count()
    sandbox.grade_many([job] * 60)
    assert soon(lambda: count() == before)
