"""Bounded encoding of exact builtin values, used on both sides of the jail's border.

One byte of tag, then a fixed-size number or a four-byte count and the content.  Nothing here runs
code of the other side: no pickle, no eval, no class look-up.  The file imports the standard library
alone, because its source text also runs inside the jail.
"""

from __future__ import annotations

import struct
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable
from itertools import islice
from typing import Any

MAX_DEPTH = 100
MAX_REPLY = 1 << 20
MAX_JOB = 32 << 20
MAX_SAME_HASH = 64
_COUNT = struct.Struct(">I")
_FLOAT = struct.Struct(">d")
_COMPLEX = struct.Struct(">dd")


class WireError(ValueError):
    """A value that cannot be encoded, or bytes that do not decode."""


class NotJudged(TypeError):
    """An operation on which the host cannot stand in for the program's own type."""


class Items:
    """What an iterable of another type (generator, range, deque, dict view) gave.

    Ranges and deques compare by their items; what a value of another type equals is not known here.
    """

    __hash__ = None  # type: ignore[assignment]  # as of any value that compares by its items

    def __init__(self, kind: str, values: list[Any]) -> None:
        """Keep the type's name for messages and the values in their order."""
        self.kind = kind
        self.values = values

    def __iter__(self) -> Any:
        """Iterate over the values, so that `list(f()) == [...]` can be judged."""
        return iter(self.values)

    def __eq__(self, other: object) -> bool:
        """Compare two ranges or two deques; equal to no other builtin value."""
        self._sequence("==")
        if type(other) is range:
            return self.kind == "range" and self.values == list(other)
        if type(other) is Items:
            other._sequence("==")
            return self.kind == other.kind and self.values == other.values
        return False

    def __len__(self) -> int:
        """Count the items."""
        return len(self._sequence("len"))

    def __bool__(self) -> bool:
        """Tell whether there are items."""
        return bool(self._sequence("truth"))

    def __getitem__(self, index: int | slice) -> Any:
        """Give one item, or the part of a range, which is a range."""
        values = self._sequence("[]")
        if isinstance(index, slice):
            if self.kind == "deque":
                raise TypeError("a deque has no slices")
            return Items(self.kind, values[index])
        return values[index]

    def _sequence(self, operation: str) -> list[Any]:
        if self.kind not in ("range", "deque"):
            raise NotJudged(f"{operation} of a {self.kind}; write list(...) around it")
        return self.values

    def __repr__(self) -> str:
        """Name the original type."""
        return f"<{self.kind} of {len(self.values)} items>"


def encode(value: Any, limit: int = MAX_REPLY) -> bytes:
    """Encode builtin values; subclasses become their builtin base, without their own methods.

    Raises WireError when the value is too large, too deep or of another type.
    """
    out = bytearray()
    _encode(value, out, limit, 0)
    return bytes(out)


def own_equality(value: Any, depth: int = 0) -> str:
    """Name the first type inside that compares otherwise than its builtin base; else give ""."""
    kind: Any = type(value)
    base: Any = next((b for b in _BASES if isinstance(value, b)), None)
    if base and kind.__eq__ not in (base.__eq__, OrderedDict.__eq__):
        return f"{kind.__name__}"
    parts: Iterable[Any] = base.__iter__(value) if base in _COLLECTIONS else ()
    if base is dict:
        parts = (*dict.keys(value), *dict.values(value))
    for part in parts if depth < MAX_DEPTH else ():
        if type(part) not in _PLAIN and (name := own_equality(part, depth + 1)):
            return name
    return ""


_PLAIN = frozenset((type(None), bool, int, float, complex, str, bytes))
_COLLECTIONS: tuple[Any, ...] = (list, tuple, set, frozenset)
_BASES: tuple[Any, ...] = (*_COLLECTIONS, dict, str, int, float, complex, bytes, bytearray)


def _encode(value: Any, out: bytearray, limit: int, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise WireError(f"nested deeper than {MAX_DEPTH} levels")
    if value is None:
        out += b"N"
    elif value is True:
        out += b"T"
    elif value is False:
        out += b"F"
    elif isinstance(value, int):
        number = int.__add__(value, 0)
        _block(b"i", number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True), out)
    elif isinstance(value, float):
        out += b"f" + _FLOAT.pack(value)
    elif isinstance(value, complex):
        number_c = complex.__pos__(value)
        out += b"c" + _COMPLEX.pack(number_c.real, number_c.imag)
    elif isinstance(value, str):
        _block(b"s", str.encode(value, "utf-8", "surrogatepass"), out)
    elif isinstance(value, (bytes, bytearray)):
        _block(b"b", bytes(memoryview(value)), out)
    elif isinstance(value, list):
        _sequence(b"l", list(list.__iter__(value)), out, limit, depth)
    elif isinstance(value, tuple):
        _sequence(b"t", list(tuple.__iter__(value)), out, limit, depth)
    elif isinstance(value, set):
        _sequence(b"S", list(set.__iter__(value)), out, limit, depth)
    elif isinstance(value, frozenset):
        _sequence(b"Z", list(frozenset.__iter__(value)), out, limit, depth)
    elif isinstance(value, dict):
        pairs = [part for pair in dict.items(value) for part in pair]
        _sequence(b"d", pairs, out, limit, depth)
    elif hasattr(type(value), "__iter__"):
        items = list(islice(value, limit))
        if len(items) == limit:
            raise WireError(f"an iterable of {limit} or more items")
        _block(b"g", type(value).__name__.encode("utf-8", "surrogatepass"), out)
        _encode(items, out, limit, depth + 1)
    else:
        raise WireError(f"a value of type {type(value).__name__} is not a builtin value")
    if len(out) > limit:
        raise WireError(f"larger than {limit} bytes")


def _block(tag: bytes, content: bytes, out: bytearray) -> None:
    out += tag + _COUNT.pack(len(content)) + content


def _sequence(tag: bytes, items: list[Any], out: bytearray, limit: int, depth: int) -> None:
    out += tag + _COUNT.pack(len(items))
    for item in items:
        _encode(item, out, limit, depth + 1)


def decode(data: bytes) -> Any:
    """Decode bytes from the jail: any input gives a value or WireError, in bounded time."""
    value, end = _decode(data, 0, 0)
    if end != len(data):
        raise WireError(f"{len(data) - end} bytes after the value")
    return value


def _decode(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    if depth > MAX_DEPTH + 1:
        raise WireError(f"nested deeper than {MAX_DEPTH} levels")
    tag, at = data[at : at + 1], at + 1
    if tag in _CONSTANTS:
        return _CONSTANTS[tag], at
    if tag == b"f":
        return _FLOAT.unpack(_take(data, at, 8))[0], at + 8
    if tag == b"c":
        return complex(*_COMPLEX.unpack(_take(data, at, 16))), at + 16
    if tag not in _COUNTED:
        raise WireError(f"unknown tag {tag!r}")
    count, at = _COUNT.unpack(_take(data, at, 4))[0], at + 4
    if tag in (b"i", b"s", b"b", b"g"):
        block, at = _take(data, at, count), at + count
        if tag == b"i":
            return int.from_bytes(block, "big", signed=True), at
        if tag == b"b":
            return block, at
        try:
            text = block.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise WireError("text is not UTF-8") from error
        if tag == b"s":
            return text, at
        values, at = _decode(data, at, depth + 1)
        if type(values) is not list:
            raise WireError("an iterable without its items")
        return Items(text, values), at
    if count > len(data) - at or (tag == b"d" and count % 2):
        raise WireError(f"{count} items announced, {len(data) - at} bytes left")
    items = []
    for _ in range(count):
        item, at = _decode(data, at, depth + 1)
        items.append(item)
    return _container(tag, items), at


_CONSTANTS: dict[bytes, Any] = {b"N": None, b"T": True, b"F": False}
_COUNTED = frozenset((b"i", b"s", b"b", b"g", b"l", b"t", b"S", b"Z", b"d"))


def _take(data: bytes, at: int, count: int) -> bytes:
    block = data[at : at + count]
    if len(block) != count:
        raise WireError(f"{count} bytes announced, {len(block)} left")
    return block


def _container(tag: bytes, items: list[Any]) -> Any:
    if tag == b"l":
        return items
    if tag == b"t":
        return tuple(items)
    if tag == b"S":
        return set(hashable(items))
    if tag == b"Z":
        return frozenset(hashable(items))
    return dict(zip(hashable(items[0::2]), items[1::2], strict=True))


def hashable(items: Iterable[Any]) -> Collection[Any]:
    """Check that items may enter a set or dict: many keys of one hash would take hours.

    Where such items hold sets, the crowds of all levels multiply.
    """
    items = list(items)
    try:
        counts = Counter(map(hash, items))
    except TypeError as error:
        raise WireError("an unhashable item in a set or dict") from error
    distinct: dict[int, list[Any]] = {h: [] for h, n in counts.items() if n > 1}
    inner = dict.fromkeys(distinct, 1)
    for item in items if distinct else ():
        key = hash(item)
        same = distinct.get(key)
        if same is not None and item not in same:
            same.append(item)
            inner[key] = max(inner[key], _crowd(item))
            if len(same) > 1 and len(same) * inner[key] > MAX_SAME_HASH:
                raise WireError(f"more than {MAX_SAME_HASH} items share one hash")
    return items


def _crowd(value: Any) -> int:
    """Bound how often comparing two such values may compare any one part of them."""
    if not isinstance(value, (tuple, frozenset)):
        return 1
    counts = Counter(map(hash, value)) if isinstance(value, frozenset) else {}
    return max((counts.get(hash(part), 1) * _crowd(part) for part in value), default=1)


def frame(payload: bytes) -> bytes:
    """Put the four-byte length in front."""
    return _COUNT.pack(len(payload)) + payload


def split_frames(data: bytes) -> list[bytes]:
    """Cut a byte string into its whole frames; a broken tail is dropped."""
    frames, at = [], 0
    while at + 4 <= len(data):
        size = _COUNT.unpack_from(data, at)[0]
        if at + 4 + size > len(data):
            break
        frames.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    return frames
