"""Translate assert statements into calls for the jail and a comparison for the host.

The program's own calls (`f(2)`, `g(f(1), [3])`, `root`) are sent into the jail as source text; what
is around them (expected values, comparison, `sorted`, methods of text) is evaluated here over
decoded builtin values, by a small interpreter without loops or power towers.  A name the host does
not know stands for the program only where the assert tests it: a comparison may call one thing of
the program, since whatever another name gave would be the program's claim of what is right.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from stepcredit.sandbox.host_operations import (
    BINARY,
    COMPARE,
    FUNCTIONS,
    METHODS,
    UNARY,
    VALUES,
    call_method,
)
from stepcredit.sandbox.names import belongs_to_program, claims, foreign, origin
from stepcredit.sandbox.wire import hashable

Judge = Callable[[Sequence[Any]], Any]
MAX_TEST = 200_000
FORMS = (
    "what can be judged on the host is one assert over calls of the program, constants, "
    "comparisons, and/or/not, arithmetic, indexing, builtins such as len, sorted, set, abs, round, "
    "math.isclose, and methods of text and dicts"
)


class CannotTranslate(ValueError):
    """The assert is outside what can be judged without running it beside the program."""


@dataclass(frozen=True, kw_only=True)
class HostTest:
    """One assert: expressions to evaluate in the jail, and the judgement of their values."""

    calls: tuple[str, ...]
    judge: Judge


@dataclass
class _Calls:
    """The calls found so far and the function or value from which each comes."""

    texts: list[str] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)


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
    if isinstance(test, ast.Tuple) and test.elts:
        raise CannotTranslate("the assert of a tuple is always true; take the parentheses away")
    calls = _Calls()
    try:
        theirs = any(isinstance(node, ast.Name) and foreign(node.id) for node in ast.walk(test))
        judge = _truth(test, calls) if theirs else _own_builtin(test, calls)
    except CannotTranslate:
        raise
    except (RecursionError, ValueError) as error:
        raise CannotTranslate(f"the test is too deep or too large: {error}") from error
    if not calls.texts:
        raise CannotTranslate(f"the assert calls nothing of the program; {FORMS}")
    return HostTest(calls=tuple(calls.texts), judge=judge)


def _own_builtin(test: ast.expr, calls: _Calls) -> Judge:
    """Handle a program with its own `sum` or `sorted`: the left-hand call is then the program's."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _own_builtin(test.operand, calls)
        return lambda values: not inner(values)
    left = test.left if isinstance(test, ast.Compare) else test
    if not (isinstance(left, ast.Call) and isinstance(left.func, ast.Name)):
        raise CannotTranslate(f"the assert calls nothing of the program; {FORMS}")
    # By way of its globals: Python's own function would answer for a program that has none.
    own = f"globals()[{left.func.id!r}]"
    calls.texts.append(own + ast.unparse(left).removeprefix(left.func.id))
    if isinstance(test, ast.Compare):
        return _comparison([lambda values: values[0]], test, calls)
    return lambda values: values[0]


def _truth(node: ast.expr, calls: _Calls) -> Judge:
    """Build what and, or and not combine; each part may test one thing of the program."""
    if isinstance(node, ast.BoolOp):
        return _junction(node.op, [_truth(part, calls) for part in node.values])
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inner = _truth(node.operand, calls)
        return lambda values: not inner(values)
    sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else [node]
    truths = [isinstance(side, ast.Constant) and isinstance(side.value, bool) for side in sides]
    for side in sides if any(truths) or len(sides) == 1 else ():
        if claims(side):
            raise CannotTranslate(
                f"{ast.unparse(side)} would be the program's own claim of what is right; compare "
                "the program's answer with the value"
            )
    start = len(calls.texts)
    judge = _build(node, calls)
    origins, texts = calls.origins[start:], calls.texts[start:]
    if len(set(origins)) > 1 or (len(set(texts)) > 1 and origins[0][:1].isupper()):
        raise CannotTranslate(
            f"{texts[-1]} cannot be judged on the host beside {texts[0]}: it would be the "
            "program's own claim of what is right; write the value"
        )
    return judge


def _build(node: ast.expr, calls: _Calls) -> Judge:
    if isinstance(node, ast.Constant):
        constant = node.value
        return lambda values: constant
    if belongs_to_program(node):
        index = len(calls.texts)
        calls.texts.append(ast.unparse(node))
        calls.origins.append(origin(node))
        return lambda values: values[index]
    build = _BUILDERS.get(type(node))
    if build is None:
        raise _cannot(type(node).__name__)
    return build(node, calls)


def _cannot(what: str) -> CannotTranslate:
    return CannotTranslate(f"{what} cannot be judged on the host; {FORMS}")


def _compare(node: ast.Compare, calls: _Calls) -> Judge:
    return _comparison([_build(node.left, calls)], node, calls)


def _comparison(parts: list[Judge], node: ast.Compare, calls: _Calls) -> Judge:
    """Compare as a chain that stops at the first comparison that does not hold."""
    parts = [*parts, *(_build(part, calls) for part in node.comparators)]
    for op, right in zip(node.ops, node.comparators, strict=True):
        singleton = isinstance(right, ast.Constant) and right.value in (None, True, False)
        if isinstance(op, (ast.Is, ast.IsNot)) and not singleton:
            raise CannotTranslate("`is` is judged against None, True and False only; use ==")
    ops: list[Callable[[Any, Any], Any]] = [COMPARE[type(op)] for op in node.ops]

    def judge(values: Sequence[Any]) -> Any:
        left, holds = parts[0](values), False
        for op, part in zip(ops, parts[1:], strict=True):
            right = part(values)
            holds = op(left, right)
            if not holds:
                break
            left = right
        return holds

    return judge


def _bool_op(node: ast.BoolOp, calls: _Calls) -> Judge:
    return _junction(node.op, [_build(part, calls) for part in node.values])


def _junction(op: ast.boolop, parts: list[Judge]) -> Judge:
    """Give the first part that decides: what is behind it may have failed."""
    decides = isinstance(op, ast.Or)

    def judge(values: Sequence[Any]) -> Any:
        for part in parts:
            value = part(values)
            if bool(value) == decides:
                break
        return value

    return judge


def _unary(node: ast.UnaryOp, calls: _Calls) -> Judge:
    operand = _build(node.operand, calls)
    op = UNARY[type(node.op)]
    return lambda values: op(operand(values))


def _binary(node: ast.BinOp, calls: _Calls) -> Judge:
    op = BINARY.get(type(node.op))
    if op is None:
        raise _cannot(type(node.op).__name__)
    left, right = _build(node.left, calls), _build(node.right, calls)
    return lambda values: op(left(values), right(values))


def _call(node: ast.Call, calls: _Calls) -> Judge:
    function = FUNCTIONS.get(ast.unparse(node.func))
    if function is None:
        return _method(node, calls)
    args = _arguments(node.args, calls)
    named = {word.arg: _build(word.value, calls) for word in node.keywords if word.arg}
    if len(named) != len(node.keywords):
        raise CannotTranslate("a ** argument outside a call of the program")
    return lambda values: function(
        *(arg(values) for arg in args), **{name: arg(values) for name, arg in named.items()}
    )


def _method(node: ast.Call, calls: _Calls) -> Judge:
    """Apply a method to a value on the host, whatever class the program gave it."""
    name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    if not isinstance(node.func, ast.Attribute) or name not in METHODS or node.keywords:
        raise _cannot(ast.unparse(node.func))
    owner, args = _build(node.func.value, calls), _arguments(node.args, calls)
    return lambda values: call_method(owner(values), name, [arg(values) for arg in args])


def _arguments(args: list[ast.expr], calls: _Calls) -> list[Judge]:
    if any(isinstance(arg, ast.Starred) for arg in args):
        raise CannotTranslate("a starred argument outside a call of the program")
    return [_build(arg, calls) for arg in args]


def _known_name(node: ast.Name | ast.Attribute, calls: _Calls) -> Judge:
    name = ast.unparse(node)
    if name not in VALUES:
        raise _cannot(name)
    value = VALUES[name]
    return lambda values: value


def _subscript(node: ast.Subscript, calls: _Calls) -> Judge:
    base, index = _build(node.value, calls), _build(node.slice, calls)
    return lambda values: base(values)[index(values)]


def _slice(node: ast.Slice, calls: _Calls) -> Judge:
    none = ast.Constant(None)
    parts = [_build(part or none, calls) for part in (node.lower, node.upper, node.step)]
    return lambda values: slice(*(part(values) for part in parts))


def _display(node: ast.List | ast.Tuple | ast.Set, calls: _Calls) -> Judge:
    parts = [_build(part, calls) for part in node.elts]
    kinds: dict[type, Callable[[Iterator[Any]], Any]]
    kinds = {ast.List: list, ast.Tuple: tuple, ast.Set: FUNCTIONS["set"]}
    kind = kinds[type(node)]
    return lambda values: kind(part(values) for part in parts)


def _dict_display(node: ast.Dict, calls: _Calls) -> Judge:
    if None in node.keys:
        raise CannotTranslate("a ** item in a dict outside a call of the program")
    keys = [_build(key, calls) for key in node.keys if key is not None]
    items = [_build(value, calls) for value in node.values]
    return lambda values: dict(
        zip(hashable([k(values) for k in keys]), [v(values) for v in items], strict=True)
    )


_BUILDERS: dict[type, Callable[[Any, _Calls], Judge]] = {
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
