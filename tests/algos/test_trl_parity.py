"""Our losses next to those of TRL's own trainer: see benchmarks/trl_parity.py."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("trl") is None, reason="needs TRL: pip install trl")
def test_loss_and_gradient_agree_with_trl() -> None:
    run = subprocess.run(
        [sys.executable, "benchmarks/trl_parity.py"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "\nagree" in run.stdout
