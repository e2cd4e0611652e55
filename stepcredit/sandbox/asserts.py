"""Translate assert statements into calls for the jail and a comparison for the host.

The largest parts that name something of the program (`f(2)`, `g(f(1), [3])`, `root`) are sent into
the jail as source text; what is around them (expected values, comparison, `sorted`, `math.isclose`)
is evaluated here over decoded builtin values, by a small interpreter without loops or power towers.
"""

from __future__ import annotations

import ast
import math
import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from stepcredit.sandbox.wire import hashable

Judge = Callable[[Sequence[Any]], Any]
MAX_TEST = 200_000
MAX_BITS = 4096
FORMS = (
    "what can be judged on the host is one assert over calls of the program, constants, "
    "comparisons, and/or/not, arithmetic, indexing and builtins such as len, sorted, set, abs, "
    "round, math.isclose"
)


class CannotTranslate(ValueError):
    """The assert is outside what can be judged without running it beside the program."""


@dataclass(frozen=True, kw_only=True)
class HostTest:
    """One assert: expressions to evaluate in the jail, and the judgement of their values."""

    calls: tuple[str, ...]
    judge: Judge


@lru_cache(maxsize=8192)
def translate(source: str) -> HostTest:
    """Split an assert into calls and a host-side judgement; raises CannotTranslate."""
    if len(source) > MAX_TEST:
        raise CannotTranslate(f"a test of {len(source)} characters: at most {MAX_TEST}")
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise CannotTranslate(f"the test does not parse: {error}") from error
    if len(body) != 1 or not isinstance(body[0], ast.Assert):
        raise CannotTranslate(f"the test is not a single assert statement; {FORMS}")
    test = body[0].test
    calls: list[str] = []
    try:
        judge = _build(test, calls)
        if not calls:
            judge = _build_own_builtin(test, calls)
    except CannotTranslate:
        raise
    except (RecursionError, ValueError) as error:
        raise CannotTranslate(f"the test is too deep or too large: {error}") from error
    return HostTest(calls=tuple(calls), judge=judge)


def _build_own_builtin(test: ast.expr, calls: list[str]) -> Judge:
    """Handle a program with its own `sum` or `sorted`: the left-hand call is then the program's."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _build_own_builtin(test.operand, calls)
        return lambda values: not inner(values)
    left = test.left if isinstance(test, ast.Compare) else test
    if not (isinstance(left, ast.Call) and isinstance(left.func, ast.Name)):
        raise CannotTranslate(f"the assert calls nothing of the program; {FORMS}")
    calls.append(ast.unparse(left))
    if isinstance(test, ast.Compare):
        slot = ast.Name(id=_SLOT)
        return _compare(ast.Compare(slot, test.ops, test.comparators), calls)
    return _first


def _first(values: Sequence[Any]) -> Any:
    return values[0]


_SLOT = "\0slot"


def _build(node: ast.expr, calls: list[str]) -> Judge:
    if isinstance(node, ast.Name) and node.id == _SLOT:
        return _first
    if isinstance(node, ast.Constant):
        constant = node.value
        return lambda values: constant
    if _belongs_to_program(node):
        return _slot(node, calls)
    build = _BUILDERS.get(type(node))
    if build is None:
        raise CannotTranslate(f"{type(node).__name__} cannot be judged on the host; {FORMS}")
    return build(node, calls)


def _belongs_to_program(node: ast.expr) -> bool:
    """Tell whether a name, attribute or call starts at a name that is not a known builtin."""
    root = node
    while isinstance(root, (ast.Attribute, ast.Call)):
        root = root.func if isinstance(root, ast.Call) else root.value
    if isinstance(root, ast.Subscript) and root is not node:
        return _belongs_to_program(root.value)
    return isinstance(root, ast.Name) and root.id not in _KNOWN_NAMES


def _slot(node: ast.expr, calls: list[str]) -> Judge:
    index = len(calls)
    calls.append(ast.unparse(node))
    return lambda values: values[index]


def _compare(node: ast.Compare, calls: list[str]) -> Judge:
    parts = [_build(part, calls) for part in (node.left, *node.comparators)]
    for op, right in zip(node.ops, node.comparators, strict=True):
        singleton = isinstance(right, ast.Constant) and right.value in (None, True, False)
        if isinstance(op, (ast.Is, ast.IsNot)) and not singleton:
            raise CannotTranslate("`is` is judged against None, True and False only; use ==")
    ops: list[Callable[[Any, Any], Any]] = [_COMPARE[type(op)] for op in node.ops]

    def judge(values: Sequence[Any]) -> bool:
        items = [part(values) for part in parts]
        return all(op(items[i], items[i + 1]) for i, op in enumerate(ops))

    return judge


def _bool_op(node: ast.BoolOp, calls: list[str]) -> Judge:
    parts = [_build(part, calls) for part in node.values]
    combine: Callable[[Iterator[Any]], bool] = all if isinstance(node.op, ast.And) else any
    return lambda values: combine(part(values) for part in parts)


def _unary(node: ast.UnaryOp, calls: list[str]) -> Judge:
    operand = _build(node.operand, calls)
    op = _UNARY[type(node.op)]
    return lambda values: op(operand(values))


def _binary(node: ast.BinOp, calls: list[str]) -> Judge:
    op = _BINARY.get(type(node.op))
    if op is None:
        raise CannotTranslate(f"{type(node.op).__name__} cannot be judged on the host; {FORMS}")
    left, right = _build(node.left, calls), _build(node.right, calls)
    return lambda values: op(left(values), right(values))


def _call(node: ast.Call, calls: list[str]) -> Judge:
    function = _FUNCTIONS.get(ast.unparse(node.func))
    if function is None:
        raise CannotTranslate(f"{ast.unparse(node.func)} cannot be judged on the host; {FORMS}")
    if any(isinstance(arg, ast.Starred) for arg in node.args):
        raise CannotTranslate("a starred argument outside a call of the program")
    args = [_build(arg, calls) for arg in node.args]
    named = {word.arg: _build(word.value, calls) for word in node.keywords if word.arg}
    if len(named) != len(node.keywords):
        raise CannotTranslate("a ** argument outside a call of the program")
    return lambda values: function(
        *(arg(values) for arg in args), **{name: arg(values) for name, arg in named.items()}
    )


def _known_name(node: ast.Name | ast.Attribute, calls: list[str]) -> Judge:
    name = ast.unparse(node)
    if name not in _VALUES:
        raise CannotTranslate(f"{name} cannot be used as a value on the host; {FORMS}")
    value = _VALUES[name]
    return lambda values: value


def _subscript(node: ast.Subscript, calls: list[str]) -> Judge:
    base, index = _build(node.value, calls), _build(node.slice, calls)
    return lambda values: base(values)[index(values)]


def _slice(node: ast.Slice, calls: list[str]) -> Judge:
    none = ast.Constant(None)
    parts = [_build(part or none, calls) for part in (node.lower, node.upper, node.step)]
    return lambda values: slice(*(part(values) for part in parts))


def _display(node: ast.List | ast.Tuple | ast.Set, calls: list[str]) -> Judge:
    parts = [_build(part, calls) for part in node.elts]
    kinds: dict[type, Callable[[Iterator[Any]], Any]]
    kinds = {ast.List: list, ast.Tuple: tuple, ast.Set: _set}
    kind = kinds[type(node)]
    return lambda values: kind(part(values) for part in parts)


def _dict_display(node: ast.Dict, calls: list[str]) -> Judge:
    if None in node.keys:
        raise CannotTranslate("a ** item in a dict outside a call of the program")
    keys = [_build(key, calls) for key in node.keys if key is not None]
    items = [_build(value, calls) for value in node.values]
    return lambda values: dict(
        zip(hashable([k(values) for k in keys]), [v(values) for v in items], strict=True)
    )


_BUILDERS: dict[type, Callable[[Any, list[str]], Judge]] = {
    ast.Compare: _compare,
    ast.BoolOp: _bool_op,
    ast.UnaryOp: _unary,
    ast.BinOp: _binary,
    ast.Call: _call,
    ast.Name: _known_name,
    ast.Attribute: _known_name,
    ast.Subscript: _subscript,
    ast.Slice: _slice,
    ast.List: _display,
    ast.Tuple: _display,
    ast.Set: _display,
    ast.Dict: _dict_display,
}
_UNARY: dict[type, Callable[[Any], Any]] = {
    ast.Not: operator.not_,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
}
_COMPARE: dict[type, Callable[[Any, Any], Any]] = {
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


def _numbers(op: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Refuse operands whose result could be large: values from the jail choose the cost here."""

    def bounded(left: Any, right: Any) -> Any:
        for value in (left, right):
            if not isinstance(value, (int, float, complex)):
                raise TypeError(f"arithmetic on {type(value).__name__} is not judged on the host")
            if isinstance(value, int) and value.bit_length() > MAX_BITS:
                raise ValueError(f"an integer above {MAX_BITS} bits in arithmetic")
        return op(left, right)

    return bounded


def _power(base: Any, exponent: Any) -> Any:
    if abs(exponent) > 1000:
        raise ValueError(f"exponent {exponent}: at most 1000 on the host")
    return base**exponent


def _round(number: Any, ndigits: Any = None) -> Any:
    if ndigits is not None and abs(ndigits) > 400:
        raise ValueError(f"ndigits {ndigits}: at most 400 on the host")
    return round(number, ndigits)


_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: _numbers(operator.mul),
    ast.Div: _numbers(operator.truediv),
    ast.FloorDiv: _numbers(operator.floordiv),
    ast.Mod: _numbers(operator.mod),
    ast.Pow: _numbers(_power),
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
}


def _set(items: Any = ()) -> Any:
    return set(hashable(items))


def _frozenset(items: Any = ()) -> Any:
    return frozenset(hashable(items))


def _dict(items: Any = ()) -> Any:
    pairs = list(items.items() if isinstance(items, dict) else items)
    keys = hashable([key for key, _ in pairs])
    return dict(zip(keys, [value for _, value in pairs], strict=True))


_TYPES = (bool, int, float, complex, str, bytes, list, tuple, set, frozenset, dict)
_PLAIN = (
    *(bool, int, float, complex, str, repr, list, tuple, len, sorted, min, max, abs),
    *(any, all, isinstance, ord, chr, reversed),
)
_MATH = ("isclose", "isnan", "isinf", "isfinite", "sqrt", "floor", "ceil", "trunc", "fabs", "log")
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{function.__name__: function for function in _PLAIN},
    **{f"math.{name}": getattr(math, name) for name in _MATH},
    "set": _set,
    "frozenset": _frozenset,
    "dict": _dict,
    "round": _round,
    "sum": lambda items: sum(items),
    "type": lambda value: type(value),
    "sys.getsizeof": sys.getsizeof,
}
_VALUES: dict[str, Any] = {
    **{kind.__name__: kind for kind in _TYPES},
    **{f"math.{name}": getattr(math, name) for name in ("pi", "e", "tau", "inf", "nan")},
}
_KNOWN_NAMES = frozenset(name.split(".")[0] for name in (*_FUNCTIONS, *_VALUES))
