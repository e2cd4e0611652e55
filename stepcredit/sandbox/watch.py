"""Watch one program from the job's init: time, memory, output, and the end of all it started.

What a program sent or printed lies in mappings of its own, which go when it has been reported: the
init's memory, which the next program inherits, never holds anything of another program.  The file
imports the standard library, `wire` and `program` alone: its source also runs inside the jail.
"""

from __future__ import annotations

import mmap
import os
import select
import signal
import time

from stepcredit.sandbox import wire
from stepcredit.sandbox.program import Limits, be_program

MAX_REPLIES = 4 << 20
BLOCK = 1 << 16
TICK = 0.05
# Pages that a program shares with the zygote but that the kernel counts as its own.
INHERITED_MB = 16


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


def private(size: int) -> mmap.mmap:
    """Give memory that is gone for good once it is closed, as freed heap is not."""
    return mmap.mmap(-1, max(1, size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


class Streams:
    """The reading ends of a program's two pipes and what came out of them."""

    def __init__(self, reply: int, output: int, max_output: int) -> None:
        """Take over both descriptors."""
        self.reply, self.output, self.max_output = reply, output, max_output
        self.replied = self.written = 0
        self.memory = private(MAX_REPLIES + 2 * BLOCK)
        self.view = memoryview(self.memory)
        for fd in (reply, output):
            os.set_blocking(fd, False)

    def read(self, fd: int) -> int:
        """Read what is there now; 0 at the end, -1 when there is nothing yet."""
        at = self.replied if fd == self.reply else MAX_REPLIES + BLOCK
        try:
            size = os.readv(fd, [self.view[at : at + BLOCK]])
        except BlockingIOError:
            return -1
        self.replied += size if fd == self.reply else 0
        self.written += size if fd == self.output else 0
        return size

    def full(self) -> bool:
        """Tell whether the program sent or wrote more than it may."""
        return self.replied > MAX_REPLIES or self.written > self.max_output

    def drain(self) -> None:
        """Read what is left when nobody writes any more."""
        for fd in (self.reply, self.output):
            while not self.full() and self.read(fd) > 0:
                continue

    def close(self) -> None:
        """Close the pipes and forget what came."""
        os.close(self.reply)
        os.close(self.output)
        self.view.release()
        self.memory.close()


def run_program(source: mmap.mmap, timeout_s: float, max_output: int, limits: Limits) -> None:
    """Run one program and write [how it ended, number, seconds] and its replies to the host."""
    reply_r, reply_w = os.pipe()
    output_r, output_w = os.pipe()
    start = time.monotonic()
    pid = os.fork()
    if pid == 0:
        os.close(reply_r)
        os.close(output_r)
        be_program(source, reply_w, output_w, timeout_s, limits)
    source.close()
    os.close(reply_w)
    os.close(output_w)
    streams = Streams(reply_r, output_r, max_output)
    how, status = watch(pid, streams, start, timeout_s, limits)
    seconds, number = time.monotonic() - start, 0
    streams.drain()
    if not how and streams.full():
        how = "output_limit"
    if not how:
        number = os.waitstatus_to_exitcode(status)
        how = "exited" if number >= 0 else "signal"
    size = min(streams.replied, MAX_REPLIES)
    write(wire.frame(wire.encode([how, abs(number), seconds])) + size.to_bytes(4, "big"))
    write(streams.view[:size])
    streams.close()


def write(data: bytes | memoryview) -> None:
    """Send to the host whole."""
    while len(data):
        data = data[os.write(0, data) :]


def watch(
    pid: int, streams: Streams, start: float, timeout_s: float, limits: Limits
) -> tuple[str, int]:
    """Wait for the program's end or the first limit it crosses, then kill all of it."""
    poll = select.poll()
    poll.register(0, 0)
    poll.register(streams.reply, select.POLLIN)
    poll.register(streams.output, select.POLLIN)
    how, next_look = "", start + TICK
    with Life(pid) as life:
        life.register(poll)
        while not how and not life.ended():
            now = time.monotonic()
            if now > start + timeout_s:
                how = "timeout"
            elif now > next_look:
                next_look = now + TICK
                how = "memory" if limits.namespaces and uses_too_much(limits) else ""
            wait_ms = min(life.poll_ms, TICK * 1000, 1 + 1000 * (start + timeout_s - now))
            for fd, _ in poll.poll(0 if how else max(0, wait_ms)):
                if fd == 0:
                    how = "host gone"
                elif fd != life.fd and streams.read(fd) == 0:
                    poll.unregister(fd)
            if not how and streams.full():
                how = "output_limit"
        status = kill_all(pid, life.status, limits.namespaces)
    if how == "host gone":
        os._exit(1)
    return how, status


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


def uses_too_much(limits: Limits) -> bool:
    """Tell whether all processes of the job but its init hold more memory than allowed.

    Resident sizes count what a forked process shares with its parent once for each, so only a sum
    above the limit is looked at closely, where each page counts once.
    """
    most = (limits.memory_mb + INHERITED_MB) << 20
    pids = [name for name in os.listdir("/proc") if name.isdigit() and name != "1"]
    return sum(map(resident, pids)) > most and sum(map(proportional, pids)) > most


def resident(pid: str) -> int:
    """Give the memory that is of no file; shared memory is the program's own like any other."""
    return field_bytes(f"/proc/{pid}/status", "RssAnon:", "RssShmem:", "VmSwap:")


def proportional(pid: str) -> int:
    """Give a process's part of its pages; all of them when it forbids the close look."""
    part = field_bytes(f"/proc/{pid}/smaps_rollup", "Pss_Anon:", "Pss_Shmem:", "SwapPss:")
    # Asked again: a process that ended meanwhile has neither.
    return part or resident(pid)


def field_bytes(path: str, *names: str) -> int:
    """Add up fields given in kB; a process that is gone or hidden has none."""
    try:
        with open(path) as file:
            lines = [line.split() for line in file]
    except OSError:
        return 0
    return sum(int(line[1]) for line in lines if line and line[0] in names) << 10
