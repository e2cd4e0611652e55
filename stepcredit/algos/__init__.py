"""Numbers: advantages, trust regions, losses, presets and the trainer."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepcredit.algos.algorithm import Algorithm
    from stepcredit.algos.presets import ALGORITHMS
    from stepcredit.algos.trainer import train

__all__ = ["ALGORITHMS", "Algorithm", "train"]

_HOME = {"ALGORITHMS": "presets", "Algorithm": "algorithm", "train": "trainer"}


def __getattr__(name: str) -> Any:
    """Load a public name when it is asked for: a mistake in a config must not wait for torch."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
