"""Settings for every test: one thread, no network, repeatable hypothesis, no bare imports."""

import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

# Test modules import torch after this file: it reads the thread counts once.
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")

FOLDERS = {"envs", "agents", "algos", "sandbox"}


@pytest.fixture(autouse=True)
def no_bare_imports() -> Iterator[None]:
    """The links at the root make `import envs` work here and nowhere else."""
    yield
    bare = FOLDERS & sys.modules.keys()
    assert not bare, f"imported as {sorted(bare)}: write `from stepcredit.<folder> import ...`"
