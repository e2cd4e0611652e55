"""The operations the host applies to expected values and to decoded replies, bounded in cost.

Replies choose the operands, so what could take long or much memory is refused as NotJudged.
"""

from __future__ import annotations

import ast
import math
import operator
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from stepcredit.sandbox.wire import Items, NotJudged, hashable

MAX_BITS = 4096
MAX_ITEMS = 1 << 20
MAX_WORK = 1 << 28
Function = Callable[..., Any]


def _number(value: Any) -> None:
    if not isinstance(value, (int, float, complex)):
        raise NotJudged(f"arithmetic on {type(value).__name__}")
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise NotJudged(f"an integer above {MAX_BITS} bits in arithmetic")


def _numbers(function: Function) -> Function:
    def bounded(*values: Any) -> Any:
        for value in values:
            _number(value)
        return function(*values)

    return bounded


def _small(function: Function, most: int = 1000) -> Function:
    def bounded(*values: Any) -> Any:
        for value in values:
            if abs(value) > most:
                raise NotJudged(f"{value} in {function.__name__}: at most {most}")
        return function(*values)

    return bounded


def _power(base: Any, exponent: Any, modulus: Any = None) -> Any:
    for value in (base, exponent, 0 if modulus is None else modulus):
        _number(value)
    if modulus is None and abs(exponent) > 1000:
        raise NotJudged(f"exponent {exponent}: at most 1000")
    return pow(base, exponent, modulus)


def _weight(value: Any) -> int:
    """Count items and characters at all levels, shared ones as often as they are met."""
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if isinstance(value, Items):
        value = value.values
    if isinstance(value, (str, bytes, range)):
        return max(1, len(value))
    if isinstance(value, int):
        return 1 + value.bit_length() // 64
    if hasattr(value, "__len__") and hasattr(value, "__iter__"):
        return max(1, sum(map(_weight, value)))
    return 1


def _of_sets(function: Function) -> Function:
    def bounded(left: Any, right: Any) -> Any:
        # A view of a dict would put any items into a set.
        if any(isinstance(side, (str, bytes, list, tuple, range, Items)) for side in (left, right)):
            raise NotJudged(f"{function.__name__} of {type(left).__name__}, {type(right).__name__}")
        return function(left, right)

    return bounded


def _times(left: Any, right: Any) -> Any:
    for sequence, count in ((left, right), (right, left)):
        if type(sequence) in (str, bytes, list, tuple) and isinstance(count, int):
            if _weight(sequence) * count > MAX_ITEMS:
                raise NotJudged(f"a sequence of more than {MAX_ITEMS} items")
            return sequence * count
    return _numbers(operator.mul)(left, right)


def _round(number: Any, ndigits: Any = None) -> Any:
    if ndigits is not None and abs(ndigits) > 400:
        raise NotJudged(f"ndigits {ndigits}: at most 400")
    return round(number, ndigits)


def _sum(items: Any, start: Any = 0) -> Any:
    if not isinstance(start, (int, float, complex)):
        # Adding up lists takes time quadratic in their number.
        raise NotJudged(f"a sum that starts with {type(start).__name__}")
    summands = list(items)
    for item in summands:
        if isinstance(item, int):
            _number(item)
    return sum(summands, start)


def _range(*bounds: Any) -> range:
    made = range(*bounds)
    # len() of a longer one does not fit its own result type.
    if made[MAX_ITEMS : MAX_ITEMS + 1]:
        raise NotJudged(f"a range of more than {MAX_ITEMS} items")
    return made


def _bytes(source: Any = b"", *encoding: Any) -> bytes:
    if isinstance(source, int):
        raise NotJudged("bytes of a number")
    return bytes(source, *encoding)


def _set(items: Any = ()) -> Any:
    return set(hashable(items))


def _frozenset(items: Any = ()) -> Any:
    return frozenset(hashable(items))


def _dict(items: Any = (), **named: Any) -> Any:
    pairs = list(items.items() if isinstance(items, dict) else items)
    keys = hashable([key for key, _ in pairs])
    return dict(zip(keys, [value for _, value in pairs], strict=True)) | named


def _counter(items: Any = (), **named: Any) -> Any:
    return Counter(_dict(items) if isinstance(items, dict) else hashable(items), **named)


def _deque(items: Any = ()) -> Items:
    return Items("deque", list(items))


def _applied(function: Any) -> Function | None:
    """Give the bounded form of a function handed to map, filter, or as a key."""
    if function is None:
        return None
    for name, value in VALUES.items():
        if value is function and name in FUNCTIONS:
            return FUNCTIONS[name]
    raise NotJudged("a function that is not a builtin")


def _map(function: Any, *items: Any) -> Any:
    applied = _applied(function)
    if applied is None:
        raise NotJudged("map without a function")
    return map(applied, *items)


def _filter(function: Any, items: Any) -> Any:
    return filter(_applied(function), items)


def _with_key(function: Function) -> Function:
    def ordered(*items: Any, key: Any = None, **named: Any) -> Any:
        return function(*items, key=_applied(key), **named)

    return ordered


def _join(separator: Any, items: Any) -> Any:
    parts = list(items)
    if len(separator) * len(parts) > MAX_ITEMS:
        raise NotJudged(f"a text of more than {MAX_ITEMS} characters")
    return separator.join(parts)


def _holds_items(value: Any) -> bool:
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    inside = isinstance(value, (list, tuple, set, frozenset)) and any(map(_holds_items, value))
    return inside or isinstance(value, Items)


def _text(function: Function) -> Function:
    def exact(*values: Any, **named: Any) -> Any:
        if any(map(_holds_items, values)):
            raise NotJudged("the text of a range, deque or other iterable; write list(...) in it")
        return function(*values, **named)

    return exact


def call_method(value: Any, name: str, args: list[Any]) -> Any:
    """Apply a method of an exact builtin value, as its type defines it."""
    if type(value) not in TYPES:
        raise NotJudged(f"a method of {getattr(value, 'kind', type(value).__name__)}")
    if name == "join" and type(value) in (str, bytes):
        return _join(value, *args)
    text = type(value) in (str, bytes) and args and isinstance(args[0], type(value))
    # Stripping and searching from the right compare everything with everything.
    if text and len(value) * len(args[0]) > MAX_WORK:
        raise NotJudged(f"{name} of {len(args[0])} characters in {len(value)}")
    return getattr(value, name)(*args)


BINARY: dict[type, Function] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: _times,
    ast.Div: _numbers(operator.truediv),
    ast.FloorDiv: _numbers(operator.floordiv),
    ast.Mod: _numbers(operator.mod),
    ast.Pow: _power,
    ast.BitAnd: _of_sets(operator.and_),
    ast.BitOr: _of_sets(operator.or_),
    ast.BitXor: _of_sets(operator.xor),
}
UNARY: dict[type, Function] = {
    ast.Not: operator.not_,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
}
COMPARE: dict[type, Function] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda item, box: item in box,
    ast.NotIn: lambda item, box: item not in box,
}
TYPES = (bool, int, float, complex, str, bytes, list, tuple, set, frozenset, dict)
# Methods whose result is about as large as the value, with or without arguments.
METHODS = frozenset(
    (
        *("bit_length", "capitalize", "casefold", "count", "endswith", "find", "get", "index"),
        *("is_integer", "isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "isdisjoint"),
        *("islower", "isnumeric", "isspace", "istitle", "isupper", "items", "join", "keys"),
        *("lower", "lstrip", "partition", "removeprefix", "removesuffix", "rfind", "rindex"),
        *("rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith", "strip"),
        *("swapcase", "title", "upper", "values"),
    )
)
_PLAIN = (
    *(bool, int, float, complex, list, tuple, len, abs, any, all, isinstance, ord, chr),
    *(reversed, bin, oct, hex, zip, enumerate),
)
_MATH = (
    *("isclose", "isnan", "isinf", "isfinite", "sqrt", "floor", "ceil", "trunc", "fabs", "log"),
    *("log2", "log10", "exp", "sin", "cos", "tan", "asin", "acos", "atan", "atan2", "hypot"),
    *("radians", "degrees"),
)
FUNCTIONS: dict[str, Function] = {
    **{function.__name__: function for function in _PLAIN},
    **{function.__name__: _with_key(function) for function in (sorted, min, max)},
    **{function.__name__: _text(function) for function in (str, repr, ascii)},
    **{f"math.{name}": getattr(math, name) for name in _MATH},
    **{f"math.{name}": _numbers(getattr(math, name)) for name in ("gcd", "lcm", "isqrt", "pow")},
    **{f"math.{name}": _small(getattr(math, name)) for name in ("factorial", "comb", "perm")},
    "set": _set,
    "frozenset": _frozenset,
    "dict": _dict,
    "bytes": _bytes,
    "Counter": _counter,
    "deque": _deque,
    "range": _range,
    "round": _round,
    "pow": _power,
    "divmod": _numbers(divmod),
    "sum": _sum,
    "map": _map,
    "filter": _filter,
    "type": lambda value: type(value),
    "sys.getsizeof": sys.getsizeof,
}
VALUES: dict[str, Any] = {
    **{kind.__name__: kind for kind in TYPES},
    **{f.__name__: f for f in (len, sorted, sum, min, max, abs, ord, chr, repr, any, all, round)},
    **{f"math.{name}": getattr(math, name) for name in ("pi", "e", "tau", "inf", "nan")},
}
KNOWN_NAMES = frozenset(name.split(".")[0] for name in (*FUNCTIONS, *VALUES))
