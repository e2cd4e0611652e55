"""What runs inside the jail: a warm zygote, one init process per job, one process per program.

The zygote waits for work on descriptor 0 and forks an init per job without reading a byte itself,
so it holds nothing of any job.  The init gives the job namespaces and /proc, and each program an
empty /tmp, runs each program in a child without rights, and reports what it saw: how the child
ended, and the raw bytes it replied.  The replies are claims of the program; only the host judges
them.  The host sends a program when the one before it is gone, and the init neither decodes nor
keeps any, so that no program finds another in the memory it inherits.  It can find its own tests'
calls, later ones included, but no expected value.  The file imports the standard library and its
neighbours `kernel`, `program`, `watch` and `wire` alone: its source also runs inside the jail.
"""

from __future__ import annotations

import gc
import json
import mmap
import os
import select
import signal
import sys

from stepcredit.sandbox import wire
from stepcredit.sandbox.kernel import (
    CLONE_NEWIPC,
    CLONE_NEWNS,
    CLONE_NEWPID,
    DENIED,
    MNT_DETACH,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_REC,
    PR_SET_CHILD_SUBREAPER,
    PR_SET_DUMPABLE,
    PR_SET_PDEATHSIG,
    check,
    deny_calls,
    libc,
    set_process,
)
from stepcredit.sandbox.program import Limits
from stepcredit.sandbox.watch import Life, private, run_program

# What programs import most, loaded once.  Each module makes every fork dearer: no rare ones.
WARM = (
    *("bisect", "collections", "copy", "functools", "heapq", "itertools", "json", "math"),
    *("operator", "random", "re", "string", "typing"),
)


def serve(limits: Limits) -> None:
    """Fork one init per job until the host closes its end."""
    for name in WARM:
        __import__(name)
    os.environ.clear()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.collect()
    gc.freeze()
    if limits.namespaces:
        deny_calls(DENIED)
        enter_own_namespace()
    pid_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY) if limits.namespaces else -1
    host_gone = select.POLLHUP | select.POLLERR
    poll = select.poll()
    poll.register(0, select.POLLIN)
    while True:
        (_, event), *_ = poll.poll()
        if event & host_gone:
            return
        if limits.namespaces:
            check(libc().unshare(CLONE_NEWPID), "new pid namespace")
        pid = os.fork()
        if pid == 0:
            try:
                run_job(limits)
            except BaseException:
                sys.excepthook(*sys.exc_info())
            finally:
                os._exit(1)
        if limits.namespaces:
            # Without going back, a second unshare is refused by the kernel.
            check(libc().setns(pid_namespace, CLONE_NEWPID), "own pid namespace")
        if not wait_for_init(pid, host_gone, limits.namespaces):
            return


def enter_own_namespace() -> None:
    """Go on as the init of a pid namespace that this user namespace owns.

    The jail's first pid namespace belongs to an outer user namespace, so that going back into it
    after starting a job would be refused.
    """
    check(libc().unshare(CLONE_NEWPID), "new pid namespace")
    pid = os.fork()
    if pid != 0:
        os.close(0)
        os.waitpid(pid, 0)
        os._exit(0)
    set_process(PR_SET_PDEATHSIG, signal.SIGKILL)


def wait_for_init(pid: int, host_gone: int, namespaces: bool) -> bool:
    """Wait for a job's init; False when it failed or the host is gone, which ends the worker.

    Without a namespace nothing would die with the init: it sees for itself that the host is gone.
    """
    poll = select.poll()
    poll.register(0, 0)
    with Life(pid) as life:
        life.register(poll)
        while not life.ended():
            for fd, event in poll.poll(life.poll_ms):
                if fd == 0 and event & host_gone:
                    if namespaces:
                        os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                    return False
    return life.status == 0


def run_job(limits: Limits) -> None:
    """Be the init of one job: run its programs one after the other, report each, exit."""
    if limits.namespaces:
        set_process(PR_SET_PDEATHSIG, signal.SIGKILL)
        set_process(PR_SET_DUMPABLE, 0)
        private_mounts()
    elif sys.platform == "linux":
        set_process(PR_SET_CHILD_SUBREAPER, 1)
    with receive() as head:
        count, timeout_s, max_output = wire.decode(head[:])
    for _ in range(count):
        if limits.namespaces:
            fresh_tmp(limits.disk_mb)
        run_program(receive(), timeout_s, max_output, limits)
    os._exit(0)


def receive() -> mmap.mmap:
    """Read the host's next frame; the host sends one when the program before it was reported."""
    with fill(private(4)) as header:
        size = int.from_bytes(header[:], "big")
    return fill(private(size))


def fill(memory: mmap.mmap) -> mmap.mmap:
    """Fill a mapping with what the host sends."""
    with memoryview(memory) as view:
        at = 0
        while at < len(view):
            block = os.readv(0, [view[at:]])
            if not block:
                os._exit(1)
            at += block
    return memory


def private_mounts() -> None:
    """Leave the zygote's mounts and IPC objects; show only this job's processes in /proc."""
    c = libc()
    check(c.unshare(CLONE_NEWNS | CLONE_NEWIPC), "new mount namespace")
    check(c.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None), "private mounts")
    flags = MS_NOSUID | MS_NODEV | MS_NOEXEC
    if c.mount(b"proc", b"/proc", b"proc", flags, b"subset=pid") != 0:
        check(c.mount(b"proc", b"/proc", b"proc", flags, None), "mount /proc")


def fresh_tmp(disk_mb: int) -> None:
    """Give the next program an empty /tmp that leaves nothing behind."""
    c = libc()
    os.chdir("/")
    c.umount2(b"/tmp", MNT_DETACH)
    options = f"size={disk_mb}m,nr_inodes={disk_mb * 128},mode=700".encode()
    check(c.mount(b"tmpfs", b"/tmp", b"tmpfs", MS_NOSUID | MS_NODEV, options), "mount /tmp")
    os.chdir("/tmp")


def main() -> None:
    """Start the zygote with the limits given as JSON in the first argument."""
    serve(Limits(**json.loads(sys.argv[1])))
