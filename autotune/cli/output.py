"""Prints results to stdout: tables for people, JSON and CSV for programs."""

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich import box
from rich.console import Console
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
    """Print a table; columns whose heading names a unit or a count are aligned to the right."""
    table = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False)
    for column in columns:
        table.add_column(Text(column), justify="right" if _is_numeric(column) else "left")
    for row in rows:
        table.add_row(*map(Text, row))
    _print_grid(table)


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Print (name, value) pairs in two columns; a value may have several lines."""
    table = Table.grid(padding=(0, 2))
    for name, value in facts:
        table.add_row(Text(name), Text(value))
    _print_grid(table)


def _print_grid(table: Table) -> None:
    """Print a table, in a file or a pipe without trailing blanks."""
    console = stdout()
    if console.is_terminal:
        console.print(table)
        return
    with console.capture() as printed:
        console.print(table)
    sys.stdout.writelines(f"{line.rstrip()}\n" for line in printed.get().splitlines())


def _is_numeric(column: str) -> bool:
    return column.endswith((")", "#")) or column in {"id", "trials"}
