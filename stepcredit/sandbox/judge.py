"""Verdicts: what is asked of a program, and how its replies are judged on the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from stepcredit.sandbox.asserts import CannotTranslate, HostTest, translate
from stepcredit.sandbox.pool import Report
from stepcredit.sandbox.wire import WireError, decode, split_frames

Status = Literal["passed", "failed", "error", "timeout", "memory", "output_limit", "infra_error"]
Trust = Literal["host_compared", "unsafe_local"]
MAX_CODE = 1 << 20
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


def plan(code: str, tests: Sequence[str]) -> Plan:
    """Translate the tests; raises TypeError when code or tests are not text."""
    if not isinstance(code, str):
        raise TypeError(f"code is {type(code).__name__}: must be str")
    if isinstance(tests, str) or not all(isinstance(test, str) for test in tests):
        raise TypeError("tests must be a sequence of str, one assert each")
    if len(code) > MAX_CODE:
        return Plan("", (f"code of {len(code)} characters: at most {MAX_CODE}",) * len(tests))
    return Plan(code, tuple(map(_translate, tests)))


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
        if isinstance(test, str):
            results.append(TestResult("error", test))
            continue
        replies, at = frames[at : at + len(test.calls)], at + len(test.calls)
        if broken is not None:
            results.append(broken)
        elif len(replies) < len(test.calls) and report is not None:
            results.append(_no_reply(report))
        else:
            results.append(_judge(test, replies))
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
        return TestResult("failed", f"the result cannot be compared: {text}")
    if reply[:1] == b"E":
        return TestResult("error", f"{prefix}{text}")
    return TestResult("error", f"{prefix}the reply is malformed")


def _judge(test: HostTest, replies: list[bytes]) -> TestResult:
    values = []
    for reply in replies:
        if reply[:1] != b"V":
            return _claimed(reply)
        try:
            values.append(decode(reply[1:]))
        except WireError as error:
            return TestResult("error", f"the reply is malformed: {error}")
    try:
        right = bool(test.judge(values))
    except Exception as error:
        # Builtin operations on values the program chose: whatever they raise, the assert would.
        return TestResult("error", f"comparing raised {type(error).__name__}: {str(error)[:SHOWN]}")
    if right:
        return TestResult("passed")
    return TestResult("failed", "got " + ", ".join(map(show, values)))


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
