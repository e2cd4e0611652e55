import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPCREDIT_CACHE", str(tmp_path_factory.getbasetemp() / "warm-starts"))
