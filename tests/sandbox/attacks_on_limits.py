# ruff: noqa: E501  # programs as strings read best with their own line breaks alone
"""Attacks on time, memory, disk, processes and output, as data."""

from tests.sandbox.attack import RIGHT, Attack

ATTACKS_ON_LIMITS = (
    Attack(
        "fork bomb", 1,
        "import os\ndef f(x):\n    while True:\n        try: os.fork()\n        except OSError: pass",
        ("timeout", "memory", "error"), timeout_s=0.5,
    ),
    Attack(
        "thread bomb", 2,
        "import threading, time\ndef f(x):\n    while True:\n"
        "        threading.Thread(target=time.sleep, args=(60,)).start()",
        ("error", "memory", "timeout"),
    ),
    Attack("memory bomb", 3, "def f(x):\n    b = []\n    while True: b.append(bytearray(1 << 24))",
           ("memory",), timeout_s=20.0),
    Attack(
        "memory bomb of many children", 4,
        "import os, time\ndef f(x):\n    for _ in range(12):\n        if os.fork() == 0:\n"
        "            b = bytearray(b'x') * (60 << 20)\n            time.sleep(60)\n"
        "    time.sleep(60)",
        ("memory",), timeout_s=8.0,
    ),
    Attack(
        "shared memory of many children", 4,
        "import mmap, os\ndef f(x):\n    held = 0\n    for _ in range(8):\n"
        "        for fd in (-1, '/dev/zero'):\n            if os.fork() == 0:\n                try:\n"
        "                    m = mmap.mmap(fd if fd == -1 else os.open(fd, os.O_RDWR), 60 << 20)\n"
        "                    m.write(bytes(60 << 20))\n                    os._exit(7)\n"
        "                finally: os._exit(0)\n"
        "            held += os.waitstatus_to_exitcode(os.wait()[1]) == 7\n    return held",
        ("passed",), ("assert f(1) == 0",), timeout_s=20.0,
    ),
    Attack(
        "shared memory that outlives who filled it", 4,
        "import mmap\nheld = [mmap.mmap(-1, 1 << 20)]" + RIGHT, ("error",),
    ),
    Attack(
        "memory hidden from a close look", 4,
        "import ctypes, os, time\nctypes.CDLL(None).prctl(4, 0, 0, 0, 0)\ndef f(x):\n"
        "    for _ in range(12):\n        if os.fork() == 0:\n"
        "            b = bytearray(b'x') * (60 << 20)\n            time.sleep(60)\n    time.sleep(60)",
        ("memory",), timeout_s=8.0,
    ),
    Attack(
        "memory that forks share counts once", 4,
        "import os, time\ndef f(x):\n    b = bytearray(b'x') * (100 << 20)\n    for _ in range(4):\n"
        "        if os.fork() == 0:\n            time.sleep(0.5)\n            os._exit(0)\n"
        "    for _ in range(4): os.wait()\n    return 41",
        ("passed",), timeout_s=20.0,
    ),
    Attack(
        "disk fill", 5,
        "def f(x):\n    for i in range(10**6):\n"
        "        with open(f'/tmp/{i}', 'wb') as file: file.write(b'x' * (1 << 22))\n    return 41",
        ("error",),
    ),
    Attack("inode fill", 5, "def f(x):\n    for i in range(10**6): open(f'/tmp/{i}', 'w').close()",
           ("error",), timeout_s=5.0),
    Attack(
        "write outside the workspace", 6,
        "import os\ndef f(x):\n"
        "    for p in ('/x', '/etc/x', '/usr/x', '/dev/x', '/proc/x', os.__file__, '{canary}'):\n"
        "        try: os.close(os.open(p, os.O_WRONLY | os.O_CREAT)); return p\n"
        "        except OSError: pass\n    return 41",
        ("passed",),
    ),
    Attack("endless output", 7, "def f(x):\n    while True: print('x' * 10000)", ("output_limit",),
           timeout_s=20.0),
    Attack("one huge line", 7, "def f(x):\n    print('x' * 50_000_000, flush=True)\n    return 41",
           ("output_limit",), timeout_s=20.0),
    Attack(
        "both outputs at once", 8,
        "import os, threading\ndef pour(fd):\n    while True: os.write(fd, b'y' * 5000)\n"
        "def f(x):\n    threading.Thread(target=pour, args=(1,)).start()\n    pour(2)",
        ("output_limit",), timeout_s=20.0,
    ),
    Attack("huge reply", 7, "def f(x):\n    return 'x' * 50_000_000", ("error",), timeout_s=5.0),
    Attack(
        "flood of the reply pipe", 7,
        "import os\ndef f(x):\n    while True:\n        for fd in range(3, 9):\n"
        "            try: os.write(fd, b'z' * 65536)\n            except OSError: pass",
        ("output_limit",), timeout_s=20.0,
    ),
    Attack("endless loop", 9, "def f(x):\n    while True: pass", ("timeout",), timeout_s=0.4),
    Attack("endless loop in C", 9, "def f(x):\n    return 10 ** 10 ** 9", ("timeout", "memory"),
           timeout_s=0.6),
    Attack("sleep", 10, "import time\ndef f(x):\n    time.sleep(1000)", ("timeout",), timeout_s=0.4),
    Attack("read stdin", 10, "import sys\ndef f(x):\n    return sys.stdin.read() + input()",
           ("error",)),
)  # fmt: skip
