"""What one fault is."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """Replace `old` by `new` in `file`: `test` must fail."""

    file: str
    old: str
    new: str
    test: str
