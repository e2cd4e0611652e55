"""What is said of a run's memory: a table, a line, or JSON."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from stepcredit.memory import PARTS, Memory, at_one_time, told, total
from stepcredit.memory_paper import Bytes


def as_json(memory: Memory) -> dict[str, Any]:
    """Return everything in bytes."""
    models = {
        name: {
            "paper": asdict(each),
            "measured": asdict(memory.measured[name]) if memory.measured else None,
        }
        for name, each in memory.paper.items()
    }
    return {
        "sizes": asdict(memory.sizes),
        "models": models,
        "total": _both(memory, total),
        "at_one_time": _both(memory, at_one_time),
        "dominant": dict(zip(("model", "part"), memory.dominant, strict=True)),
        "notes": memory.notes,
    }


def as_rows(memory: Memory) -> list[dict[str, str]]:
    """Return the table: a line for each part that a model has, and the sums."""
    rows = []
    for name, each in memory.paper.items():
        seen = memory.measured[name] if memory.measured else None
        for part in [part for part in (*PARTS, "total") if getattr(each, part)]:
            measured = getattr(seen, part) if seen else None
            rows.append(_row(name, part, getattr(each, part), measured))
    for name, count in (("all", total), ("at one time", at_one_time)):
        both = _both(memory, count)
        rows.append(_row(name, "", both["paper"], both["measured"]))
    return rows


def largest(memory: Memory) -> str:
    """Say in one line what takes most."""
    model, part = memory.dominant
    models = memory.measured or memory.paper
    size, whole = getattr(models[model], part), total(models)
    return f"largest: the {model}'s {part}, {told(size)} of {told(whole)} ({size / whole:.0%})"


def _both(memory: Memory, count: Callable[[Mapping[str, Bytes]], int]) -> dict[str, int | None]:
    return {
        "paper": count(memory.paper),
        "measured": count(memory.measured) if memory.measured else None,
    }


def _row(model: str, part: str, on_paper: int | None, measured: int | None) -> dict[str, str]:
    def cell(size: int | None) -> str:
        return f"{'-' if size is None else f'{size / 1e6:,.3f}':>12}"

    return {
        "model": model,
        "part": part,
        "paper, MB": cell(on_paper),
        "measured, MB": cell(measured),
    }
