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
"""Columns that are cut on a narrow terminal. Other texts are wrapped."""


def print_tables(tables: Mapping[str, Sequence[Sequence[str]]]) -> None:
    """Print the rows of each table that has some. Its key has the titles of its columns, `a | b | c`."""
    console = Console(width=None if Console().is_terminal or os.environ.get("COLUMNS") else PIPE_WIDTH)
    with console.capture() as printed:
        for titles, rows in tables.items():
            table = Table(box=None, pad_edge=False)
            for title, cells in zip(titles.split(" | "), zip(*rows, strict=True), strict=False):
                is_number = not "".join(cells).strip("-+.,%e0123456789")
                is_cut = is_number or title in CUT_COLUMNS
                table.add_column(title, justify="right" if is_number else "left", no_wrap=is_cut)
                table.columns[-1].overflow = "ellipsis" if is_cut else "fold"
            for row in rows:
                table.add_row(*(Text(printable(cell)) for cell in row))
            if rows:
                console.print(table, "")
    for line in printed.get().splitlines():
        typer.echo(line.rstrip())  # rich fills each line up to the longest one
