"""Tables on a terminal or in a pipe."""

import os
from collections.abc import Mapping, Sequence

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


def print_tables(tables: Mapping[Titles, Sequence[Sequence[str]]]) -> None:
    """Print the rows of each table that has some."""
    console = Console(width=None if Console().is_terminal or os.environ.get("COLUMNS") else PIPE_WIDTH)
    with console.capture() as printed:
        for titles, rows in tables.items():
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
