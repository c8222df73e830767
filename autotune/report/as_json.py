"""Runs and trials as plain JSON values, for `--json` and the dashboard's web API.

The shapes are kept: keys are only added. Times are ISO 8601 in UTC, durations `*_s` or `*_ms`,
sizes `*_bytes`, throughputs samples per second; unknown is null, and so is every NaN.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from autotune.report.verdict import Verdict
from autotune.report.why import Why
from autotune.report.words import command_line
from autotune.search_space.changes import changes
from autotune.search_space.plan import Plan
from autotune.storage.database import strict
from autotune.storage.query import QueryResult
from autotune.storage.records import RunRecord, TrialRecord, Winner
from autotune.trials.numerics_report import NumericsReport
from autotune.trials.result import Measurement, Outcome, Purpose, TrialResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """What a run's trials say about its winner; `why` is None where the baseline is kept."""

    verdict: Verdict
    why: Why | None


def run_view(run: RunRecord) -> dict[str, Any]:
    """Return one run.

    Keys: `id`, `name`, `key`, `state`, `workload`, `command` (as it was typed, null for a
    workload's functions), `workload_hash`, `hardware`, `facts`, `options`, `objective` (its
    `name`, and `train_samples`, `min_throughput`, `min_throughput_share` or `target` where it has
    them), `num_ranks`, `baseline` (a plan), `budget_s`,
    `used_s`, `created_at`, `finished_at`, `stop_reason`, `num_trials`, `winner` (see
    `winner_view`, null before there is one).
    """
    new = run.new
    view = {
        "id": run.id,
        "name": run.name,
        "key": new.key,
        "state": run.state.value,
        "workload": new.workload_path,
        "command": command_line(run),
        "workload_hash": new.workload_hash,
        "hardware": new.hardware,
        "facts": new.facts,
        "options": new.options,
        "objective": new.objective,
        "num_ranks": new.num_ranks,
        "baseline": new.baseline.values,
        "budget_s": new.budget_s,
        "used_s": run.used_s,
        "created_at": run.created_at.isoformat(),
        "finished_at": _iso(run.finished_at),
        "stop_reason": run.stop_reason,
        "num_trials": run.num_trials,
        "winner": None if run.winner is None else winner_view(run.winner, new.baseline),
    }
    return _strict(view)


def winner_view(winner: Winner, baseline: Plan) -> dict[str, Any]:
    """Return a run's conclusion.

    Keys: `plan`, `kept_baseline`, `confirmed`, `speedup`, `speedup_low`, `speedup_high`, the
    fields of `PlanFigures` and, with `baseline_` before their names, the baseline's, `how`,
    `changes` (see `changes_view`, each with its `why`), `remarks`.
    """
    changes = changes_view(winner.plan, baseline)
    for knob, change in changes.items():
        change["why"] = winner.changes.get(knob)
    return _strict({**winner.to_dict(), "changes": changes})


def changes_view(plan: Plan, baseline: Plan) -> dict[str, dict[str, Any]]:
    """Return `{knob: {"value", "baseline"}}` for what a plan changes; null: one has no value."""
    return {
        knob: {"value": value, "baseline": baseline.values.get(knob)}
        for knob, value in changes(plan, baseline).items()
    }


def trial_view(trial: TrialRecord, baseline: Plan) -> dict[str, Any]:
    """Return one trial of a list.

    Keys: `run_id`, `number`, `num_ranks`, `purpose`, `reason`, `outcome` (null in flight),
    `cause` (one of `Cause`; null where the outcome says all), `error`, `phase`, `plan`,
    `changes` (see `changes_view`), `measurement` (the fields of `Measurement` without its
    windows, and `memory_bytes`; null without one), `numerics` (the fields of `NumericsReport`,
    `passed` and `summary`; null without one), `quality` (`target`, `reached_s`, and `points` of
    `train_s`, `samples` and `value`; null without one), `diagnosis` (the fields of `Diagnosis`;
    null without one), `requested_bytes`, `user_error`, `started_at`, `finished_at`, `overhead_s`,
    `total_s`, `log_path`, `promise` (what the search expected: `throughput`, `chance` of a gain,
    `seconds`; null where it expected nothing).
    """
    result = trial.result
    measurement = None if result is None else result.measurement
    numerics = None if result is None else result.numerics
    view = {
        "run_id": trial.run_id,
        "number": trial.number,
        "num_ranks": trial.num_ranks,
        "purpose": trial.purpose.value,
        "reason": trial.reason,
        "outcome": None if result is None else result.outcome.value,
        "cause": None if result is None else result.cause and result.cause.value,
        "error": None if result is None else result.error,
        "phase": None if result is None else result.phase.value,
        "plan": trial.plan.values,
        "changes": changes_view(trial.plan, _comparable(baseline, trial)),
        "measurement": None if measurement is None else _measurement(measurement),
        "numerics": None if numerics is None else _numerics(numerics),
        "quality": None if result is None else result.quality and result.quality.to_dict(),
        "diagnosis": None if result is None else _diagnosis(result),
        "requested_bytes": None if result is None else result.requested_bytes,
        "user_error": None if result is None else result.user_error,
        "started_at": trial.started_at.isoformat(),
        "finished_at": _iso(trial.finished_at),
        "overhead_s": None if result is None else result.overhead_s,
        "total_s": None if result is None else result.total_s,
        "log_path": trial.log_path,
        "promise": None if trial.promise is None else asdict(trial.promise),
    }
    return _strict(view)


def trial_detail_view(trial: TrialRecord, baseline: Plan) -> dict[str, Any]:
    """Return everything known about one trial.

    Keys: those of `trial_view`, `windows` (a list of `steps`, `samples`, `seconds`,
    `data_wait_s`, `throughput`), `traceback` and `log_tail`.
    """
    result = trial.result
    measurement = None if result is None else result.measurement
    windows = () if measurement is None else measurement.windows
    detail = {
        "windows": [{**asdict(window), "throughput": window.throughput} for window in windows],
        "traceback": None if result is None else result.traceback,
        "log_tail": None if result is None else result.log_tail,
    }
    return {**trial_view(trial, baseline), **_strict(detail)}


def verdict_view(verdict: Verdict) -> dict[str, Any]:
    """Return the verdict on a run.

    Keys: the fields of `Verdict`, with `disqualified` as a list of the fields of `Disqualified`.
    """
    return _strict(_plain(verdict))


def why_view(why: Why) -> dict[str, Any]:
    """Return why a winner is better.

    Keys: the fields of `Why`, with `shares` and `path` as lists of the fields of `Share` and
    `Stop`, and `factor`.
    """
    return _strict({**_plain(why), "factor": why.factor})


def _plain(value: Any) -> Any:
    """Return the dataclass with plans as mappings and tuples as lists."""
    if isinstance(value, Plan):
        return dict(value.values)
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return dict(value) if isinstance(value, Mapping) else value


def conclusion_view(conclusion: Conclusion | None) -> dict[str, Any]:
    """Return the verdict on a run and why its winner is better.

    Keys: `verdict` (see `verdict_view`) and `why` (see `why_view`), null where there is none.
    """
    if conclusion is None:
        return {"verdict": None, "why": None}
    why = conclusion.why
    return {"verdict": verdict_view(conclusion.verdict), "why": why and why_view(why)}


def run_detail_view(
    run: RunRecord,
    conclusion: Conclusion | None,
    outcomes: dict[str, int],
    front: Sequence[TrialRecord],
    diagnosed: Sequence[TrialRecord],
) -> dict[str, Any]:
    """Return a run and what its trials say together.

    Keys: `run` (see `run_view`), `verdict` (see `verdict_view`) and `why` (see `why_view`), each
    null where there is none, `outcomes` (`{outcome: number of trials}`, "in flight" for
    those that have not ended), `front` (a list of `trial_view`, each with `is_winner`, whether
    its plan is the winner's: the trials that no other beats in throughput without more memory,
    fastest first), `diagnoses` (see `diagnoses`).
    """
    baseline, winner = run.new.baseline, run.winner and run.winner.plan
    return {
        "run": run_view(run),
        **conclusion_view(conclusion),
        "outcomes": outcomes,
        "front": [
            {**trial_view(trial, baseline), "is_winner": trial.plan == winner} for trial in front
        ],
        "diagnoses": diagnoses(run, diagnosed),
    }


def diagnoses(run: RunRecord, trials: Sequence[TrialRecord]) -> dict[str, Any]:
    """Return what limits the step under the baseline and under the winner, on all their ranks.

    Keys: `baseline` and `winner`, each a `Diagnosis` as a mapping, null where there is none.
    """
    trials = [trial for trial in trials if trial.num_ranks == run.new.num_ranks]
    ran = [trial for trial in trials if trial.purpose is Purpose.BASELINE]
    return _strict(
        {
            "baseline": _last_diagnosis(trial for trial in ran if trial.outcome is Outcome.OK),
            "winner": _last_diagnosis(
                trial for trial in trials if run.winner and trial.plan == run.winner.plan
            ),
        }
    )


def _last_diagnosis(trials: Iterable[TrialRecord]) -> dict[str, Any] | None:
    found = [_diagnosis(trial.result) for trial in trials if trial.result is not None]
    return next((diagnosis for diagnosis in reversed(found) if diagnosis is not None), None)


def query_view(result: QueryResult) -> dict[str, Any]:
    """Return what a query gave.

    Keys: `columns`, `rows` (a list of lists in the columns' order), `truncated`.
    """
    rows = [[json_value(value) for value in row] for row in result.rows]
    return {"columns": list(result.columns), "rows": rows, "truncated": result.truncated}


def query_objects(result: QueryResult) -> list[dict[str, Any]]:
    """Return what a query gave as an object for each row; of columns of one name, the last."""
    return [dict(zip(result.columns, map(json_value, row), strict=True)) for row in result.rows]


def json_value(value: Any) -> Any:
    """Return a database's value as JSON can hold it: times as ISO text, bytes as hexadecimal."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Decimal):
        return strict(float(value))
    if isinstance(value, (bytes, memoryview)):
        return bytes(value).hex()
    return strict(value)


def _comparable(baseline: Plan, trial: TrialRecord) -> Plan:
    """Return the baseline without the knobs of several ranks for a trial that ran on one."""
    if trial.num_ranks > 1 or "sharding" not in baseline:
        return baseline
    return Plan.of({name: value for name, value in baseline.items if name in trial.plan})


def _measurement(measurement: Measurement) -> dict[str, Any]:
    plain = asdict(measurement)
    del plain["windows"]
    return {**plain, "memory_bytes": measurement.memory_bytes}


def _numerics(numerics: NumericsReport) -> dict[str, Any]:
    return {**numerics.to_dict(), "passed": numerics.passed, "summary": numerics.summary}


def _diagnosis(result: TrialResult) -> dict[str, Any] | None:
    return None if result.diagnosis is None else result.diagnosis.to_dict()


def _iso(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat()


def _strict(view: dict[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = strict(view)
    return plain
