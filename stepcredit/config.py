"""Configuration files: YAML with `base:` chains, dotted overrides, errors that say where.

A mapping is built in layers (base file, file, overrides). Each layer remembers where its keys
were written, so that an error can point at the line, and the result is validated by pydantic.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from stepcredit.explain import Keys, explain, nearest

Model = TypeVar("Model", bound=BaseModel)


class UserError(Exception):
    """A mistake the user can fix; the command line prints the message alone and exits with 2."""


@dataclass(frozen=True)
class Layered:
    """Nested settings and, for each key path, where it was written."""

    values: dict[str, Any] = field(default_factory=dict)
    origin: dict[Keys, str] = field(default_factory=dict)


class _Loader(yaml.SafeLoader):
    """Safe YAML without the traps of YAML 1.1.

    `on` and `no` are text, `3e-4` is a number, `010` is not 8, `1:30` is not 90, and nothing is a
    date.
    """


_REPLACED = (":bool", ":float", ":int", ":timestamp")


_Loader.yaml_implicit_resolvers = {
    letter: [(tag, rule) for tag, rule in rules if not tag.endswith(_REPLACED)]
    for letter, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|\.[0-9]+(?:[eE][-+]?[0-9]+)?"
        r"|[0-9]+[eE][-+]?[0-9]+|\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
    ),
    list("-+0123456789."),
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int",
    re.compile(r"^[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F]+)$"),
    list("-+0123456789"),
)


def parse_yaml(text: str, name: str) -> tuple[Any, dict[Keys, str]]:
    """The value of a YAML text and the line of each of its keys.

    Raises:
        UserError: the text is not YAML, or writes a key twice.
    """
    origin: dict[Keys, str] = {}
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is not None:
            _note_lines(node, (), name, origin)
        value = None if node is None else loader.construct_document(node)
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(f"{name}: not valid YAML: {_one_line(error)}") from error
    except RecursionError as error:
        deep = "nested too deeply, or an anchor holds itself"
        raise UserError(f"{name}: not valid YAML: {deep}") from error
    return value, origin


def _note_lines(node: yaml.Node, path: Keys, name: str, origin: dict[Keys, str]) -> None:
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        here = (*path, str(key.value))
        line = f"{name}:{key.start_mark.line + 1}"
        if here in origin:
            raise UserError(f"{line}: {'.'.join(here)} is written twice; keep one of them")
        origin[here] = line
        _note_lines(value, here, name, origin)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def read_mapping(path: Path) -> Layered:
    """The mapping in one YAML file, `base:` untouched.

    Raises:
        UserError: the file is missing, unreadable, or holds something else than a mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        near = _nearby_file(path) if isinstance(error, FileNotFoundError) else ""
        raise UserError(f"{path}: cannot be read: {_reason(error)}{near}") from error
    values, origin = parse_yaml(text, path.name)
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise UserError(f"{path}: holds a {type(values).__name__}; write `key: value` lines")
    return Layered(values, origin)


def _reason(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else "not UTF-8 text"


def _nearby_file(path: Path) -> str:
    if not path.parent.is_dir():
        return ""
    names = sorted(p.name for p in path.parent.iterdir() if p.suffix in (".yaml", ".yml"))
    near = nearest(path.name, names)
    return f"; did you mean {path.parent / near}?" if near else ""


def load_layers(path: Path, seen: tuple[Path, ...] = ()) -> Layered:
    """A config file on top of its `base:` chain; each base is relative to the file naming it.

    Raises:
        UserError: a file is missing or malformed, or the chain returns to itself.
    """
    if path.resolve() in seen:
        chain = " -> ".join(p.name for p in (*seen, path))
        raise UserError(f"base: {chain} is a circle; remove one `base:` line")
    layer = read_mapping(path)
    base = layer.values.pop("base", None)
    if base is None:
        return layer
    if not isinstance(base, str):
        raise UserError(f"{layer.origin['base',]}: base: {base!r}: must be a file name")
    return merge(load_layers(path.parent / base, (*seen, path.resolve())), layer)


def merge(under: Layered, over: Layered) -> Layered:
    """`over` on top of `under`, section by section."""
    return Layered(_merge(under.values, over.values), {**under.origin, **over.origin})


def _merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(under)
    for key, value in over.items():
        old = merged.get(key)
        both = isinstance(old, dict) and isinstance(value, dict)
        merged[key] = _merge(old, value) if both else value  # type: ignore[arg-type]  # `both` says so
    return merged


def parse_override(text: str) -> tuple[str, Any]:
    """`train.steps=3` as ("train.steps", 3); the value is read as YAML.

    Raises:
        UserError: no `=`, an empty key part, or a value that is not YAML.
    """
    key, equals, value = text.partition("=")
    if not equals or not all(key.split(".")):
        raise UserError(f"{text}: not an override; write it as section.key=value")
    return key, parse_yaml(value, f"override {text}")[0]


def override(layer: Layered, changes: Mapping[str, Any], where: str) -> Layered:
    """Set dotted keys; a key naming a whole section replaces that section.

    Raises:
        UserError: a dotted key leads through something that is not a section.
    """
    values, origin = layer.values, dict(layer.origin)
    for dotted, value in changes.items():
        path = tuple(str(dotted).split("."))
        values = _set(values, path, value, dotted, where)
        origin = {keys: place for keys, place in origin.items() if keys[: len(path)] != path}
        origin[path] = where
    return Layered(values, origin)


def _set(
    values: Mapping[str, Any], path: Keys, value: Any, dotted: str, where: str
) -> dict[str, Any]:
    copy = dict(values)
    if len(path) == 1:
        copy[path[0]] = value
        return copy
    inner = copy.get(path[0], {})
    if not isinstance(inner, dict):
        raise UserError(f"{where}: {dotted}: {path[0]} is {inner!r}, not a section")
    copy[path[0]] = _set(inner, path[1:], value, dotted, where)
    return copy


def with_overrides(layer: Layered, texts: Iterable[str]) -> Layered:
    """Command-line overrides on top of a layer, in the order given."""
    for text in texts:
        key, value = parse_override(text)
        layer = override(layer, {key: value}, "command line")
    return layer


def build(schema: type[Model], layer: Layered) -> Model:
    """The validated settings.

    Raises:
        UserError: one line for every wrong key or value, with its place and its fix.
    """
    try:
        return schema.model_validate(layer.values)
    except ValidationError as error:
        raise UserError("\n".join(explain(error, schema, layer.origin))) from error


def content_hash(values: Mapping[str, Any]) -> str:
    """Twelve hex digits that change when any setting changes."""
    text = json.dumps(values, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def dump(values: Mapping[str, Any], path: Path) -> None:
    """Write settings as YAML that `load_layers` reads back unchanged."""
    text = yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True)
    path.write_text(text, encoding="utf-8")
