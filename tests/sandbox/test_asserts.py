"""Asserts become calls for the jail and a judgement on the host."""

import math
import re
from collections.abc import Callable

import pytest

from stepcredit.sandbox.asserts import CannotTranslate, translate
from stepcredit.sandbox.wire import Items, NotJudged

SLOW_SEARCH = [b"a" * 900_000, b"a" * 200_000 + b"b" + b"a" * 200_000]
SLOW_STRIP = [b"a" * 900_000, b"b" * 900_000 + b"a"]
SAME_HASH = range(0, 1000 * (2**61 - 1), 2**61 - 1)


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
        ("assert f(2) == list(range(3))", ["f(2)"], [[0, 1, 2]], [[]]),
        ("assert f(2) == pow(2, 3)", ["f(2)"], [8], [0]),
        ("assert f(2) == pow(2, 3, 5)", ["f(2)"], [3], [8]),
        ("assert f(2) == bin(5)", ["f(2)"], ["0b101"], ["101"]),
        ("assert f(2) == list(map(int, '12'))", ["f(2)"], [[1, 2]], [["1", "2"]]),
        ("assert sorted(map(sorted, f(2))) == [[1, 2]]", ["f(2)"], [[(2, 1)]], [[(2, 2)]]),
        ("assert sorted(f(2), key=len) == ['b', 'aa']", ["f(2)"], [["aa", "b"]], [["b"]]),
        ("assert dict(zip('ab', f(2))) == dict(a=1, b=2)", ["f(2)"], [[1, 2]], [[2, 1]]),
        ("assert sum(f(2), 3) == 4", ["f(2)"], [[1]], [[3]]),
        ("assert Counter(f(2)) == Counter('aab')", ["f(2)"], ["aba"], ["ab"]),
        ("assert f(2) == [0] * 3", ["f(2)"], [[0, 0, 0]], [[0]]),
        ("assert f(2) == math.gcd(12, 18) + math.factorial(3)", ["f(2)"], [12], [6]),
        # Methods are applied here to what came out, whatever its class says.
        ("assert f(2).startswith('abc')", ["f(2)"], ["abcd"], ["ab"]),
        ("assert f(2)[0].upper() == 'AB'", ["f(2)"], [["ab"]], [["b"]]),
        ("assert f(2).get('a', 3) == 4", ["f(2)"], [{"a": 4}], [{}]),
        ("assert ','.join(f(2)) == 'a,b'", ["f(2)"], [["a", "b"]], [["b"]]),
        ("assert f(2) == 'a b'.split()", ["f(2)"], [["a", "b"]], [["a b"]]),
        ("assert list(f(2).items()) == [('a', 1)]", ["f(2)"], [{"a": 1}], [{}]),
        ("assert f(1).head.val == 3", ["f(1).head.val"], [3], [4]),
        ("assert Solution().add(1, 2) == 3", ["Solution().add(1, 2)"], [3], [4]),
        ("assert stack.push(1) == 3", ["stack.push(1)"], [3], [4]),
        ("assert f(1)(2) == 3", ["f(1)(2)"], [3], [4]),
        ("assert m.f(2) == m.f(3).val", ["m.f(2)", "m.f(3).val"], [3, 3], [3, 4]),
        ("assert f(2) == f(-2)", ["f(2)", "f(-2)"], [3, 3], [3, 4]),
        ("assert f(1) == 2 and g(2) == 3", ["f(1)", "g(2)"], [2, 3], [2, 4]),
        ("assert (f(1) or [2]) == [2]", ["f(1)"], [[]], [[3]]),
        # A program may define a function under a builtin's name.
        ("assert is_sorted(sort([2, 1]))", ["is_sorted(sort([2, 1]))"], [True], [False]),
        ("assert same(tree([1]), tree([1]))", ["same(tree([1]), tree([1]))"], [True], [False]),
        ("assert f(Pair(1, 2), 3) is True", ["f(Pair(1, 2), 3)"], [True], [False]),
        ("assert g(f(1), [3]) == 4", ["g(f(1), [3])"], [4], [5]),
        ("assert sum(10, 15) == 6", ["globals()['sum'](10, 15)"], [6], [25]),
        ("assert not sorted('ab')", ["globals()['sorted']('ab')"], [[]], [[1]]),
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
        ("assert f(2) == 'a'.center(9)", "'a'.center cannot be judged"),
        ("assert f(2) == sys.maxsize", "sys.maxsize cannot be judged"),
        ("assert f(2) == itertools.chain()", "itertools.chain cannot be judged"),
        ("assert f(2) == hash('a')", "hash cannot be judged"),
        ("assert f(2) == vars", "vars cannot be judged"),
        # What another name of the program gives would be its own claim of what is right.
        ("assert f(1) == g(1)", "g(1) cannot be judged on the host beside f(1)"),
        ("assert f(1) == N * 5", "N cannot be judged on the host beside f(1)"),
        ("assert f(1) in [N]", "N cannot be judged on the host beside f(1)"),
        ("assert not math.isclose(f(1), N)", "N cannot be judged on the host beside f(1)"),
        ("assert Point(1) == Point(2)", "Point(2) cannot be judged on the host beside Point(1)"),
        ("assert m.f(1) == m.N", "m.N cannot be judged on the host beside m.f(1)"),
        ("assert isclose(f(1), 41.0)", "isclose(f(1), 41.0) would be the program's own claim"),
        ("assert not same(41, f(1))", "same(41, f(1)) would be the program's own claim"),
        ("assert np.allclose(f(1), [2.0]) == True", "would be the program's own claim"),
        ("assert True == eq(f(1), b=2)", "would be the program's own claim"),
        ("assert f(1) == 2 and eq(f(1), 2)", "would be the program's own claim"),
        ("assert (f(2) == 4, 'why')", "is always true"),
        ("assert f(1).same(2)", "f(1).same cannot be judged"),
        ("assert f(1).__eq__(2)", "f(1).__eq__ cannot be judged"),
        ("assert Box(1).__eq__(2)", "Box(1).__eq__ cannot be judged"),
        ("assert f(1).__class__", "f(1).__class__ cannot be judged"),
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
        ("assert f(1) * f(1) == 1", lambda: 1 << 100_000, NotJudged),
        ("assert f(1) % 7 == 1", lambda: "%1000000000d", NotJudged),
        ("assert f(1) * 3 == 1", lambda: {1}, NotJudged),
        ("assert f(1) * [1] == 1", lambda: 10**9, NotJudged),
        ("assert 2 ** f(1) == 1", lambda: 10**6, NotJudged),
        ("assert pow(f(1), 3, 5) == 1", lambda: 1 << 100_000, NotJudged),
        ("assert round(1, f(1)) == 1", lambda: -(10**9), NotJudged),
        ("assert list(range(f(1))) == 1", lambda: 10**9, NotJudged),
        ("assert range(f(1)) == 1", lambda: 10**30, NotJudged),
        ("assert bytes(f(1)) == 1", lambda: 10**9, NotJudged),
        ("assert f(1).join(f(1)) == 1", lambda: "x" * 10_000, NotJudged),
        ("assert math.factorial(f(1)) == 1", lambda: 10**6, NotJudged),
        ("assert math.gcd(f(1), 3) == 1", lambda: 1 << 100_000, NotJudged),
        ("assert sum(f(1), []) == 1", lambda: [[1]], NotJudged),
        ("assert [f(1)] * 10_000 == 1", lambda: "x" * 1_000_000, NotJudged),
        ("assert ((f(1),) * 1000,) * 1000 == 1", lambda: [1, 2], NotJudged),
        ("assert sum([f(1)] * 100_000) == 1", lambda: 1 << 8_000_000, NotJudged),
        ("assert [range(1000)] * f(1) == 1", lambda: 10_000, NotJudged),
        ("assert [f(1).keys()] * 1000 == 1", lambda: dict.fromkeys(range(10_000)), NotJudged),
        ("assert sum(f(1)) == 1", lambda: [1 << 8_000_000, 1, 1], NotJudged),
        ("assert {}.keys() | f(1) == 1", lambda: list(SAME_HASH), NotJudged),
        ("assert f(1) ^ {}.keys() == 1", lambda: list(SAME_HASH), NotJudged),
        ("assert f(1)[0].rfind(f(1)[1]) == 1", lambda: SLOW_SEARCH, NotJudged),
        ("assert f(1)[0].rsplit(f(1)[1], 1) == 1", lambda: SLOW_SEARCH, NotJudged),
        ("assert f(1)[0].rindex(f(1)[1]) == 1", lambda: SLOW_SEARCH, NotJudged),
        ("assert f(1)[0].rpartition(f(1)[1]) == 1", lambda: SLOW_SEARCH, NotJudged),
        ("assert f(1)[0].strip(f(1)[1]) == 1", lambda: SLOW_STRIP, NotJudged),
        ("assert f(1)[0].lstrip(f(1)[1]) == 1", lambda: SLOW_STRIP, NotJudged),
        ("assert str(f(1)) == 'range(0, 3)'", lambda: Items("range", [0, 1, 2]), NotJudged),
        ("assert list(map(repr, [f(1)])) == 1", lambda: {1: [Items("deque", [])]}, NotJudged),
        ("assert list(map(set, [f(1)])) == 1", lambda: list(SAME_HASH), ValueError),
        ("assert sorted([f(1)], key=set) == 1", lambda: list(SAME_HASH), ValueError),
        ("assert Counter(f(1)) == 1", lambda: list(SAME_HASH), ValueError),
        ("assert set(f(1)) == {1}", lambda: list(SAME_HASH), ValueError),
        ("assert sum(f(1)) == 1", lambda: [[1], [2]], TypeError),
    ],
)
def test_values_from_the_jail_cannot_make_the_host_work(
    source: str, value: Callable[[], object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        translate(source).judge([value()] * 2)
