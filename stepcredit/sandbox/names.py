"""Which parts of an assert the program itself must answer."""

from __future__ import annotations

import ast
import builtins
import sys

from stepcredit.sandbox.host_operations import KNOWN_NAMES, METHODS


def foreign(name: str) -> bool:
    """Tell whether a name can only be the program's."""
    return name not in KNOWN_NAMES and not hasattr(builtins, name)


def root(node: ast.expr) -> ast.expr:
    """Go down to where attributes, calls and subscripts start."""
    while isinstance(node, (ast.Attribute, ast.Call, ast.Subscript)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node


def origin(node: ast.expr) -> str:
    """Name the function, class or value from which a part that is the program's comes."""
    while isinstance(node, (ast.Attribute, ast.Call, ast.Subscript)) and not _plain(node):
        node = node.func if isinstance(node, ast.Call) else node.value
    return ast.unparse(node)


def belongs_to_program(node: ast.expr) -> bool:
    """Tell whether this is a name, attribute or call that the program itself must answer.

    A method is the program's when it is called on a plain name or a new instance of a class, or
    when it has no arguments, which could be the expected value, and no builtin value has it.
    """
    start = root(node)
    if not (isinstance(start, ast.Name) and foreign(start.id)):
        return False
    if isinstance(node, ast.Name):
        return not node.id.startswith("__")
    if isinstance(node, ast.Attribute):
        return not node.attr.startswith("__") and start.id not in sys.stdlib_module_names
    if not isinstance(node, ast.Call):
        return False
    if not isinstance(node.func, ast.Attribute):
        return True
    owner, method = node.func.value, node.func.attr
    if method.startswith("__") or start.id in sys.stdlib_module_names:
        return False
    instance = isinstance(owner, ast.Call) and isinstance(owner.func, ast.Name)
    if _plain(owner) or (instance and start.id[0].isupper()):
        return True
    return method not in METHODS and not node.args and not node.keywords


def claims(node: ast.expr) -> bool:
    """Tell whether a call hands the program its own answer beside a value, as same(f(1), 41) does.

    Its truth would be the program's own claim of what is right. Instances of a class are inputs.
    """
    if not (isinstance(node, ast.Call) and belongs_to_program(node)):
        return False
    args = [*node.args, *(word.value for word in node.keywords)]
    answers = [any(map(_answer, ast.walk(arg))) for arg in args]
    return any(answers) and not all(answers)


def _answer(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and belongs_to_program(node)
        and not origin(node).rpartition(".")[2][:1].isupper()
    )


def _plain(node: ast.expr) -> bool:
    """Tell whether a dotted name holds no call and no subscript."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)
