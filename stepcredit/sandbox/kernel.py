"""Calls to the Linux kernel that Python does not offer, among them the seccomp filter.

The file imports the standard library alone, because its source text also runs inside the jail.
"""

from __future__ import annotations

import ctypes
import os
import struct
from typing import Any

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWPID = 0x20000, 0x8000000, 0x20000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE, MNT_DETACH = 2, 4, 8, 1 << 14, 1 << 18, 2
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER = 1, 4, 22, 36
PR_SET_NO_NEW_PRIVS = 38
Numbers = dict[str, tuple[int, ...]]

# Calls that no program under test needs and that reach outside its process or its accounting
# (shared memory is in no process's address space, so it would escape the memory limit).  The zygote
# gives them up for all its descendants.  Programs also give up those of PRIVILEGED: namespaces and
# mounts, and what may slow down other processes of the same user, the job's init among them.
DENIED: Numbers = {
    "x86_64": (
        *(29, 41, 64, 68, 101, 103, 135, 154, 155, 159, 161, 163, 164, 167, 169, 172, 173, 175),
        *(176, 179, 227, 240, 246, 248, 249, 250, 298, 300, 303, 304, 305, 310, 311, 312, 313),
        *(319, 321, 323, 425, 426, 427, 428, 429, 430, 432, 438, 442, 447),
    ),
    "aarch64": (
        *(41, 51, 60, 89, 92, 104, 105, 106, 112, 116, 117, 142, 170, 171, 180, 186, 190, 194, 198),
        *(217, 218, 219, 224, 241, 262, 264, 265, 266, 270, 271, 272, 273, 279, 280, 282, 425, 426),
        *(427, 428, 429, 430, 432, 438, 442, 447),
    ),
}
PRIVILEGED: Numbers = {
    "x86_64": (141, 142, 144, 165, 166, 203, 251, 256, 272, 279, 308, 314),
    "aarch64": (30, 39, 40, 97, 118, 119, 122, 140, 238, 239, 268, 274),
}
# The architecture's token and the numbers of clone, prlimit64, socketpair, mmap, flock and fcntl.
ARCH = {
    "x86_64": (0xC000003E, 56, 302, 53, 9, 73, 72),
    "aarch64": (0xC00000B7, 220, 261, 199, 222, 32, 25),
}
# fcntl's commands that set a lock, and those that ask for one (of a file, of an open file).
SET_LOCK, GET_LOCK = (6, 7, 37, 38), (5, 36)
CLONE3, NEW_NAMESPACES, EPERM, ENOSYS = 435, 0x7E020000, 1, 38


def libc() -> Any:
    """Give the C library with errno kept."""
    return ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
    """Raise OSError for a failed C call."""
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def set_process(option: int, value: int) -> None:
    """Set a property of this process by prctl."""
    check(libc().prctl(option, int(value), 0, 0, 0), f"prctl {option}")


def drop_capabilities() -> None:
    """Give up every capability; with no_new_privs set none comes back."""
    header, none = struct.pack("Ii", 0x20080522, 0), struct.pack("6I", *[0] * 6)
    check(libc().capset(header, none), "drop capabilities")


def deny_calls(numbers: Numbers) -> None:
    """Install a seccomp filter; on other architectures the namespaces stand alone."""
    machine = os.uname().machine
    if machine not in ARCH:
        return
    set_process(PR_SET_NO_NEW_PRIVS, 1)
    program = seccomp_program(machine, numbers[machine])
    buffer = ctypes.create_string_buffer(program)
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
    check(libc().prctl(PR_SET_SECCOMP, 2, header, 0, 0), "seccomp")


def seccomp_program(machine: str, numbers: tuple[int, ...]) -> bytes:
    """Assemble the filter: load, compare, return, as struct sock_filter (code, jt, jf, k)."""
    arch, clone, prlimit, socketpair, mmap, flock, fcntl = ARCH[machine]
    load, jump_eq, jump_ge, jump_set, ret = 0x20, 0x15, 0x35, 0x45, 0x06
    kill, errno, allow = 0x80000000, 0x00050000, 0x7FFF0000
    steps = [
        *((load, 0, 0, 4), (jump_eq, 1, 0, arch), (ret, 0, 0, kill)),
        # Numbers from 2**30 are the x32 calls: the same calls under other numbers.
        *((load, 0, 0, 0), (jump_ge, 0, 1, 1 << 30), (ret, 0, 0, kill)),
        # clone3 hides its flags behind a pointer; where it is unknown, clone is used instead.
        *((jump_eq, 0, 1, CLONE3), (ret, 0, 0, errno | ENOSYS)),
        *((jump_eq, 0, 4, clone), (load, 0, 0, 16), (jump_set, 0, 1, NEW_NAMESPACES)),
        *((ret, 0, 0, errno | EPERM), (ret, 0, 0, allow)),
        # Limits may be set on oneself (pid 0) alone; pairs of sockets are AF_UNIX (1) alone.
        *((jump_eq, 0, 4, prlimit), (load, 0, 0, 16), (jump_eq, 1, 0, 0)),
        *((ret, 0, 0, errno | EPERM), (ret, 0, 0, allow)),
        *((jump_eq, 0, 4, socketpair), (load, 0, 0, 16), (jump_eq, 1, 0, 1)),
        *((ret, 0, 0, errno | EPERM), (ret, 0, 0, allow)),
        # Memory that is shared (flag 1, not 2) and of no file (0x20) outlives who filled it and is
        # then in nobody's account.
        *((jump_eq, 0, 5, mmap), (load, 0, 0, 40), (jump_set, 0, 2, 1), (jump_set, 0, 1, 0x20)),
        *((ret, 0, 0, errno | EPERM), (ret, 0, 0, allow)),
        # Files of the runtime and devices are the host's, so locks on them would be seen outside.
        # To set one does nothing and succeeds: sqlite and others lock files that nobody shares.
        *((jump_eq, 0, 1, flock), (ret, 0, 0, errno)),
        *((jump_eq, 0, 2 * len((*SET_LOCK, *GET_LOCK)) + 2, fcntl), (load, 0, 0, 24)),
        *(step for n in SET_LOCK for step in ((jump_eq, 0, 1, n), (ret, 0, 0, errno))),
        *(step for n in GET_LOCK for step in ((jump_eq, 0, 1, n), (ret, 0, 0, errno | EPERM))),
        (ret, 0, 0, allow),
    ]
    for number in numbers:
        steps += [(jump_eq, 0, 1, number), (ret, 0, 0, errno | EPERM)]
    steps.append((ret, 0, 0, allow))
    return b"".join(struct.pack("HBBI", *step) for step in steps)
