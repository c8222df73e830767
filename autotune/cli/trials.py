"""`autotune trials RUN`: lists the trials of a run."""

from collections.abc import Sequence
from contextlib import closing
from typing import Annotated, Any

import typer

from autotune.cli.options import AsCsv, AsJson, Run, Storage, check_one_format
from autotune.cli.output import print_csv, print_json, print_table
from autotune.report.as_json import trial_view
from autotune.report.words import (
    cell,
    changes_text,
    gib,
    half_width_percent,
    percent,
    samples,
)
from autotune.storage.selection import select_trials
from autotune.storage.sql import open_store
from autotune.storage.statistics import IN_FLIGHT

Where = Annotated[
    str | None,
    typer.Option(
        metavar="EXPR",
        help="Only trials for which this SQL expression over the columns of trials_wide holds, "
        "such as \"precision = 'bf16' AND workers > 0\".",
    ),
]
Sort = Annotated[
    str | None,
    typer.Option(
        metavar="COL",
        help="Sort by a column of trials_wide: throughput fastest first, everything else "
        "ascending; -COL reverses the order. Unknown values come last.  [default: number]",
        show_default=False,
    ),
]


def trials(
    run: Run,
    *,
    where: Where = None,
    sort: Sort = None,
    storage: Storage = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """List the trials of a run; `--csv` has a column for each knob."""
    check_one_format(as_json=as_json, as_csv=as_csv)
    with closing(open_store(storage, read_only=True)) as store:
        record = store.run(run)
        selected = select_trials(storage, record.id, where=where, sort=sort)
        if as_csv:
            print_csv(selected.columns, selected.rows)
            return
        position = selected.columns.index("number")
        found = store.some_trials(record.id, [row[position] for row in selected.rows])
    views = [trial_view(trial, record.new.baseline) for trial in found]
    if as_json:
        print_json(views)
    else:
        print_trials(views)


def print_trials(views: Sequence[dict[str, Any]], title: str = "") -> None:
    """Print `trial_view`s as a table.

    It has a column for ranks when a trial has several, and one that marks the winner's trials when
    the views say which these are (`is_winner`).
    """
    ranked = any(view["num_ranks"] > 1 for view in views)
    marked = any(view.get("is_winner") for view in views)
    columns = (
        "#",
        *([""] if marked else []),
        *(["ranks"] if ranked else []),
        "purpose",
        "changes",
        "throughput (samples/s)",
        "interval (%)",
        "step (ms)",
        "waiting for data (%)",
        "memory (GiB)",
        "outcome",
        "reason or error",
    )
    print_table(columns, (_row(view, ranked=ranked, marked=marked) for view in views), title)


def _row(trial: dict[str, Any], *, ranked: bool, marked: bool) -> list[str]:
    measured = trial["measurement"] or {}
    return [
        str(trial["number"]),
        *(["winner" if trial["is_winner"] else ""] if marked else []),
        *([str(trial["num_ranks"])] if ranked else []),
        trial["purpose"],
        changes_text(trial),
        samples(measured.get("throughput")),
        half_width_percent(measured),
        cell(measured.get("step_ms")),
        percent(measured.get("data_wait_share")),
        gib(measured.get("memory_bytes")),
        trial["outcome"] or IN_FLIGHT,
        cell(trial["error"] or trial["reason"]),
    ]
