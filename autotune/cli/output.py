"""How results are printed: tables for people, JSON and CSV for programs. Results go to stdout."""

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from autotune.errors import UsageError
from autotune.report.tables import csv_text

PIPE_WIDTH = 10_000
"""Columns of a pipe: `grep` and `cut` want whole lines."""

Storage = Annotated[
    str | None,
    typer.Option(
        "--storage",
        metavar="URL",
        help="A file or database URL.  [default: autotune.db]",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
GpusPerTrial = Annotated[
    int,
    typer.Option(
        "--gpus-per-trial", min=1, help="Devices of a trial; without GPUs, CPU processes."
    ),
]
AsCsv = Annotated[bool, typer.Option("--csv", help="Print CSV with a header line.")]


def check_one_format(*, as_json: bool, as_csv: bool) -> None:
    """Refuse `--json` together with `--csv`.

    Raises:
        UsageError: when both are given.
    """
    if as_json and as_csv:
        raise UsageError("--json and --csv exclude each other; choose one")


def stdout() -> Console:
    """Return the console of stdout, as wide as the terminal, or never wrapping in a pipe."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)


def print_json(document: Any) -> None:
    """Print one strict JSON document."""
    json.dump(document, sys.stdout, indent=2, allow_nan=False)
    sys.stdout.write("\n")


def print_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a header line and the rows; unknown values are empty."""
    sys.stdout.write(csv_text(columns, rows))


def print_lines(*lines: str) -> None:
    """Print lines as they are; nothing in them is markup."""
    console = stdout()
    for line in lines:
        console.print(Text(line), soft_wrap=True)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> None:
    """Print a table; columns whose header names a unit or a count stand to the right."""
    table = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False)
    for column in columns:
        table.add_column(Text(column), justify="right" if _is_numeric(column) else "left")
    for row in rows:
        table.add_row(*map(Text, row))
    _print_grid(table)


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Print names and values in two columns; a value may have several lines."""
    table = Table.grid(padding=(0, 2))
    for name, value in facts:
        table.add_row(Text(name), Text(value))
    _print_grid(table)


def _print_grid(table: Table) -> None:
    """Print a table; in a file or a pipe, lines end where their text does."""
    console = stdout()
    if console.is_terminal:
        console.print(table)
        return
    with console.capture() as printed:
        console.print(table)
    sys.stdout.writelines(f"{line.rstrip()}\n" for line in printed.get().splitlines())


def _is_numeric(column: str) -> bool:
    return column.endswith((")", "#")) or column in {"id", "trials"}
