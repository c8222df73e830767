"""Writes tables as CSV, for the terminal and the dashboard."""

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

from autotune.search_space.plan import spell


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a table as CSV with a header line.

    None becomes an empty field, and booleans are spelled as `--fix` takes them.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([spell(value) if isinstance(value, bool) else value for value in row])
    return text.getvalue()
