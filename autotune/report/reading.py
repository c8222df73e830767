"""Reads runs and trials from a store as JSON documents, for `--json` and the web API."""

from collections.abc import Sequence
from typing import Any

from autotune.report.as_json import (
    Conclusion,
    run_detail_view,
    trial_detail_view,
    trial_view,
)
from autotune.report.verdict import verdict_of
from autotune.report.why import why_of
from autotune.report.words import commands_to_measure_again
from autotune.storage.records import RunRecord, TrialRecord
from autotune.storage.selection import Condition, count_trials, select_trials
from autotune.storage.sql import SqlStore
from autotune.trials.result import Purpose


def read_conclusion(store: SqlStore, run: RunRecord) -> Conclusion | None:
    """Return the verdict on a run and why its winner is better, None before it has a winner."""
    if run.winner is None:
        return None
    return conclusion_of(run, store.trials_for(run.id, list(Purpose)))


def conclusion_of(run: RunRecord, trials: Sequence[TrialRecord]) -> Conclusion | None:
    """Return the same, given all trials of the run."""
    verdict = verdict_of(run, trials)
    if verdict is None:
        return None
    return Conclusion(verdict=verdict, why=why_of(run, trials))


def read_run(store: SqlStore, run: RunRecord) -> dict[str, Any]:
    """Return a run with the outcomes, the best and the diagnoses of its trials.

    Keys: those of `run_detail_view`.
    """
    statistics = store.statistics(run)
    front = store.some_trials(run.id, [point.number for point in statistics.front()])
    diagnosed = store.trials_for(run.id, [Purpose.BASELINE, Purpose.CONFIRM])
    conclusion = read_conclusion(store, run)
    return run_detail_view(run, conclusion, statistics.outcomes(), front, diagnosed)


def read_trials(
    store: SqlStore,
    run: RunRecord,
    *,
    where: str | None = None,
    conditions: Sequence[Condition] = (),
    sort: str | None = None,
    limit: int,
    offset: int = 0,
) -> dict[str, Any]:
    """Return one page of a run's trials.

    Args:
        store: the store to read.
        run: the run whose trials to return.
        where: an SQL expression over the columns of `trials_wide` that must hold; None: no rule.
        conditions: further conditions on columns of `trials_wide`, which must all hold.
        sort: a column of `trials_wide`; see `select_trials`.
        limit: the number of trials on a page.
        offset: the number of trials before the page.

    Returns:
        `total` (the number of such trials on all pages), `limit`, `offset`, and `items` (a
        `trial_view` for each trial of the page).

    Raises:
        UsageError: when the database refuses the expression, or there is no such column.
    """
    url = store.url
    total = count_trials(url, run.id, where=where, conditions=conditions)
    selected = select_trials(
        url, run.id, where=where, conditions=conditions, sort=sort, limit=limit, offset=offset
    )
    position = selected.columns.index("number")
    trials = store.some_trials(run.id, [row[position] for row in selected.rows])
    items = [trial_view(trial, run.new.baseline) for trial in trials]
    return {"total": total, "limit": limit, "offset": offset, "items": items}


def read_trial(store: SqlStore, run: RunRecord, number: int) -> dict[str, Any]:
    """Return everything known about one trial.

    Keys: those of `trial_detail_view`, and `measure_again`, the commands that do so.

    Raises:
        NotFoundError: when the run has no such trial.
    """
    view = trial_detail_view(store.trial(run, number), run.new.baseline)
    return {**view, "measure_again": commands_to_measure_again(run, number, store.url)}
