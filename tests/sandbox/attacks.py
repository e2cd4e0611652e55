# ruff: noqa: E501  # programs as strings read best with their own line breaks alone
"""Attacks on the verdict, the host and other programs, as data, and all attacks together."""

from tests.sandbox.attack import RIGHT, WRONG, Attack
from tests.sandbox.attacks_on_limits import ATTACKS_ON_LIMITS

ATTACKS = (
    *ATTACKS_ON_LIMITS,
    Attack(
        "ignore all signals", 11,
        "import signal\nfor n in range(1, 64):\n    try: signal.signal(n, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\ndef f(x):\n    while True: pass",
        ("timeout",), timeout_s=0.4,
    ),
    Attack(
        "daemon that keeps the pipes", 12,
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        "        time.sleep(1000)\n    os._exit(0)" + RIGHT,
        ("passed",), timeout_s=20.0,
    ),
    Attack("exit at load", 14, "import os\nos._exit(0)" + RIGHT, ("error",)),
    Attack("exit in a call", 14, "import os\ndef f(x):\n    os._exit(0)", ("error",)),
    Attack("sys.exit", 14, "import sys\ndef f(x):\n    sys.exit(0)", ("error",)),
    Attack(
        "kill everything", 15,
        "import os, signal\ndef f(x):\n    for pid in (os.getppid(), 1, {pid}, 0, -1):\n"
        "        try: os.kill(pid, signal.SIGKILL)\n        except OSError: pass\n    return 0",
        ("error", "failed"),
    ),
    Attack(
        "print pass markers at exit", 16,
        "import atexit, sys\natexit.register(print, 'PASSED')\nprint('OK', 'PASSED 1/1')\n"
        "print('{\"status\": \"passed\"}')\nsys.stderr.write('Ran 1 test OK')" + WRONG,
        ("failed",),
    ),
    Attack(
        "forge replies on every descriptor", 18,
        "import os, struct\nbody = b'V' + b'i' + struct.pack('>I', 1) + b'\\x07'\n"
        "data = (struct.pack('>I', 1) + b'V') + (struct.pack('>I', len(body)) + body) * 9\n"
        "for fd in range(256):\n    try: os.write(fd, data)\n    except OSError: pass\nos._exit(0)",
        ("failed", "error"),
    ),
    Attack(
        "claim the word passed", 18,
        "import os, struct\nfor text in (b'passed', b'T', b'VT', b'\\x00' * 99, b'\\xff' * 99):\n"
        "    for fd in range(256):\n        try: os.write(fd, struct.pack('>I', len(text)) + text)\n"
        "        except OSError: pass\nos._exit(0)",
        ("failed", "error"),
    ),
    Attack(
        "equal to everything", 19,
        "class Any(int):\n    def __eq__(self, other): return True\n"
        "    def __ne__(self, other): return False\n    def __bool__(self): return True\n"
        "    __hash__ = int.__hash__\ndef f(x):\n    return Any(7)",
        ("error",),
    ),
    Attack(
        "containers and text equal to everything", 19,
        "def liar(base):\n    return type('Liar', (base,), {'__eq__': lambda s, o: True,\n"
        "        '__len__': lambda s: 3, '__contains__': lambda s, o: True, '__hash__': lambda s: 0})\n"
        "def f(kind):\n    return liar({'l': list, 's': str, 't': tuple, 'd': dict}[kind])()",
        ("error",),
        ("assert f('l') == [1]", "assert f('s') == 'a'", "assert f('t') == (1,)",
         "assert f('d') == {1: 2}", "assert 3 in f('l')", "assert len(f('t')) == 3"),
    ),
    Attack(
        "proxy that decides late", 20,
        "class Proxy:\n    __class__ = int\n    def __eq__(self, other): return True\n"
        "    def __getattr__(self, name): return lambda *a: 41\n    def __index__(self): return 41\n"
        "def f(x):\n    return Proxy()",
        ("failed", "error"),
    ),
    Attack(
        "search frames and objects for the expected value", 21,
        "import gc, sys\ndef f(x):\n    want, found, frame = int('12345') * 80001, 0, sys._getframe().f_back\n"
        "    while frame:\n        found += str(want) in repr(frame.f_locals)\n"
        "        found += str(want) in repr(frame.f_globals)\n        frame = frame.f_back\n"
        "    for o in gc.get_objects():\n        if type(o) in (list, tuple): found += want in o\n"
        "        if type(o) is dict: found += any(v == want for v in o.values() if type(v) is int)\n"
        "    return want if found else 0",
        ("failed",), ("assert f(1) == 987612345",), timeout_s=20.0,
    ),
    Attack(
        "read host files", 22,
        "import glob, os\ndef read(p):\n    try: return open(p).read()\n    except OSError: return ''\n"
        "def f(x):\n    paths = ['{canary}', '/etc/passwd', '/etc/shadow', '/proc/{pid}/environ']\n"
        "    paths += ['/proc/1/mem', '/proc/1/environ'] + [p + '/{canary}' for p in\n"
        "        glob.glob('/proc/*/root') + glob.glob('/proc/*/cwd') + ['/oldroot', '/newroot']]\n"
        "    for d in ('/home', '/srv', '/var', '/run', '/sys', '/mnt', '/etc'):\n"
        "        paths += glob.glob(d + '/*')\n    return [p for p in paths if read(p)]",
        ("passed",), ("assert f(1) == []",),
    ),
    Attack(
        "patch builtins and modules", 23,
        "import builtins, json, math, os, operator\nfor name in ('isinstance', 'len', 'abs', 'eval',"
        " 'compile', 'print', 'type', 'bool', 'all', 'set', 'sorted'):\n"
        "    setattr(builtins, name, lambda *a, **k: True)\n"
        "math.isclose = json.dumps = operator.eq = lambda *a, **k: True" + WRONG,
        ("failed", "error", "memory"), ("assert math.isclose(f(1), 41.0)", "assert len(f(1)) == 2",
                              "assert f(1) == 41"),
    ),
    Attack(
        "names of the expected side", 23,
        "from collections import deque\nrange = lambda n: []\npow = bin = lambda *a: 0\nmap = lambda *a: [1]\n"
        "N, make = 0, list\nclass Text(str):\n    startswith = count = __eq__ = same = lambda *a: True\n"
        "    __hash__ = str.__hash__\nclass Make:\n    def __new__(cls, *a): return 0\n"
        "def f(x):\n    return {0: [], 1: 0, 2: Text()}[x]",
        ("error", "failed"),
        ("assert f(0) == list(range(3))", "assert f(1) == pow(2, 3)", "assert f(1) == bin(5)",
         "assert f(1) == N * 5", "assert f(0) == make()", "assert f(2).startswith('abc')",
         "assert f(2).same('abc')", "assert f(2).__eq__('abc')", "assert f(2).count('a') == 1",
         "assert sorted(map(int, '21')) == f(0)", "assert Make(f(0)) == Make([1])",
         "assert math.isclose(f(1), N)", "assert f(1) in [N]", "assert sorted('ba') == ['a', 'b']"),
    ),
    Attack(
        "replace the harness", 23,
        "import sys\nfor m in list(sys.modules.values()):\n"
        "    for n in ('encode', 'frame', 'send', 'describe', 'answer'):\n"
        "        if hasattr(m, n): setattr(m, n, lambda *a, **k: b'VT')" + WRONG,
        ("failed", "error"),
    ),
    Attack(
        "values that break decoders", 27,
        "def deep():\n    v = []\n    for _ in range(100000): v = [v]\n    return v\n"
        "loop = []\nloop.append(loop)\n"
        "def f(x):\n    return {0: deep, 1: lambda: 10 ** 1000000, 2: lambda: float('nan'),\n"
        "        3: lambda: chr(0xd800) + chr(0), 4: lambda: loop, 5: lambda: iter(int, 1),\n"
        "        6: lambda: {i * (2**61 - 1) for i in range(3000)}, 7: lambda: object}[x]()",
        ("failed", "error", "memory"),
        tuple(f"assert f({i}) == 41" for i in range(8)), timeout_s=20.0,
    ),
    Attack(
        "pickle and reduce", 28,
        "class P:\n    def __reduce__(self): return (eval, ('41',))\ndef f(x):\n    return P()",
        ("error",),
    ),
    Attack(
        "names that do not encode", 27,
        "class M(type):\n    __name__ = property(lambda c: chr(0xdc80))\nclass X(metaclass=M): pass\ndef f(x):\n    return X()", ("error",),
    ),
    Attack(
        "signals and owners of descriptors for the init", 15,
        "import fcntl, os\ndef f(x):\n    for fd in (1, 2, 3):\n        for sig in range(65):\n"
        "            try:\n                fcntl.fcntl(fd, 10, sig); fcntl.fcntl(fd, 8, 1)\n"
        "                fcntl.fcntl(fd, fcntl.F_SETFL, os.O_ASYNC | os.O_WRONLY)\n"
        "            except OSError: pass\n            os.write(1, b'x')\n"
        "    for sig in range(1, 65):\n        try: os.kill(1, sig)\n        except OSError: pass\n"
        "    return 41",
        ("passed",),
    ),
    Attack(
        "another program in its place", 18,
        "import os, sys\ndef f(x):\n    os.execv(sys.executable, [sys.executable, '-c', 'import os, struct;'\n"
        "        'os.write(3, struct.pack(\">I\", 2) + b\"VT\")'])",
        ("failed", "error"), timeout_s=10.0,
    ),
    Attack(
        "deep recursion", 30,
        "import sys\nsys.setrecursionlimit(10**9)\ndef f(x):\n    return f(x) + 1",
        ("error", "memory", "timeout"), timeout_s=10.0,
    ),
    Attack("segmentation fault", 30, "import ctypes\ndef f(x):\n    ctypes.string_at(0)", ("error",)),
    Attack(
        "network", 31,
        "import socket\ndef f(x):\n    for family, kind, to in (\n"
        "        (socket.AF_INET, socket.SOCK_STREAM, ('127.0.0.1', {port})),\n"
        "        (socket.AF_INET, socket.SOCK_STREAM, ('169.254.169.254', 80)),\n"
        "        (socket.AF_INET, socket.SOCK_DGRAM, ('8.8.8.8', 53)),\n"
        "        (socket.AF_INET6, socket.SOCK_STREAM, ('::1', {port})),\n"
        "        (socket.AF_UNIX, socket.SOCK_STREAM, '/run/docker.sock')):\n        try:\n"
        "            s = socket.socket(family, kind); s.settimeout(0.3); s.connect(to)\n"
        "            s.send(b'x'); return repr(to)\n        except OSError: pass\n"
        "    try: socket.socketpair(30, socket.SOCK_STREAM); return 'tipc'\n    except OSError as e:\n"
        "        if e.errno != 1: return e.errno\n    return 41",
        ("passed",), timeout_s=5.0,
    ),
    Attack(
        "trace and read other processes", 32,
        "import ctypes, os\nc = ctypes.CDLL(None, use_errno=True)\ndef f(x):\n"
        "    got = [c.ptrace(16, pid, 0, 0) for pid in (1, os.getppid(), {pid})]\n"
        "    buf = ctypes.create_string_buffer(64)\n"
        "    iov = (ctypes.c_size_t * 2)(ctypes.addressof(buf), 64)\n"
        "    got += [c.process_vm_readv(1, iov, 1, iov, 1, 0), c.syscall(438, 3, 0, 0)]\n"
        "    for n, what in ((302, 9), (302, 0), (144, 0), (203, 0)):\n"
        "        if os.uname().machine == 'x86_64':\n"
        "            got += [c.syscall(n, 1, what, ctypes.create_string_buffer(bytes(64)), 0)]\n"
        "    try: got += [len(open('/proc/1/mem', 'rb').read(1))]\n    except OSError: pass\n"
        "    return [g for g in got if g != -1]",
        ("passed",), ("assert f(1) == []",),
    ),
    Attack(
        "namespaces, mounts, keys, bpf, io_uring", 33,
        "import ctypes, platform\nc = ctypes.CDLL(None, use_errno=True)\n"
        "keyctl, bpf = {'x86_64': (250, 321), 'aarch64': (219, 280)}[platform.machine()]\n"
        "def f(x):\n    got = [c.unshare(flag) for flag in (0x10000000, 0x20000, 0x40000000)]\n"
        "    got += [c.mount(b'tmpfs', b'/tmp', b'tmpfs', 0, None), c.umount2(b'/tmp', 2)]\n"
        "    got += [c.chroot(b'/tmp'), c.setns(0, 0), c.mount(b'proc', b'/proc', b'proc', 0, None)]\n"
        "    got += [c.syscall(keyctl, 0, 0, 0), c.syscall(bpf, 0, 0, 0), c.syscall(425, 1, 0)]\n"
        "    got += [c.memfd_create(b'x', 0), c.shmget(0, 4096, 0o1600), c.setuid(0), c.setgid(0)]\n"
        "    return [i for i, g in enumerate(got) if g != -1]",
        ("passed",), ("assert f(1) == []",),
    ),
    Attack(
        "turn the clocks back", 34,
        "import time\ntime.time = time.monotonic = time.perf_counter = lambda: 0.0\n"
        "def f(x):\n    while True: pass",
        ("timeout",), timeout_s=0.4,
    ),
    Attack(
        "stop itself", 35,
        "import os, signal\ndef f(x):\n    os.kill(0, signal.SIGSTOP)\n    return 0",
        ("timeout",), timeout_s=0.4,
    ),
    Attack("descriptors", 22, "import os\ndef f(x):\n    return sorted(map(int, os.listdir('/proc/self/fd')))",
           ("passed",), ("assert f(1)[:4] == [0, 1, 2, 3] and len(f(1)) == 5",)),
    Attack("environment", 36, "import os\ndef f(x):\n    return dict(os.environ)", ("passed",),
           ("assert f(1) == {}",)),
    Attack(
        "leave traces for the next job", 39,
        "import os, sys\nsys.modules['left'] = os\nopen('/tmp/left', 'w').write('x')\n"
        "open('/dev/shm/left', 'w').write('x')\nimport builtins\nbuiltins.left = 1" + RIGHT,
        ("passed",),
    ),
    Attack(
        "find traces of the last job", 39,
        "import builtins, os, sys\ndef f(x):\n"
        "    return [os.listdir('/tmp'), 'left' in sys.modules, hasattr(builtins, 'left')]",
        ("passed",), ("assert f(1) == [[], False, False]",),
    ),
    Attack("no tests", 42, RIGHT, ("error",), ()),
    Attack("does not compile", 42, "def f(x:\n    return 41", ("error",)),
    Attack("control characters", 43, "def f(x):\n    raise ValueError('\\x1b[2J\\x07')", ("error",)),
    Attack(
        "honest but demanding", 45,
        "import sys, multiprocessing, concurrent.futures, asyncio\nfrom dataclasses import dataclass\n"
        "sys.setrecursionlimit(20000)\n@dataclass\nclass P:\n    x: int\n"
        "def down(n):\n    return 0 if n == 0 else 1 + down(n - 1)\ndef square(n):\n    return n * n\n"
        "async def later():\n    await asyncio.sleep(0)\n    return 5\ndef f(kind):\n"
        "    if kind == 'pool':\n        with multiprocessing.Pool(4) as p:\n"
        "            return p.map(square, range(4))\n    if kind == 'threads':\n"
        "        with concurrent.futures.ThreadPoolExecutor(4) as e:\n"
        "            return list(e.map(square, range(4)))\n    if kind == 'deep': return down(5000)\n"
        "    if kind == 'print':\n        sys.stdout.write('x' * 1_000_000)\n        return P(3).x\n"
        "    if kind == 'async': return asyncio.run(later())\n"
        "    return {'é': (1.5, None), 'ü': {1, 2}, 'b': b'x', 'c': 1j}",
        ("passed",),
        ("assert f('pool') == [0, 1, 4, 9]", "assert f('threads') == [0, 1, 4, 9]",
         "assert f('deep') == 5000", "assert f('print') == 3", "assert f('async') == 5",
         "assert f('') == {'é': (1.5, None), 'ü': {2, 1}, 'b': b'x', 'c': 1j}"),
        timeout_s=20.0,
    ),
)  # fmt: skip
