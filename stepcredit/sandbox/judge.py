"""Verdicts: what is asked of a program, and how its replies are judged on the host."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from stepcredit.sandbox.asserts import CannotTranslate, HostTest, translate
from stepcredit.sandbox.pool import Report
from stepcredit.sandbox.wire import MAX_REPLY, NotJudged, WireError, decode, split_frames

Status = Literal["passed", "failed", "error", "timeout", "memory", "output_limit", "infra_error"]
Trust = Literal["host_compared", "unsafe_local"]
MAX_CODE, MAX_TEXT = 1 << 20, 4 << 20
SHOWN = 160


@dataclass(frozen=True)
class TestResult:
    """One test's status and, when it is not passed, the reason."""

    __test__ = False
    status: Status
    message: str = ""

    @property
    def passed(self) -> bool:
        """True for the one status that earns reward."""
        return self.status == "passed"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The judgement of one program.

    `status` is "passed" when there is a test and all passed, else the status of the first test that
    did not pass. "infra_error" means that the machine failed, twice: no verdict on the program.
    `trust` names where the comparison was made, `seconds` is the program's own wall-clock time.
    """

    status: Status
    passed: int
    total: int
    tests: tuple[TestResult, ...]
    trust: Trust
    seconds: float
    message: str


@dataclass(frozen=True)
class Plan:
    """A program and its tests, each translated or refused with the reason."""

    code: str
    tests: tuple[HostTest | str, ...]

    @property
    def calls(self) -> list[str]:
        """All expressions to evaluate in the jail, in order."""
        return [call for test in self.tests if isinstance(test, HostTest) for call in test.calls]

    @property
    def size(self) -> int:
        """Count the characters that go into the jail."""
        return len(self.code) + sum(map(len, self.calls))


def plan(code: str, tests: Sequence[str]) -> Plan:
    """Translate the tests; raises TypeError when code or tests are not text."""
    if not isinstance(code, str):
        raise TypeError(f"code is {type(code).__name__}: must be str")
    if isinstance(tests, str) or not all(isinstance(test, str) for test in tests):
        raise TypeError("tests must be a sequence of str, one assert each")
    if len(code) > MAX_CODE:
        return Plan("", (f"code of {len(code)} characters: at most {MAX_CODE}",) * len(tests))
    made = Plan(code, tuple(map(_translate, tests)))
    if made.size > MAX_TEXT:
        why = f"code and calls of {made.size} characters: at most {MAX_TEXT}; write fewer tests"
        return Plan("", (why,) * len(tests))
    return made


def _translate(source: str) -> HostTest | str:
    try:
        return translate(source)
    except CannotTranslate as error:
        return f"this test is not judged: {error}"


def verdict(plan: Plan, report: Report | str | None, trust: Trust) -> Verdict:
    """Judge a program by its report; a str is a failure of the machine, None: it never ran."""
    if isinstance(report, str):
        results = [TestResult("infra_error", report)] * len(plan.tests)
    else:
        results = _results(plan, report)
    first = next((result for result in results if not result.passed), None)
    if not results:
        first = TestResult("error", "no tests: a program without tests is never passed")
    return Verdict(
        status=first.status if first else "passed",
        passed=sum(result.passed for result in results),
        total=len(results),
        tests=tuple(results),
        trust=trust,
        seconds=report.seconds if isinstance(report, Report) else 0.0,
        message=first.message if first else "",
    )


def _results(plan: Plan, report: Report | None) -> list[TestResult]:
    frames = split_frames(report.replies) if report else []
    broken = _broken_program(frames, report) if report else None
    results, at = [], 1
    for test in plan.tests:
        if isinstance(test, str) or report is None:
            results.append(TestResult("error", str(test)))
            continue
        replies, at = frames[at : at + len(test.calls)], at + len(test.calls)
        results.append(broken or _judge(test, _Replies(replies, len(test.calls), report)))
    return results


def _broken_program(frames: list[bytes], report: Report) -> TestResult | None:
    """Give the one result of all tests when the program as a whole failed."""
    if report.how == "output_limit" or not frames:
        return _no_reply(report)
    if frames[0] == b"V":
        return None
    return _claimed(frames[0], "the program did not load: ")


def _no_reply(report: Report) -> TestResult:
    if report.how == "timeout":
        return TestResult("timeout", f"no answer within {report.seconds:.3g} s")
    if report.how == "memory":
        return TestResult("memory", "the program's processes together exceeded the memory limit")
    if report.how == "output_limit":
        return TestResult("output_limit", "the program wrote more than the output limit")
    ending = f"by signal {report.number}" if report.how == "signal" else f"code {report.number}"
    return TestResult("error", f"the program ended before this test was answered ({ending})")


def _claimed(reply: bytes, prefix: str = "") -> TestResult:
    """Give the result for a reply that is not a value."""
    if reply[:1] == b"M":
        return TestResult("memory", f"{prefix}MemoryError")
    text = printable(reply[1:].decode("utf-8", "replace"))
    if reply[:1] == b"U":
        return TestResult("error", f"the result cannot be judged: {text}")
    if reply[:1] == b"E":
        return TestResult("error", f"{prefix}{text}")
    return TestResult("error", f"{prefix}the reply is malformed")


class _NoValue(Exception):
    """A call gave no value, and the comparison asked for it; carries the test's result."""

    def __init__(self, result: TestResult) -> None:
        self.result = result


class _Replies(Sequence[Any]):
    """One test's values, each decoded when the comparison asks for it.

    `or` and `and` may decide without a call that failed. `own` names a type among the values that
    has its own equality, so that what differs here may be equal there.
    """

    def __init__(self, frames: list[bytes], count: int, report: Report) -> None:
        self._frames, self._count, self._report = frames, count, report
        self.own = ""

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if index >= len(self._frames):
            raise _NoValue(_no_reply(self._report))
        reply = self._frames[index]
        if reply[:1] not in (b"V", b"W"):
            raise _NoValue(_claimed(reply))
        start = 1
        if reply[:1] == b"W":
            start = 5 + int.from_bytes(reply[1:5], "big")
            self.own = reply[5:start].decode("utf-8", "replace") or "a type"
        try:
            if len(reply) - start > MAX_REPLY:
                raise WireError(f"larger than {MAX_REPLY} bytes")
            return decode(reply[start:])
        except WireError as error:
            raise _NoValue(TestResult("error", f"the reply is malformed: {error}")) from error

    def shown(self) -> str:
        """Give those that are values in short; a claim behind what decided may be none."""
        texts = []
        for i in range(len(self._frames)):
            with contextlib.suppress(_NoValue):
                texts.append(show(self[i]))
        return ", ".join(texts)


def _judge(test: HostTest, replies: _Replies) -> TestResult:
    try:
        right = bool(test.judge(replies))
    except _NoValue as missing:
        return missing.result
    except NotJudged as error:
        return TestResult("error", f"this result is not judged: {printable(str(error))[:SHOWN]}")
    except Exception as error:
        # Builtin operations on values the program chose: whatever they raise, the assert would.
        text = printable(str(error))[:SHOWN]
        return TestResult("error", f"comparing raised {type(error).__name__}: {text}")
    if right:
        return TestResult("passed")
    if replies.own:
        kind = printable(replies.own)[:SHOWN]
        return TestResult("error", f"not judged: {kind} has an equality of its own")
    return TestResult("failed", f"got {replies.shown()}")


def show(value: object) -> str:
    """Give a short representation; never raises and never prints control characters."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return f"a {type(value).__name__} too large to show"
    return printable(text if len(text) <= SHOWN else text[:SHOWN] + "...")


def printable(text: str) -> str:
    """Replace what could move a terminal's cursor or break a log line."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
