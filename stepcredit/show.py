"""What commands print: tables that break no name on a narrow terminal, and JSON."""

import json
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    """Print rows that have the same keys; an `id` and a pair of `parameters` are never broken."""
    table, console = Table(box=None, pad_edge=False), Console()
    longest: dict[str, int] = {}
    for name in rows[0] if rows else []:
        words = [word for row in rows for word in _cell(row[name]).split(" ")]
        longest[name] = max(map(len, [name, *words]))
        width = longest[name] if name == "id" else None
        table.add_column(name, overflow="fold", width=width)
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row.values()))
    # columns without a width share what is left: two of them, and the gaps between three
    least = longest.get("id", 0) + 2 * longest.get("parameters", 0) + 4
    console.width = max(console.width, least)
    console.print(table, highlight=False)


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        pairs = (f"{key}={part}" for key, part in value.items())
        # a value such as `[1, 2]` must not be broken at its own spaces
        return ", ".join(pair.replace(" ", "\N{NO-BREAK SPACE}") for pair in pairs)
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    # the quotes of a docstring's code
    return str(value).replace("``", "")


def print_json(value: Any) -> None:
    """Print one JSON value."""
    print(json.dumps(value, indent=2, default=str))
