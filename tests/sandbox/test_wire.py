"""The encoding that crosses the border: exact, bounded, and safe on any bytes."""

import math
import time
from collections import Counter, OrderedDict, deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepcredit.sandbox.wire import (
    MAX_SAME_HASH,
    Items,
    NotJudged,
    WireError,
    decode,
    encode,
    frame,
    own_equality,
    split_frames,
)

keys = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
plain = keys | st.binary() | st.complex_numbers(allow_nan=False)
values = st.recursive(
    plain,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.lists(inner, max_size=5).map(tuple)
        | st.dictionaries(keys, inner, max_size=5)
        | st.sets(keys, max_size=5)
        | st.frozensets(keys, max_size=5)
    ),
    max_leaves=20,
)


def exact(value: object) -> object:
    """Tag every level with its type: 1 == 1.0 == True would hide a wrong decoding."""
    if isinstance(value, (list, tuple)):
        return type(value), [exact(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return type(value), sorted(map(repr, value))
    if isinstance(value, dict):
        return type(value), [(exact(k), exact(v)) for k, v in value.items()]
    return type(value), repr(value)


@given(values)
def test_builtin_values_survive(value: object) -> None:
    assert exact(decode(encode(value))) == exact(value)


@given(st.binary(max_size=400))
@settings(max_examples=500)
def test_any_bytes_decode_or_are_refused(data: bytes) -> None:
    try:
        decode(data)
    except WireError:
        return


@given(values, st.data())
def test_damaged_encodings_decode_or_are_refused(value: object, data: st.DataObject) -> None:
    good = bytearray(encode(value))
    at = data.draw(st.integers(0, len(good) - 1))
    good[at] = data.draw(st.integers(0, 255))
    try:
        decode(bytes(good[: data.draw(st.integers(0, len(good)))]))
    except WireError:
        return


@given(st.lists(st.binary(max_size=20)), st.binary(max_size=3))
def test_frames_are_cut_where_they_were_joined(frames: list[bytes], tail: bytes) -> None:
    assert split_frames(b"".join(map(frame, frames)) + tail) == frames


def test_numbers_by_hand() -> None:
    assert encode(-1) == b"i\0\0\0\1\xff"
    assert encode([None, True, "é"]) == b"l\0\0\0\3NTs\0\0\0\2\xc3\xa9"
    assert encode({"a": 0.5}) == b"d\0\0\0\2s\0\0\0\1af\x3f\xe0\0\0\0\0\0\0"
    assert math.isnan(decode(b"f\x7f\xf8\0\0\0\0\0\0"))
    assert decode(encode("\ud800\0")) == "\ud800\0"
    assert decode(encode(10**1000)) == 10**1000


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        b"NN",
        b"i\xff\xff\xff\xff\0",
        b"l\xff\xff\xff\xff" + b"N" * 100,
        b"l\0\0\0\1" * 100_000 + b"N",
        b"g\0\0\0\0" * 100_000 + b"l\0\0\0\0",
        b"s\0\0\0\1\xff",
        b"S\0\0\0\1l\0\0\0\0",
        b"d\0\0\0\1N",
        b"g\0\0\0\1aN",
    ],
    ids=lambda data: repr(data[:12]),
)
def test_hostile_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(WireError):
        decode(data)


@pytest.mark.parametrize("tag", [b"S", b"Z", b"d"])
def test_keys_of_one_hash_are_refused_at_once(tag: bytes) -> None:
    """Ten thousand multiples of 2**61 - 1 all hash to 0: a set of them takes minutes."""
    items = b"".join(encode(i * (2**61 - 1)) for i in range(20_000))
    start = time.monotonic()
    with pytest.raises(WireError, match="share one hash"):
        decode(tag + (20_000).to_bytes(4, "big") + items)
    assert time.monotonic() - start < 2.0
    assert decode(b"S\0\0\0\x64" + b"T" * 100) == {True}
    assert MAX_SAME_HASH < 100


def crowded(size: int, depth: int, last: int = 0) -> bytes:
    """Encode a frozenset whose items share a hash at every level; `last` changes its last leaf."""
    if depth == 0:
        return encode(last * (2**61 - 1))
    items = [crowded(size, depth - 1, i) for i in range(size - 1)]
    items.append(crowded(size, depth - 1, size - 1 + last))
    return b"Z" + size.to_bytes(4, "big") + b"".join(items)


@pytest.mark.parametrize(("size", "depth"), [(2, 12), (8, 5), (30, 3)])
def test_sets_of_sets_of_one_hash_are_refused_at_once(size: int, depth: int) -> None:
    """Comparing two of them multiplies the crowds of all levels: seconds to minutes."""
    pair = b"S\0\0\0\2" + crowded(size, depth) + crowded(size, depth, 1)
    start = time.monotonic()
    with pytest.raises(WireError, match="share one hash"):
        decode(pair)
    assert time.monotonic() - start < 2.0


def test_sets_of_small_negative_numbers_are_no_attack() -> None:
    """Here -1 and -2 share a hash, and so do tuples and frozensets that differ in them alone."""
    grid = {(x, y, z) for x in (-1, -2) for y in (-1, -2) for z in (-1, -2, 3)}
    assert decode(encode(grid)) == grid
    sets = {frozenset({-1, -2, k}) for k in range(50)} | {frozenset({-1}), frozenset({-2})}
    assert decode(encode(sets)) == sets


def test_subclasses_become_their_base() -> None:
    class Liar(int):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = int.__hash__

        def __add__(self, other: int) -> int:
            return 99

    decoded = decode(encode([Liar(3), type("Text", (str,), {"encode": None})("a")]))
    assert [type(item) for item in decoded] == [int, str]
    assert decoded == [3, "a"]


def test_ranges_and_deques_compare_by_their_items() -> None:
    decoded = decode(encode([range(3), deque([3]), deque()]))
    assert all(isinstance(item, Items) for item in decoded)
    numbers, three, empty = decoded
    assert numbers == range(3)
    assert numbers == decode(encode(range(0, 3, 1)))
    assert numbers != [0, 1, 2]
    assert numbers != decode(encode(deque(range(3))))
    assert three == decode(encode(deque([3])))
    assert three != decode(encode(deque([4])))
    assert (len(numbers), numbers[-1], 1 in numbers) == (3, 2, True)
    assert (bool(three), bool(empty)) == (True, False)
    assert list(numbers) == [0, 1, 2]
    assert repr(numbers) == "<range of 3 items>"
    # A part of a range is a range; a deque has no parts.
    assert numbers[1:] == range(1, 3)
    assert numbers[1:] != [1, 2]
    with pytest.raises(TypeError):
        three[0:]


def test_what_another_iterable_equals_is_not_judged() -> None:
    decoded = decode(encode(iter([1, 2])))
    assert list(decoded) == [1, 2]
    for operation in (lambda: decoded == [1, 2], lambda: decoded != [1, 2], lambda: len(decoded)):
        with pytest.raises(NotJudged, match="list_iterator; write list"):
            operation()


def test_types_with_their_own_equality_are_named() -> None:
    other = type("Other", (int,), {"__eq__": lambda s, o: True, "__hash__": int.__hash__})
    assert own_equality([1, {"a": (2, {3.5}, "x", b"y")}]) == ""
    assert own_equality([OrderedDict(a=1), type("Plain", (int,), {})(2), True]) == ""
    assert own_equality([1, {"a": (other(2),)}]) == "Other"
    assert own_equality({other(2): 1}) == "Other"
    assert own_equality(Counter("a")) == "Counter"


def test_too_deep_too_large_and_unknown_are_refused() -> None:
    loop: list[object] = []
    loop.append(loop)
    for value, message in (
        (loop, "deeper"),
        ("x" * 2000, "larger"),
        ([b"y" * 100] * 100, "larger"),
        (iter(int, 1), "or more items"),
        (object(), "type object"),
    ):
        with pytest.raises(WireError, match=message):
            encode(value, limit=1000)
