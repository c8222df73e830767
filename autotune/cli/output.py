"""Prints results to stdout: tables for people, JSON and CSV for programs."""

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich import box
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from autotune.report.tables import csv_text

PIPE_WIDTH = 10_000  # characters; in a pipe, lines stay whole for `grep` and `cut`


def stdout() -> Console:
    """Return a console on stdout, as wide as the terminal, in a pipe `PIPE_WIDTH` wide."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)


def print_json(document: Any) -> None:
    """Print a JSON document; NaN and infinity, which JSON lacks, are an error."""
    json.dump(document, sys.stdout, indent=2, allow_nan=False)
    sys.stdout.write("\n")


def print_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table as CSV with a header line; None becomes an empty field."""
    sys.stdout.write(csv_text(columns, rows))


def print_lines(*lines: str) -> None:
    """Print lines as they are; brackets in them are no markup."""
    console = stdout()
    for line in lines:
        console.print(Text(line), soft_wrap=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> None:
    """Print a table, in which sentences go on in the next line where the terminal is narrow.

    Columns whose heading names a unit or a count are aligned to the right.
    """
    print_rendered(_table(columns, rows, title, wraps=True))


def print_fitting(
    columns: Sequence[str], rows: Iterable[Sequence[str]], expendable: Sequence[str] = ()
) -> None:
    """Print a table without wrapping anything.

    Where the terminal is too narrow, columns are left out, and where that is not enough, rows
    are printed one below the other, with a line for each field.

    Args:
        columns: the headings.
        rows: the cells of each row.
        expendable: headings of columns that may be left out, the first one first.
    """
    listed = [list(row) for row in rows]
    for num_out in range(len(expendable) + 1):
        kept = [n for n, name in enumerate(columns) if name not in expendable[:num_out]]
        shown = [[row[n] for n in kept] for row in listed]
        table = _table([columns[n] for n in kept], shown, wraps=False)
        if _fits(table):
            print_rendered(table)
            return
    for number, row in enumerate(listed):
        if number:
            print_lines("")
        print_facts(zip(columns, row, strict=True))


def _table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], title: str = "", *, wraps: bool
) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False)
    for column in columns:
        is_right = _is_numeric(column)
        table.add_column(Text(column), justify="right" if is_right else "left", no_wrap=not wraps)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _fits(table: Table) -> bool:
    """Whether the terminal is wide enough for a table."""
    unlimited = Console(width=PIPE_WIDTH)
    return Measurement.get(unlimited, unlimited.options, table).maximum <= stdout().width


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Print (name, value) pairs in two columns; a value may have several lines."""
    table = Table.grid(padding=(0, 2))
    for name, value in facts:
        table.add_row(Text(name), Text(value))
    print_rendered(table)


def print_notes(title: str, lines: Iterable[str], style: str = "") -> None:
    """Print sentences below a title, each after a dash; nothing where there is none."""
    grid = Table.grid(padding=(0, 1))
    for line in lines:
        grid.add_row("  -", Text(line, style=style))
    if grid.row_count:
        print_rendered("", Text(title, style=f"bold {style}"), grid)


def print_rendered(*parts: RenderableType) -> None:
    """Print texts and tables, in a file or a pipe without trailing blanks."""
    console = stdout()
    for part in parts:
        if console.is_terminal:
            console.print(part)
            continue
        with console.capture() as printed:
            console.print(part)
        lines = printed.get().splitlines() or [""]
        sys.stdout.writelines(f"{line.rstrip()}\n" for line in lines)


def _is_numeric(column: str) -> bool:
    return column.endswith((")", "#")) or column in {"id", "trials"}
