"""What programs get: statuses, messages, several programs in one job, bad input."""

import threading

import pytest

from stepcredit.sandbox import Sandbox, TestResult, open_sandbox

DOUBLE = "def f(x):\n    return 2 * x\n"
LOOP = "def f(x):\n    while True: pass\n"


def test_right_half_right_and_wrong(sandbox: Sandbox) -> None:
    tests = ["assert f(2) == 4", "assert f('a') == 'aa'", "assert f(3) == 7"]
    verdict = sandbox.grade(DOUBLE, tests)
    assert (verdict.status, verdict.passed, verdict.total) == ("failed", 2, 3)
    assert [test.status for test in verdict.tests] == ["passed", "passed", "failed"]
    assert verdict.tests[2] == TestResult("failed", "got 6")
    assert verdict.message == "got 6"
    assert verdict.trust == "host_compared"
    assert 0 < verdict.seconds < 20
    assert sandbox.grade(DOUBLE, tests[:2]).status == "passed"


@pytest.mark.parametrize(
    ("code", "status", "message"),
    [
        ("def f(x):\n    return [][x]", "error", "IndexError: list index out of range (line 2)"),
        ("x = 1 +", "error", "the program did not load: SyntaxError"),
        ("import numpy", "error", "ModuleNotFoundError"),
        ("g = 1", "error", "NameError"),
        ("f = lambda x: object()", "error", "type object is not a builtin value"),
        (
            "from fractions import *\nf = lambda x: Fraction(8, 2)",
            "error",
            "cannot be judged: a value",
        ),
        (
            "from collections import *\nf = lambda x: Counter()",
            "error",
            "not judged: Counter has an",
        ),
        ("f = lambda x: iter([4])", "error", "not judged: == of a list_iterator; write list(...)"),
        ("f = lambda x: b'4'", "failed", "got b'4'"),
        ("\0", "error", "null bytes"),
        ("f = lambda x: 4 if __name__ == 'solution' else 5", "passed", ""),
        ("import sys\nf = lambda x: len(sys.argv) and 4", "passed", ""),
    ],
)
def test_status_and_message(sandbox: Sandbox, code: str, status: str, message: str) -> None:
    verdict = sandbox.grade(code, ["assert f(2) == 4"])
    assert verdict.status == status
    assert message in verdict.message


def test_a_test_that_cannot_be_judged_is_an_error_and_the_others_are_judged(
    sandbox: Sandbox,
) -> None:
    verdict = sandbox.grade(DOUBLE, ["assert all(f(x) for x in [1])", "assert f(2) == 4"])
    assert [test.status for test in verdict.tests] == ["error", "passed"]
    assert verdict.status == "error"
    assert "what can be judged on the host" in verdict.message


@pytest.mark.parametrize("tests", [[], ["print(1)"], ["assert True"]])
def test_nothing_to_judge_is_an_error_never_passed(sandbox: Sandbox, tests: list[str]) -> None:
    verdict = sandbox.grade(DOUBLE, tests)
    assert (verdict.status, verdict.passed) == ("error", 0)
    assert verdict.message


def test_an_endless_program_takes_no_verdict_of_the_others(sandbox: Sandbox) -> None:
    codes = [DOUBLE, LOOP, "import os; os._exit(1)", "f = 1", DOUBLE]
    verdicts = sandbox.grade_all(codes, [["assert f(2) == 4"]] * 5, timeout_s=1.0)
    statuses = [verdict.status for verdict in verdicts]
    assert statuses == ["passed", "timeout", "error", "error", "passed"]


def test_calls_before_an_endless_one_keep_their_result(sandbox: Sandbox) -> None:
    code = "def f(x):\n    while x > 2: pass\n    return x"
    tests = ["assert f(1) == 1", "assert f(2) == 3", "assert f(3) == 3", "assert f(1) == 1"]
    verdict = sandbox.grade(code, tests, timeout_s=1.0)
    assert [t.status for t in verdict.tests] == ["passed", "failed", "timeout", "timeout"]


def test_what_decides_early_needs_no_later_call(sandbox: Sandbox) -> None:
    tests = ["assert f(0) is None or f(0).val == 2", "assert f(1) == 0 and f(1).val == 2"]
    tests += ["assert f(0) is None and f(0).val == 2", "assert 2 < f(1) < f(9).val"]
    verdict = sandbox.grade("f = lambda x: x or None", tests)
    assert [t.status for t in verdict.tests] == ["passed", "failed", "error", "failed"]
    assert "AttributeError" in verdict.tests[2].message


def test_a_malformed_reply_behind_what_decided_is_not_shown(sandbox: Sandbox) -> None:
    """The program writes its frames itself: loaded, the value 5, a value that does not decode."""
    code = (
        "import os, struct\n"
        "for body in (b'V', b'Vi' + struct.pack('>I', 1) + b'\\x05', b'V\\xff'):\n"
        "    os.write(3, struct.pack('>I', len(body)) + body)\n"
        "os._exit(0)"
    )
    verdict = sandbox.grade(code, ["assert f(1) == 0 and f(2) == 1"])
    assert (verdict.status, verdict.message) == ("failed", "got 5")


def test_a_forged_reply_above_the_limit_is_malformed(sandbox: Sandbox) -> None:
    code = (
        "import os, struct\n"
        "for body in (b'V', b'Vs' + struct.pack('>I', 2 << 20) + b'x' * (2 << 20)):\n"
        "    data = struct.pack('>I', len(body)) + body\n"
        "    while data: data = data[os.write(3, data):]\n"
        "os._exit(0)"
    )
    verdict = sandbox.grade(code, ["assert len(f(1)) > 0"])
    assert (verdict.status, verdict.passed) == ("error", 0)
    assert "malformed" in verdict.message


@pytest.mark.parametrize(
    ("value", "expected", "status"),
    [
        ("deque([3])", "deque([3])", "passed"),
        ("deque([3])", "deque([4])", "failed"),
        ("deque([3])", "[3]", "failed"),
        ("range(3)", "range(3)", "passed"),
        ("range(3)", "range(0, 9, 4)", "failed"),
        ("range(0, 8, 4)", "range(0, 5, 4)", "passed"),
        ("Counter(a=2)", "Counter('aa')", "passed"),
        ("Counter(a=2)", "{'a': 2}", "passed"),
        ("Counter(a=0)", "Counter()", "error"),
        ("OrderedDict(a=1, b=2)", "{'b': 2, 'a': 1}", "passed"),
        ("OrderedDict(a=1)", "{}", "failed"),
    ],
)
def test_values_of_the_collections_module(
    sandbox: Sandbox, value: str, expected: str, status: str
) -> None:
    code = f"from collections import *\ndef f(): return {value}"
    assert sandbox.grade(code, [f"assert f() == {expected}"]).status == status


THIEF = """
import gc, re, sys
def texts():
    frame = sys._getframe()
    while frame:
        yield from map(repr, (*frame.f_locals.values(), *frame.f_globals.values()))
        frame = frame.f_back
    yield from map(repr, gc.get_objects())
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb") as memory:
        for line in maps:
            place, rights = line.split()[:2]
            start, end = (int(part, 16) for part in place.split("-"))
            if rights.startswith("rw") and end - start < 1 << 28:
                memory.seek(start)
                yield memory.read(end - start).decode("latin1")
mark = re.compile("SECRET_8754_[M]ARK")
def f():
    return sum(bool(mark.search(text)) for text in texts())
"""


def test_programs_of_one_job_cannot_read_each_other(sandbox: Sandbox) -> None:
    """The mark is in the first program's text, calls, replies and output, and in the last one's."""
    mark = "SECRET_8754_MARK"
    other = f"print('{mark}')\ndef f(x='{mark}'): return x"
    tests = [[f"assert f('{mark}') == '{mark}'", "assert f() == 0"], ["assert f() == 0"]]
    first, thief, last = sandbox.grade_all([other, THIEF, other], [*tests, tests[0]])
    assert (first.passed, last.passed) == (1, 1)
    assert thief.status == "passed", thief.message
    assert sandbox.grade(THIEF + f"\nx = '{mark}'", tests[1]).status == "failed"


def test_programs_of_one_job_share_no_state(sandbox: Sandbox) -> None:
    code = "import os\nold = os.listdir('.')\nopen('left', 'w').close()\ndef f(): return old"
    verdicts = sandbox.grade_all([code] * 3, [["assert f() == []"]] * 3)
    assert [verdict.status for verdict in verdicts] == ["passed"] * 3


def test_many_jobs_keep_their_order_from_several_threads(sandbox: Sandbox) -> None:
    wrong: list[object] = []

    def work(base: int) -> None:
        jobs = [
            ([f"f = lambda: {base + i}", "f = lambda: None"], [[f"assert f() == {base + i}"]] * 2)
            for i in range(15)
        ]
        for verdicts in sandbox.grade_many(jobs):
            if [verdict.status for verdict in verdicts] != ["passed", "failed"]:
                wrong.append(verdicts)

    threads = [threading.Thread(target=work, args=(1000 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_an_empty_list_of_jobs_and_of_programs(sandbox: Sandbox) -> None:
    assert sandbox.grade_many([]) == []
    assert sandbox.grade_all([], []) == []


def test_set_order_is_the_same_in_every_run(sandbox: Sandbox) -> None:
    code = "def f(): return list({'a', 'b', 'c', 'd', 'e'})"
    shown = {sandbox.grade(code, ["assert f() == 0"]).message for _ in range(4)}
    with open_sandbox("bwrap", workers=1) as other:
        shown.add(other.grade(code, ["assert f() == 0"]).message)
    assert len(shown) == 1


def test_bad_arguments_name_the_rule_and_the_fix(sandbox: Sandbox) -> None:
    with pytest.raises(ValueError, match=r"timeout_s=0: must be from 0\.01 to 600"):
        sandbox.grade(DOUBLE, ["assert f(1) == 2"], timeout_s=0)
    with pytest.raises(ValueError, match="2 codes and 1 lists of tests"):
        sandbox.grade_all([DOUBLE, DOUBLE], [[]])
    with pytest.raises(TypeError, match="tests must be a sequence of str"):
        sandbox.grade(DOUBLE, "assert f(1) == 2")
    with pytest.raises(TypeError, match="code is int"):
        sandbox.grade(3, [])  # type: ignore[arg-type]  # the wrong type is the point
    with pytest.raises(ValueError, match="memory_mb=1: must be from 16"):
        open_sandbox(memory_mb=1)
    with pytest.raises(ValueError, match="must be one of auto, bwrap, unsafe_local"):
        open_sandbox("bubble")


def test_code_beyond_the_limit_is_an_error(sandbox: Sandbox) -> None:
    verdict = sandbox.grade("#" * (2 << 20), ["assert f(1) == 2"])
    assert verdict.status == "error"
    assert "at most" in verdict.message


def test_tests_beyond_the_limit_are_an_error(sandbox: Sandbox) -> None:
    tests = [f"assert f({[0] * 60_000}) == {i}" for i in range(24)]
    verdicts = sandbox.grade_all([DOUBLE, DOUBLE], [tests, ["assert f(1) == 2"]])
    assert [verdict.status for verdict in verdicts] == ["error", "passed"]
    assert (verdicts[0].passed, verdicts[0].total) == (0, 24)
    assert "at most" in verdicts[0].message
