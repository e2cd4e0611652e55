import json
from pathlib import Path

import pytest

from stepcredit.cli import main

pytestmark = pytest.mark.usefixtures("elsewhere")


def told(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err


def test_sandbox_shows_what_was_proved(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from stepcredit.sandbox import BackendReport

    def report(name: str, available: bool) -> BackendReport:
        guarantees = {"network": available, "memory": True}
        reason = "" if available else "no bwrap"
        return BackendReport(
            name=name, available=available, guarantees=guarantees, reason=reason, fix="get it"
        )

    reports = [report("bwrap", True), report("unsafe_local", True)]
    monkeypatch.setattr("stepcredit.sandbox.probe", lambda: reports)
    assert main(["sandbox"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("used: bwrap, ") and "proved: network" in text
    assert "bwrap: works" in text
    assert "unsafe_local: no jail; never chosen by itself" in text
    assert text.index("never chosen by itself") > text.index("bwrap: works")
    reports[0] = report("bwrap", False)
    assert main(["sandbox"]) == 1
    assert capsys.readouterr().out.startswith("used: none")
    assert main(["sandbox", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found[0]["reason"] == "no bwrap" and found[0]["guarantees"]["network"] is False


@pytest.mark.filterwarnings("ignore:unsafe_local")
def test_grade_writes_verdicts_and_tells_bad_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = [
        {"id": 7, "code": "def f(x): return 2 * x", "tests": ["assert f(2) == 4"]},
        {"code": "def f(x): return x", "tests": ["assert f(2) == 4", "assert f(0) == 0"]},
    ]
    good = "".join(json.dumps(row) + "\n" for row in answers)
    (tmp_path / "a.jsonl").write_text(good)
    grade = ["grade", "code", "a.jsonl", "--backend", "unsafe_local"]
    assert main([*grade, "--out", "b.jsonl"]) == 0
    rows = [json.loads(line) for line in (tmp_path / "b.jsonl").read_text().splitlines()]
    assert [(row["passed"], row["total"]) for row in rows] == [(1, 1), (1, 2)]
    assert rows[0]["id"] == 7
    assert "message" not in rows[0] and rows[1]["message"].startswith("test 1: got 2")
    assert "2 graded" in told(capsys)
    (tmp_path / "a.jsonl").write_text(good + "not json\n")
    assert main(grade) == 1
    captured = capsys.readouterr()
    assert "line 3: not JSON: " in captured.out.splitlines()[2] and "1 error" in captured.err
    assert main([*grade, "--out", "a.jsonl"]) == 2
    assert "is the file being read" in told(capsys)
    assert (tmp_path / "a.jsonl").read_text().startswith(good)


def test_grade_with_an_unknown_backend_leaves_an_old_file_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"code": "", "tests": []}) + "\n")
    (tmp_path / "old.jsonl").write_text("precious")
    assert main(["grade", "code", "a.jsonl", "--backend", "bwarp", "--out", "old.jsonl"]) == 2
    assert "bwarp" in told(capsys)
    assert (tmp_path / "old.jsonl").read_text() == "precious"


@pytest.mark.parametrize(
    "arguments", [["math", "a.jsonl"], ["a.jsonl"], ["math"], [], ["code"]], ids=str
)
def test_grade_says_what_it_grades(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["grade", *arguments])
    assert left.value.code == 2
    said = "error: only code is graded so far; write: stepcredit grade code FILE.jsonl\n"
    assert told(capsys).startswith(said)


@pytest.mark.filterwarnings("ignore:unsafe_local")
def test_a_file_without_a_line_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.jsonl").write_text("\n")
    (tmp_path / "old.jsonl").write_text("precious")
    grade = ["grade", "code", "a.jsonl", "--backend", "unsafe_local", "--out", "old.jsonl"]
    assert main(grade) == 2
    assert "error: a.jsonl: holds no line; write one JSON object a line" in told(capsys)
    assert (tmp_path / "old.jsonl").read_text() == "precious"
