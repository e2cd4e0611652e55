"""Files of programs: every row comes back, bad ones named by their line."""

import json
from pathlib import Path

import pytest

from stepcredit.sandbox import Sandbox, grade_file

GOOD = {"code": "def f(x): return x", "tests": ["assert f(1) == 1", "assert f(2) == 3"], "id": 7}


def test_rows_come_back_in_order_with_their_verdicts(sandbox: Sandbox, tmp_path: Path) -> None:
    lines = [
        json.dumps(GOOD).encode(),
        b"",
        b"{not json",
        b"[1, 2]",
        b'{"code": "x = 1"}',
        b'{"code": 3, "tests": []}',
        b'{"code": "x = 1", "tests": "assert x == 1"}',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"code": "x = 1", "tests": []}',
        b'{"code": "x = 1", "tests": ["assert x == 1"], "status": "old", "message": "old"}',
    ]
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\n".join(lines))
    rows = list(grade_file(path))
    first = rows[0]
    assert {key: first[key] for key in GOOD} == GOOD
    assert (first["status"], first["passed"], first["total"]) == ("failed", 1, 2)
    bad = dict(zip((3, 4, 5, 6, 7, 8, 9), rows[1:8], strict=True))
    for number, row in bad.items():
        assert (row["status"], row["passed"], row["total"]) == ("error", 0, 0)
        assert row["message"].startswith(f"line {number}: ")
    assert "not JSON" in bad[3]["message"]
    assert "must be an object" in bad[4]["message"]
    assert "'tests' is missing" in bad[5]["message"]
    assert "code is int" in bad[6]["message"]
    assert "list of strings" in bad[7]["message"]
    assert (rows[8]["status"], rows[8]["total"]) == ("error", 0)
    assert (rows[9]["status"], rows[9]["passed"]) == ("passed", 1)
    assert "message" not in rows[9]
    assert len(rows) == 10


def test_more_rows_than_one_batch(sandbox: Sandbox, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [{"code": f"x = {i}", "tests": [f"assert x == {i}"]} for i in range(70)]
    path.write_text("\n".join(map(json.dumps, rows)))
    graded = list(grade_file(path))
    assert [row["code"] for row in graded] == [row["code"] for row in rows]
    assert {row["status"] for row in graded} == {"passed"}


def test_a_row_of_too_much_text_leaves_the_others_graded(sandbox: Sandbox, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    large = [f"assert f({[0] * 60_000}) == {i}" for i in range(24)]
    rows = [GOOD, GOOD | {"tests": large}, GOOD]
    path.write_text("\n".join(map(json.dumps, rows)))
    graded = list(grade_file(path))
    assert [row["status"] for row in graded] == ["failed", "error", "failed"]
    assert (graded[1]["passed"], graded[1]["total"]) == (0, 24)


def test_a_missing_file_raises_before_the_first_row(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        next(grade_file(tmp_path / "none.jsonl"))
