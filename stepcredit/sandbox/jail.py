"""What runs inside the jail: a warm zygote, one init process per job, one process per program.

The zygote waits for work on descriptor 0 and forks an init per job without reading a byte itself,
so it holds nothing of any job.  The init gives the job namespaces, /proc and /tmp of its own, reads
the job, runs each program in a child without rights, and reports what it saw: how the child ended,
and the raw bytes it replied.  The replies are claims of the program; only the host judges them.
The file imports the standard library, `kernel`, `program` and `wire` alone: its source text is
handed to the jail's interpreter.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import select
import signal
import sys
import time
from typing import Any

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
from stepcredit.sandbox.program import Limits, be_program

MAX_REPLIES = 4 << 20
TICK = 0.05
# Pages that a program shares with the zygote but that the kernel counts as its own.
INHERITED_MB = 16
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


class Life:
    """The end of a child: a pollable descriptor where the kernel has one, else a short tick."""

    def __init__(self, pid: int) -> None:
        """Watch one child."""
        self.pid, self.status = pid, -1
        self.fd = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else -1
        self.poll_ms = 1000.0 if self.fd >= 0 else 5.0

    def __enter__(self) -> Life:
        """Nothing to do: the descriptor is open."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the descriptor."""
        if self.fd >= 0:
            os.close(self.fd)

    def register(self, poll: select.poll) -> None:
        """Wake `poll` when the child ends."""
        if self.fd >= 0:
            poll.register(self.fd, select.POLLIN)

    def ended(self) -> bool:
        """Reap the child if it has ended."""
        if self.status < 0:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = status if pid else -1
        return self.status >= 0


def run_job(limits: Limits) -> None:
    """Be the init of one job: read it, run its programs one after the other, report each; exit."""
    if limits.namespaces:
        set_process(PR_SET_PDEATHSIG, signal.SIGKILL)
        set_process(PR_SET_DUMPABLE, 0)
        private_mounts()
    elif sys.platform == "linux":
        set_process(PR_SET_CHILD_SUBREAPER, 1)
    size = int.from_bytes(receive(4), "big")
    programs, timeout_s, max_output = wire.decode(receive(size))
    for code, calls in programs:
        if limits.namespaces:
            fresh_tmp(limits.disk_mb)
        report = run_program(code, calls, timeout_s, max_output, limits)
        data = wire.frame(wire.encode(report, MAX_REPLIES + 65536))
        while data:
            data = data[os.write(0, data) :]
    os._exit(0)


def receive(size: int) -> bytes:
    """Read exactly `size` bytes from the host."""
    data = bytearray()
    while len(data) < size:
        block = os.read(0, min(size - len(data), 1 << 20))
        if not block:
            os._exit(1)
        data += block
    return bytes(data)


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


def run_program(
    code: str, calls: list[str], timeout_s: float, max_output: int, limits: Limits
) -> list[Any]:
    """Run one program; returns [how it ended, number, seconds, reply bytes]."""
    reply_r, reply_w = os.pipe()
    output_r, output_w = os.pipe()
    start = time.monotonic()
    pid = os.fork()
    if pid == 0:
        os.close(reply_r)
        os.close(output_r)
        be_program(code, calls, reply_w, output_w, timeout_s, limits)
    os.close(reply_w)
    os.close(output_w)
    replies, written = bytearray(), 0
    streams = {reply_r: MAX_REPLIES, output_r: max_output}
    poll = select.poll()
    poll.register(0, 0)
    for fd in streams:
        os.set_blocking(fd, False)
        poll.register(fd, select.POLLIN)
    how, number, next_look, most_mb = "", 0, start + TICK, limits.memory_mb + INHERITED_MB
    with Life(pid) as life:
        life.register(poll)
        while not how:
            now = time.monotonic()
            if life.ended():
                break
            if now > start + timeout_s:
                how = "timeout"
            elif now > next_look:
                next_look = now + TICK
                how = "memory" if limits.namespaces and memory_used() > most_mb else ""
            wait_ms = min(life.poll_ms, TICK * 1000, 1 + 1000 * (start + timeout_s - now))
            for fd, _ in poll.poll(max(0, wait_ms)):
                if fd == 0:
                    how = "host gone"
                elif fd in streams:
                    block = read_some(fd)
                    if not block:
                        poll.unregister(fd)
                    replies += block if fd == reply_r else b""
                    written += len(block) if fd == output_r else 0
            if not how and (len(replies) > MAX_REPLIES or written > max_output):
                how = "output_limit"
        status = kill_all(pid, life.status, limits.namespaces)
    if how == "host gone":
        os._exit(1)
    seconds = time.monotonic() - start
    while len(replies) <= MAX_REPLIES and (block := read_some(reply_r)):
        replies += block
    while written <= max_output and (block := read_some(output_r)):
        written += len(block)
    os.close(reply_r)
    os.close(output_r)
    if not how and (len(replies) > MAX_REPLIES or written > max_output):
        how = "output_limit"
    if not how:
        number = os.waitstatus_to_exitcode(status)
        how = "exited" if number >= 0 else "signal"
    return [how, abs(number), seconds, bytes(replies[:MAX_REPLIES])]


def read_some(fd: int) -> bytes:
    """Read what is there now; empty at the end and when there is nothing."""
    try:
        return os.read(fd, 1 << 16)
    except BlockingIOError:
        return b""


def kill_all(pid: int, status: int, namespaces: bool) -> int:
    """Kill and reap the program and everything it started; returns the program's wait status."""
    while True:
        for victim in (-1,) if namespaces else (-pid, pid, *children()):
            # -1 is safe only as the init of a pid namespace: elsewhere it is the whole machine.
            if victim != pid or status < 0:
                try:
                    os.kill(victim, signal.SIGKILL)
                except (ProcessLookupError, PermissionError):
                    continue
        try:
            reaped, reaped_status = os.waitpid(-1, 0)
        except ChildProcessError:
            return status
        if reaped == pid:
            status = reaped_status


def children() -> list[int]:
    """List direct children, orphans of a program among them; empty where the kernel cannot say."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []


def memory_used() -> int:
    """Sum the private resident MB of all processes of this job but its init."""
    pages = 0
    for name in os.listdir("/proc"):
        if name.isdigit() and name != "1":
            try:
                with open(f"/proc/{name}/statm") as file:
                    _, resident, shared, *_ = file.read().split()
                pages += int(resident) - int(shared)
            except OSError:
                continue
    return pages * resource.getpagesize() >> 20


def main() -> None:
    """Start the zygote with the limits given as JSON in the first argument."""
    serve(Limits(**json.loads(sys.argv[1])))
