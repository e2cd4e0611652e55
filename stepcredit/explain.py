"""What is wrong with a setting, in one line: key, value, rule, fix and place."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

Keys = tuple[str, ...]
"""Where a setting stands: ("train", "steps")."""


def explain(
    error: ValidationError, schema: type[BaseModel], origin: Mapping[Keys, str]
) -> list[str]:
    """One line per problem: key, value, rule, fix and place."""
    lines = []
    for item in error.errors():
        # a union adds the name of the branch that failed, such as `list[str]`
        path = tuple(str(part) for part in item["loc"] if "[" not in str(part))
        hints = [*_fix(item["type"], item.get("ctx", {}), path, schema), *_place(path, origin)]
        # of a whole section only the rule is worth a line
        silent = item["type"] in ("missing", "extra_forbidden") or isinstance(item["input"], dict)
        shown = "" if silent else f"{_short(item)}: "
        suffix = f" ({'; '.join(hints)})" if hints else ""
        lines.append(f"{'.'.join(path) or 'config'}: {shown}{_rule(item)}{suffix}")
    return list(dict.fromkeys(lines))


def _short(item: Mapping[str, Any]) -> str:
    text = repr(item["input"])
    return text if len(text) <= 60 else text[:57] + "..."


_RULES = {
    "extra_forbidden": "unknown key",
    "missing": "missing",
    "too_short": "must hold at least {min_length}",
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be above {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be below {lt}",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be finite",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "string_type": "must be text",
    "literal_error": "must be {expected}",
    "model_type": "must be a section of `key: value` lines",
    "dict_type": "must be a section of `key: value` lines",
    "list_type": "must be a list",
}


def _rule(item: Mapping[str, Any]) -> str:
    if item["type"] in _RULES:
        return _RULES[item["type"]].format(**item.get("ctx", {}))
    text: str = item["msg"]
    return text.removeprefix("Value error, ")


def _fix(kind: str, ctx: Mapping[str, Any], path: Keys, schema: type[BaseModel]) -> list[str]:
    dotted = ".".join(path)
    if kind == "extra_forbidden":
        names = _fields_at(schema, path[:-1])
        near = nearest(path[-1], names)
        known = f"known: {', '.join(names)}"
        return [f"did you mean {'.'.join((*path[:-1], near))}?"] if near else [known]
    if kind == "greater_than_equal":
        return [f"pass {dotted}={ctx['ge']}"]
    if kind == "less_than_equal":
        return [f"pass {dotted}={ctx['le']}"]
    if kind == "missing":
        return [f"pass {dotted}=..."]
    return []


def _fields_at(schema: type[BaseModel], path: Keys) -> list[str]:
    """Names of the fields of the model that sits at a key path; empty where no model sits."""
    for part in path:
        found = schema.model_fields.get(part)
        inner = found.annotation if found else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return []
        schema = inner
    return list(schema.model_fields)


def _place(path: Keys, origin: Mapping[Keys, str]) -> list[str]:
    for length in range(len(path), 0, -1):
        if path[:length] in origin:
            return [f"set in {origin[path[:length]]}"]
    # a section that only came to be through a key below it
    below = next((place for keys, place in origin.items() if keys[: len(path)] == path), None)
    return [f"set in {below}"] if below and path else []


def nearest(name: str, choices: Sequence[str]) -> str | None:
    """The choice that looks most like `name`, or None when none does."""
    found = difflib.get_close_matches(name, choices, n=1, cutoff=0.5)
    return found[0] if found else None
