"""Tables on a terminal or in a pipe."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from service.text import printable

PIPE_WIDTH = 10_000
"""Characters of a line that does not go to a terminal."""
CUT_COLUMNS = ("example", "largest weights")
"""Columns whose texts are cut on a narrow terminal. Other texts are wrapped, and numbers stay whole."""

Titles = tuple[str, ...]
"""The titles of a table's columns."""


def as_cell(value: Any) -> str:
    """A value on one line, without null members; -0 as 0.

    >>> as_cell({"all": 0.625, "recent": None, "interval": [-0.0, 12345], "average": True})
    'all 0.625, interval [0, 12,345], average true'
    """
    if isinstance(value, dict):
        return ", ".join(f"{name} {text}" for name, member in value.items() if (text := as_cell(member)))
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(as_cell, value))}]"
    if isinstance(value, float):
        return f"{value + 0.0:g}"
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def figures(members: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The rows of a table with the members of an object, without lists and what is null or empty."""
    return [(name, value) for name, value in members.items() if not isinstance(value, list) and as_cell(value)]


def print_tables(tables: Mapping[Titles, Sequence[Sequence[Any]]]) -> None:
    """Print the rows of each table that has some; structs are printed as their members."""
    console = Console(width=None if Console().is_terminal or os.environ.get("COLUMNS") else PIPE_WIDTH)
    with console.capture() as printed:
        for titles, values in tables.items():
            rows = [[*map(as_cell, row)] for row in msgspec.to_builtins(values)]
            table = Table(box=None, pad_edge=False)
            for title, column in zip(titles, zip(*rows, strict=True), strict=False):
                is_number = not "".join(column).strip("-+.,%e0123456789")
                table.add_column(title, justify="right" if is_number else "left", no_wrap=is_number)
                table.columns[-1].overflow = "ellipsis" if title in CUT_COLUMNS else "fold"
            for row in rows:
                cells = zip(titles, row, strict=True)
                table.add_row(*(Text(printable(cell), no_wrap=title in CUT_COLUMNS) for title, cell in cells))
            if rows:
                console.print(table, "")
    for line in printed.get().splitlines():
        typer.echo(line.rstrip())  # rich fills each line up to the longest one
