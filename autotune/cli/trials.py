"""`autotune trials RUN`: lists the trials of a run."""

from collections.abc import Collection, Sequence
from contextlib import closing
from typing import Annotated

import typer

from autotune.cli.options import AsCsv, AsJson, Run, Storage, check_one_format
from autotune.cli.output import print_csv, print_fitting, print_json, print_rendered, stdout
from autotune.cli.parsing import split
from autotune.cli.trial_lines import OUT, WINNER, TrialLine, heading, trial_text
from autotune.report.as_json import json_value, trial_view
from autotune.report.lineage import change_words, origins
from autotune.report.verdict import disqualified
from autotune.report.words import cell
from autotune.storage.query import QueryResult
from autotune.storage.records import RunRecord, TrialRecord
from autotune.storage.selection import chosen_columns, select_trials
from autotune.storage.sql import SqlStore, open_store
from autotune.trials.result import Outcome, Purpose

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
Columns = Annotated[
    str | None,
    typer.Option(
        metavar="COL,COL",
        help="Show these columns of trials_wide, such as number,precision,throughput.",
    ),
]


def trials(
    run: Run,
    *,
    where: Where = None,
    sort: Sort = None,
    columns: Columns = None,
    storage: Storage = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """List the trials of a run; `--csv` has a column for each knob.

    `autotune show RUN N` says why trial N was tried, and why it failed.
    """
    check_one_format(as_json=as_json, as_csv=as_csv)
    with closing(open_store(storage, read_only=True)) as store:
        record = store.run(run)
        selected = select_trials(storage, record.id, where=where, sort=sort)
        if columns is not None:
            shown = chosen_columns(selected, split(columns))
            _print_columns(shown, as_json=as_json, as_csv=as_csv)
        elif as_csv:
            print_csv(selected.columns, selected.rows)
        else:
            position = selected.columns.index("number")
            _print(store, record, [row[position] for row in selected.rows], as_json=as_json)


def _print(store: SqlStore, run: RunRecord, numbers: list[int], *, as_json: bool) -> None:
    if as_json:
        found = store.some_trials(run.id, numbers)
        print_json([trial_view(trial, run.new.baseline) for trial in found])
    else:
        print_trials(run, store.trials_for(run.id, list(Purpose)), numbers)


def _print_columns(shown: QueryResult, *, as_json: bool, as_csv: bool) -> None:
    if as_csv:
        print_csv(shown.columns, shown.rows)
    elif as_json:
        names = shown.columns
        print_json([dict(zip(names, map(json_value, row), strict=True)) for row in shown.rows])
    else:
        print_fitting(shown.columns, (list(map(cell, row)) for row in shown.rows))


def print_trials(run: RunRecord, trials: Sequence[TrialRecord], numbers: Sequence[int]) -> None:
    """Print a line for each of the trials with these numbers, in this order.

    Args:
        run: of the trials.
        trials: all of the run, by number.
        numbers: of the trials to print.
    """
    console = stdout()
    width = console.width if console.is_terminal else None
    known, lines = {trial.number for trial in trials}, trial_lines(run, trials)
    shown = (trial_text(lines[number], width) for number in numbers if number in known)
    print_rendered(heading(), *shown)


def trial_lines(run: RunRecord, trials: Sequence[TrialRecord]) -> dict[int, TrialLine]:
    """Return the lines of a run's trials by their number."""
    found = origins(run.new.baseline, trials)
    baselines = _baselines(trials)
    out = {number for plan in disqualified(run, trials) for number in plan.trials}
    return {
        trial.number: TrialLine(
            number=trial.number,
            origin=found[trial.number].trial,
            change=change_words(
                found[trial.number], trial.purpose, trial.num_ranks if run.new.num_ranks > 1 else 1
            ),
            result=trial.result,
            baseline=baselines.get(trial.num_ranks),
            mark=_mark(run, trial, out),
        )
        for trial in trials
    }


def _mark(run: RunRecord, trial: TrialRecord, out: Collection[int]) -> str | None:
    """Return the mark of a measured trial whose plan won or may not win."""
    if trial.number in out:
        return OUT
    is_winner = run.winner is not None and trial.plan == run.winner.plan
    is_comparable = trial.num_ranks == run.new.num_ranks and trial.purpose is not Purpose.NUMERICS
    return WINNER if is_winner and is_comparable and trial.outcome is Outcome.OK else None


def _baselines(trials: Sequence[TrialRecord]) -> dict[int, float]:
    """Return the samples per second of the first measured baseline, by its number of ranks."""
    found: dict[int, float] = {}
    for trial in trials:
        measured = trial.result and trial.result.measurement
        if trial.purpose is Purpose.BASELINE and measured:
            found.setdefault(trial.num_ranks, measured.throughput)
    return found
