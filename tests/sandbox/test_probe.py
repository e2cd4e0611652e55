"""Backends prove their guarantees or are refused with the reason and the fix."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stepcredit.sandbox import Sandbox, SandboxUnavailable, bwrap, open_sandbox, probe, selftest
from stepcredit.sandbox.kernel import PRIVILEGED, seccomp_program
from stepcredit.sandbox.pool import Job, Worker, WorkerLost, python_args
from stepcredit.sandbox.program import Limits


def test_probe_reports_what_each_backend_proved(sandbox: Sandbox) -> None:
    start = time.monotonic()
    jail, local = probe()
    # Two seconds on an idle machine; tests share theirs.
    assert time.monotonic() - start < 10
    assert (jail.name, jail.available, jail.reason) == ("bwrap", True, "")
    assert all(held for name, held in jail.guarantees.items() if name != "seccomp")
    assert local.name == "unsafe_local"
    assert local.available
    assert local.guarantees.keys() == jail.guarantees.keys()
    for name in ("host_files_hidden", "network", "processes_hidden"):
        assert not local.guarantees[name]


def test_auto_takes_the_jail(sandbox: Sandbox) -> None:
    with open_sandbox(workers=1) as auto:
        assert auto.backend == "bwrap"
        assert auto.guarantees["network"]


@pytest.fixture
def fresh_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget this process's self-tests before, and the mocked ones after a test."""
    uncached = selftest.report.__wrapped__
    monkeypatch.setattr(selftest, "report", uncached)


def refuse(match: str) -> None:
    for backend in ("auto", "bwrap"):
        with pytest.raises(SandboxUnavailable, match=match):
            open_sandbox(backend, workers=1)


@pytest.mark.usefixtures("fresh_reports")
def test_no_binary_is_refused_with_the_way_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bwrap, "find_bwrap", lambda: None)
    refuse(r"no bwrap binary .*; fix: install it with `apt install bubblewrap` or")


@pytest.mark.usefixtures("fresh_reports")
@pytest.mark.parametrize("name", ["user/max_user_namespaces", "kernel/unprivileged_userns_clone"])
def test_namespaces_off_are_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(bwrap, "find_bwrap", lambda: "/usr/bin/bwrap")
    monkeypatch.setattr(bwrap, "_sysctl", lambda asked: "0" if asked == name else "1")
    refuse(rf"user namespaces are off \(/proc/sys/{name} is 0\); fix: as root: sysctl")


@pytest.mark.usefixtures("fresh_reports")
def test_a_bwrap_that_fails_is_refused_with_its_own_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = "bwrap: setting up uid map: Permission denied"
    script = ["/bin/sh", "-c", f"echo {words!r} >&2; exit 1"]
    monkeypatch.setitem(selftest.COMMANDS, "bwrap", lambda args: script)
    monkeypatch.setattr(bwrap, "why_not", lambda: None)
    monkeypatch.setattr(bwrap, "_sysctl", lambda name: "1" if "apparmor" in name else "")
    refuse(rf"{words}; fix: AppArmor restricts")


@pytest.mark.usefixtures("fresh_reports")
def test_a_jail_that_holds_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The self-test must notice: here the "jail" is a plain process of this machine."""
    monkeypatch.setattr(bwrap, "why_not", lambda: None)
    monkeypatch.setattr(
        selftest,
        "self_test",
        lambda command, namespaces, real=selftest.self_test: real(
            selftest.COMMANDS["unsafe_local"], namespaces=False
        ),
    )
    refuse("not held: host_files_hidden, runtime_read_only, network, processes_hidden")


def test_switched_off_namespaces_are_refused_for_real(sandbox: Sandbox) -> None:
    """In a child user namespace of this test the limit can be set to none."""
    unshare = shutil.which("unshare")
    script = (
        "import sys\nfrom stepcredit.sandbox import SandboxUnavailable, open_sandbox\n"
        "try:\n    open_sandbox(workers=1)\nexcept SandboxUnavailable as error:\n    print(error)"
    )
    off = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$0" -c "$1"'
    if unshare is None or subprocess.run([unshare, "-Ur", "true"]).returncode:
        pytest.skip("needs unshare and user namespaces")
    done = subprocess.run(
        [unshare, "-Ur", "sh", "-c", off, sys.executable, script],
        capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert "user namespaces are off" in done.stdout, done.stderr


def test_unsafe_local_is_taken_by_name_alone_and_warns() -> None:
    with pytest.warns(RuntimeWarning, match="use it for code you trust alone"):
        local = open_sandbox("unsafe_local", workers=1)
    with local:
        assert local.backend == "unsafe_local"
        verdict = local.grade("def f(x):\n    return x", ["assert f(1) == 1", "assert f(2) == 1"])
        assert (verdict.status, verdict.passed, verdict.trust) == ("failed", 1, "unsafe_local")
        loop = local.grade("while True: pass", ["assert f(1) == 1"], timeout_s=0.3)
        assert loop.status == "timeout"


def test_a_worker_that_confuses_right_and_wrong_is_not_used() -> None:
    limits = Limits(namespaces=False, memory_mb=64, processes=32, disk_mb=16)
    args = python_args(limits)
    broken = [arg.replace("wire.encode(value), wire", "wire.encode(2), wire") for arg in args]
    assert broken != args
    with pytest.raises(WorkerLost, match="canary"):
        Worker(selftest.COMMANDS["unsafe_local"](broken))


def test_a_job_that_fails_to_start_ends_the_worker_at_once() -> None:
    limits = Limits(namespaces=False, memory_mb=64, processes=32, disk_mb=16)
    args = python_args(limits)
    broken = [arg.replace("= wire.decode(head[:])", "= 1 / 0") for arg in args]
    assert broken != args
    start = time.monotonic()
    with pytest.raises(WorkerLost, match="ZeroDivisionError"):
        Worker(selftest.COMMANDS["unsafe_local"](broken))
    assert time.monotonic() - start < 5


@pytest.mark.parametrize("reply", [b"", b"\0\0\0\2NN", b"\xff\xff\xff\xff", b"\0\0\0\1N"])
def test_a_worker_that_speaks_nonsense_is_lost(reply: bytes) -> None:
    script = f"import os; os.read(0, 99); os.write(0, {reply!r})"
    with pytest.raises(WorkerLost):
        Worker([sys.executable, "-c", script])


def test_the_command_shows_the_runtime_and_nothing_else(sandbox: Sandbox) -> None:
    shown = bwrap.runtime().shown
    assert bwrap.interpreter() in shown
    folders = [path for path in shown if os.path.isdir(path)]
    assert all(Path(folder, "os.py").exists() for folder in folders)
    assert all(
        ".so" in Path(path).name or path in (*folders, bwrap.interpreter()) for path in shown
    )
    code = "import os\ndef f(): return sorted(os.listdir('/')), os.listdir('/tmp')"
    told = sandbox.grade(code, ["assert f() == 0"]).message
    root = {f"/{path.split('/')[1]}" for path in shown}
    for name in os.listdir("/"):
        if f"/{name}" not in root | {"/proc", "/dev", "/tmp"}:
            assert repr(name) not in told, told


def test_site_packages_are_hidden(sandbox: Sandbox) -> None:
    hidden = bwrap.runtime().hidden
    code = f"import os\ndef f(): return [n for p in {hidden!r} for n in os.listdir(p)]"
    assert sandbox.grade(code, ["assert f() == []"]).status == "passed"


def test_the_filter_is_what_the_kernel_expects() -> None:
    for machine in PRIVILEGED:
        program = seccomp_program(machine, PRIVILEGED[machine])
        assert len(program) % 8 == 0
        steps = [program[i : i + 8] for i in range(0, len(program), 8)]
        # Every jump lands inside the program, and its last step returns "allow".
        for i, step in enumerate(steps):
            assert i + 1 + max(step[2], step[3]) < len(steps) or step == steps[-1]
        assert steps[-1] == b"\x06\0\0\0\0\0\xff\x7f"


def test_reports_are_plain_data(sandbox: Sandbox) -> None:
    report = selftest.report("bwrap")
    assert json.loads(json.dumps(report.guarantees)) == report.guarantees


def test_a_job_is_answered_by_the_raw_worker(sandbox: Sandbox) -> None:
    limits = Limits(namespaces=True, memory_mb=64, processes=32, disk_mb=16)
    worker = Worker(selftest.COMMANDS["bwrap"](python_args(limits)))
    try:
        job = Job(programs=[("x = [1, 2]", ["x", "x[0]"])], timeout_s=10.0, max_output=10)
        (report,) = worker.run(job)
        assert report.how == "exited"
        assert selftest.values(report, 3) == [[1, 2], 1, "no answer"]
    finally:
        worker.stop()
