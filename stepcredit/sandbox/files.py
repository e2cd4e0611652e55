"""Grade a JSON Lines file of programs and their asserts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from stepcredit.sandbox.core import open_sandbox
from stepcredit.sandbox.judge import Verdict

BATCH = 64


def grade_file(path: str | Path, backend: str = "auto") -> Iterator[dict[str, Any]]:
    """Yield each row {code, tests} with {status, passed, total} added, in the file's order.

    A row that cannot be graded has status "error" and a message that names its line; the message of
    a row that is not passed names the first test that is not. Raises OSError when the file cannot
    be read and SandboxUnavailable when there is no jail, before the first row.
    """
    with open(path, "rb") as file, open_sandbox(backend) as sandbox:
        lines = ((number, line) for number, line in enumerate(file, 1) if line.strip())
        while batch := list(islice(lines, BATCH)):
            rows = [_read(number, line) for number, line in batch]
            good = [row for row in rows if "status" not in row]
            verdicts = iter(sandbox.grade_many([([row["code"]], [row["tests"]]) for row in good]))
            for row in rows:
                if "status" not in row:
                    ((judged),) = next(verdicts)
                    row |= {"status": judged.status, "passed": judged.passed, "total": judged.total}
                    if judged.message:
                        row["message"] = _message(judged)
                yield row


def _message(judged: Verdict) -> str:
    """Say which test the message of a verdict is about, counted from 1."""
    place = next((i for i, test in enumerate(judged.tests, 1) if not test.passed), None)
    return judged.message if place is None else f"test {place}: {judged.message}"


def _read(number: int, line: bytes) -> dict[str, Any]:
    """Parse one line; what is wrong with it becomes a finished row."""
    row: Any = None
    try:
        row = json.loads(line)
        fault = _fault(row)
    except (ValueError, RecursionError) as error:
        fault = f"not JSON: {error}"
    if not fault:
        # A graded file may be graded again.
        return {key: row[key] for key in row if key not in ("status", "passed", "total", "message")}
    kept = row if isinstance(row, dict) else {}
    failed = {"status": "error", "passed": 0, "total": 0, "message": f"line {number}: {fault}"}
    return {**kept, **failed}


def _fault(row: Any) -> str:
    if not isinstance(row, dict):
        return f"a {type(row).__name__}: must be an object with code and tests"
    for key in ("code", "tests"):
        if key not in row:
            return f"the key {key!r} is missing"
    if not isinstance(row["code"], str):
        return f"code is {type(row['code']).__name__}: must be a string"
    if not isinstance(row["tests"], list) or not all(isinstance(t, str) for t in row["tests"]):
        return "tests must be a list of strings, one assert each"
    return ""
