"""Errors of the environments: each says the value, the rule and the fix."""

import difflib
import math
from collections.abc import Iterable
from numbers import Integral, Real


class EnvError(ValueError):
    """Something about an environment is not as its contract says."""


class UnknownNameError(EnvError):
    """An id, a reward set-up, a parameter or an option that does not exist."""

    kind: str = ""
    """What it should have been: `environment`, `reward`, `parameter`, ..."""
    name: str = ""
    near: str | None = None
    """The valid name that is most like it."""


class BadValueError(EnvError):
    """A parameter of the right name with a value that its rule forbids."""


def unknown_name(
    kind: str, name: str, valid: Iterable[str], otherwise: str = ""
) -> UnknownNameError:
    """Returns the error for a name that does not exist, with the nearest one that does.

    ``otherwise`` is added where none is near.

    >>> str(unknown_name("reward", "densse", ["outcome", "dense"]))
    "unknown reward 'densse': did you mean 'dense'? It must be one of: outcome, dense"
    """
    names = list(valid)
    near = _nearest(name, names)
    hint = f"did you mean {near!r}? It " if near is not None else ""
    shown = ", ".join(names) if len(names) <= 12 else f"{', '.join(names[:12])}, ..."
    rule = f"{hint}must be one of: {shown}" if names else "none is accepted here; leave it out"
    rule += "" if near is not None or not otherwise else f"; {otherwise}"
    error = UnknownNameError(f"unknown {kind} {name!r}: {rule}")
    error.kind, error.name, error.near = kind, name, near
    return error


def _nearest(name: str, names: list[str]) -> str | None:
    by_tail = {each.rpartition("/")[2].lower(): each for each in names}
    by_name = {each.lower(): each for each in names}
    for table, key in ((by_name, name.lower()), (by_tail, name.rpartition("/")[2].lower())):
        near = difflib.get_close_matches(key, table, n=1, cutoff=0.6)
        if near:
            return table[near[0]]
    return None


def whole_number(name: str, value: object, *, low: int, high: int | None = None, fix: str) -> int:
    """Returns ``value`` as an int; raises `BadValueError` unless it is a whole number in range."""
    rule = f"at least {low}" if high is None else f"from {low} to {high}"
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise BadValueError(f"{name}={value!r}: must be a whole number {rule}; {fix}")
    number = int(value)
    if number < low or (high is not None and number > high):
        raise BadValueError(f"{name}={number}: must be {rule}; {fix}")
    return number


def real_number(name: str, value: object, *, low: float, high: float = math.inf, fix: str) -> float:
    """Returns ``value`` as a float; raises `BadValueError` unless it is finite and in range."""
    rule = f"at least {low:g}" if math.isinf(high) else f"from {low:g} to {high:g}"
    if isinstance(value, bool) or not isinstance(value, Real):
        raise BadValueError(f"{name}={value!r}: must be a number {rule}; {fix}")
    number = float(value)
    if not math.isfinite(number) or not low <= number <= high:
        raise BadValueError(f"{name}={number:g}: must be {rule}; {fix}")
    return number
