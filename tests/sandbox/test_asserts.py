"""Asserts become calls for the jail and a judgement on the host."""

import math
import re
from collections.abc import Callable

import pytest

from stepcredit.sandbox.asserts import CannotTranslate, translate


@pytest.mark.parametrize(
    ("source", "calls", "right", "wrong"),
    [
        ("assert f(2) == 4", ["f(2)"], [4], [5]),
        ("assert 4 == f(2), 'why'", ["f(2)"], [4], [5]),
        ("assert f([1, {'a': 2}], k=(3,)) != 4", ["f([1, {'a': 2}], k=(3,))"], [5], [4]),
        ("assert f() is None", ["f()"], [None], [0]),
        ("assert f() is not None", ["f()"], [0], [None]),
        ("assert f() is True", ["f()"], [True], [1]),
        ("assert (f()) == False", ["f()"], [False], [True]),
        ("assert f()", ["f()"], [[0]], [[]]),
        ("assert not f()", ["f()"], [""], ["x"]),
        ("assert f() in (1, 2)", ["f()"], [2], [3]),
        ("assert 'a' not in f()", ["f()"], ["b"], ["ab"]),
        ("assert math.isclose(f(2), 1.5, rel_tol=1e-3)", ["f(2)"], [1.5001], [1.6]),
        ("assert abs(f(2) - 1.5) < 1e-6", ["f(2)"], [1.5], [1.51]),
        ("assert round(f(2), 2) == 1.23", ["f(2)"], [1.2345], [1.25]),
        ("assert set(f(2)) == {1, 2}", ["f(2)"], [[2, 1, 2]], [[1]]),
        ("assert sorted(f(2)) == [1, 2]", ["f(2)"], [[2, 1]], [[2, 2]]),
        ("assert f(2)[-1] == 3", ["f(2)"], [[1, 3]], [[3, 1]]),
        ("assert f(2)['a'][1:] == 'yz'", ["f(2)"], [{"a": "xyz"}], [{"a": "xy"}]),
        ("assert 1 < f(2) <= 3", ["f(2)"], [3], [1]),
        ("assert f(1) == 2 and f(2) == 3", ["f(1)", "f(2)"], [2, 3], [2, 4]),
        ("assert f(1) == g(1)", ["f(1)", "g(1)"], [2, 2], [2, 3]),
        ("assert f(g(1), lambda x: x) == 2", ["f(g(1), lambda x: x)"], [2], [3]),
        ("assert Box(3).get() == 3", ["Box(3).get()"], [3], [4]),
        ("assert f('a').name == 'b'", ["f('a').name"], ["b"], ["c"]),
        ("assert root == 1", ["root"], [1], [2]),
        ("assert f(10, 1.0/3) == 10**9 + 7", ["f(10, 1.0 / 3)"], [10**9 + 7], [10**9]),
        ("assert isinstance(f(2), (int, float))", ["f(2)"], [2], ["2"]),
        ("assert type(f(2)) == int", ["f(2)"], [2], [True]),
        ("assert len(f(2)) == len('abc') - 1", ["f(2)"], ["xy"], ["x"]),
        ("assert f(2) == -math.inf", ["f(2)"], [-math.inf], [math.inf]),
        ("assert f(2) == {'a': [1, None]}", ["f(2)"], [{"a": [1, None]}], [{}]),
        # A program may define a function under a builtin's name.
        ("assert sum(10, 15) == 6", ["sum(10, 15)"], [6], [25]),
        ("assert not sorted('ab')", ["sorted('ab')"], [[]], [[1]]),
        ("assert f(2) == sum([1, 3])", ["f(2)"], [4], [5]),
    ],
)
def test_forms(source: str, calls: list[str], right: list[object], wrong: list[object]) -> None:
    test = translate(source)
    assert list(test.calls) == calls
    assert test.judge(right)
    assert not test.judge(wrong)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("", "not a single assert"),
        ("f(2)", "not a single assert"),
        ("assert f(2) == 1; import os", "not a single assert"),
        ("assert f(2) ==", "does not parse"),
        ("assert f(2) == 1\0", "does not parse"),
        ("assert True", "calls nothing"),
        ("assert 1 + 1 == 2", "calls nothing"),
        ("assert all(f(x) == x for x in range(3))", "GeneratorExp cannot be judged"),
        ("assert (lambda r: r == 4)(f(2))", "cannot be judged"),
        ("assert f(2) is 4", "`is` is judged against"),
        ("assert f(2) == 2 << 3", "LShift cannot be judged"),
        ("assert [*f(2)] == [1]", "Starred cannot be judged"),
        ("assert max(*f(2)) == 1", "starred"),
        ("assert {**f(2)} == {}", "a ** item"),
        ("assert dict(**f(2)) == {}", "a ** argument"),
        ("assert f(2) == 'a'.upper()", "'a'.upper cannot be judged"),
        ("assert f(2) == sys.maxsize", "sys.maxsize cannot be used"),
        ("assert f(2) == " + "(" * 500 + "1" + ")" * 500, "does not parse"),
        ("assert f(2) == " + "-" * 50_000 + "1", "the test"),
        ("assert f(0x" + "f" * 9000 + ") == 1", "too deep or too large"),
        ("assert f(2) == 1 #" + "x" * 300_000, "at most"),
    ],
)
def test_what_cannot_be_judged_is_refused_with_the_reason(source: str, message: str) -> None:
    with pytest.raises(CannotTranslate, match=re.escape(message)):
        translate(source)


def test_the_expected_value_is_in_no_call() -> None:
    for source in ("assert f(1) == 4242", "assert sorted(f(1)) == [4242]", "assert f(1) in {4242}"):
        assert "4242" not in "".join(translate(source).calls)


@pytest.mark.parametrize(
    ("source", "value", "error"),
    [
        ("assert f(1) * f(1) == 1", lambda: 1 << 100_000, ValueError),
        ("assert f(1) % 7 == 1", lambda: "%1000000000d", TypeError),
        ("assert f(1) * 3 == 1", lambda: [1], TypeError),
        ("assert 2 ** f(1) == 1", lambda: 10**6, ValueError),
        ("assert round(1, f(1)) == 1", lambda: -(10**9), ValueError),
        ("assert set(f(1)) == {1}", lambda: [i * (2**61 - 1) for i in range(1000)], ValueError),
        ("assert sum(f(1)) == 1", lambda: [[1], [2]], TypeError),
    ],
)
def test_values_from_the_jail_cannot_make_the_host_work(
    source: str, value: Callable[[], object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        translate(source).judge([value()] * 2)
