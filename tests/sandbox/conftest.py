"""One warm sandbox for all tests of this folder; skipped with the reason where there is no jail."""

from collections.abc import Iterator

import pytest

from stepcredit.sandbox import Sandbox, SandboxUnavailable, open_sandbox


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    try:
        opened = open_sandbox("bwrap", workers=2, timeout_s=20.0)
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    with opened:
        yield opened
