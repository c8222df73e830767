"""Conversion of records to rows of the tables, and back."""

import math
from dataclasses import MISSING, asdict, fields
from typing import Any

from autotune.search_space.plan import Plan
from autotune.storage.database import strict
from autotune.storage.driver import state_now
from autotune.storage.naming import default_name
from autotune.storage.records import NewRun, Promise, RunRecord, RunState, TrialRecord, Winner
from autotune.storage.tables import PlanRow, RunRow, TrialRow, WindowRow
from autotune.trials.cause import Cause
from autotune.trials.diagnosis import Diagnosis
from autotune.trials.numerics_report import NumericsReport
from autotune.trials.quality import QualityCurve
from autotune.trials.result import (
    Measurement,
    Outcome,
    Phase,
    Purpose,
    TrialResult,
    Window,
)

MEASURED = tuple(field for field in fields(Measurement) if field.name != "windows")
"""Fields of a measurement that have columns of the same name."""
AS_IS = (
    "error",
    "traceback",
    "user_error",
    "peer_lost",
    "requested_bytes",
    "log_tail",
    "overhead_s",
    "total_s",
)
"""Fields of a result that have columns of the same name and type."""


def run_record(row: RunRow, winner: PlanRow | None, num_trials: int) -> RunRecord:
    """Build the record of a run."""
    return RunRecord(
        id=row.id,
        name=row.name,
        new=_new_run(row),
        state=state_now(RunState(row.state), row.driver),
        used_s=row.used_s,
        created_at=row.created_at,
        finished_at=row.finished_at,
        stop_reason=row.stop_reason,
        num_trials=num_trials,
        winner=None if winner is None else _winner(winner),
    )


def _new_run(row: RunRow) -> NewRun:
    return NewRun(
        key=row.key,
        name=None if row.name == default_name(row.id) else row.name,
        workload_path=row.workload_path,
        workload_hash=row.workload_hash,
        hardware=row.hardware,
        facts=row.facts,
        options=row.options,
        baseline=Plan.of(row.baseline),
        budget_s=row.budget_s,
        driver=row.driver,
    )


def _winner(row: PlanRow) -> Winner:
    names = (column.key for column in PlanRow.__table__.columns)
    return Winner.from_dict({name: getattr(row, name) for name in names})


def plan_row(run_id: int, winner: Winner) -> PlanRow:
    """Build the row of a run's conclusion."""
    return PlanRow(run_id=run_id, **winner.to_dict())


def fill_result(row: TrialRow, result: TrialResult) -> None:
    """Write how a trial ended into its row; the windows have rows of their own."""
    row.outcome, row.phase = result.outcome.value, result.phase.value
    row.cause = result.cause and result.cause.value
    for name in AS_IS:
        setattr(row, name, getattr(result, name))
    if result.numerics is not None:
        row.numerics = result.numerics.to_dict()
    if result.quality is not None:
        row.quality = strict(result.quality.to_dict())
    if result.diagnosis is not None:
        row.diagnosis = strict(result.diagnosis.to_dict())
    if result.measurement is not None:
        for field in MEASURED:
            setattr(row, field.name, getattr(result.measurement, field.name))


def window_values(run_id: int, number: int, result: TrialResult) -> list[dict[str, Any]]:
    """Return the rows of a trial's windows."""
    windows = () if result.measurement is None else result.measurement.windows
    return [
        {"run_id": run_id, "number": number, "position": position, **asdict(window)}
        for position, window in enumerate(windows)
    ]


def trial_record(row: TrialRow, windows: list[WindowRow]) -> TrialRecord:
    """Build the record of a trial from its row and its windows in order."""
    return TrialRecord(
        run_id=row.run_id,
        number=row.number,
        plan=Plan.of(row.plan),
        purpose=Purpose(row.purpose),
        reason=row.reason,
        started_at=row.started_at,
        finished_at=row.finished_at,
        log_path=row.log_path,
        result=_result(row, windows),
        num_ranks=row.num_ranks,
        promise=_promise(row),
    )


def _promise(row: TrialRow) -> Promise | None:
    throughput, chance, seconds = row.expected_throughput, row.chance_of_gain, row.expected_s
    if throughput is None or chance is None or seconds is None:
        return None
    return Promise(throughput=throughput, chance=chance, seconds=seconds)


def _result(row: TrialRow, windows: list[WindowRow]) -> TrialResult | None:
    if row.outcome is None:
        return None
    return TrialResult(
        outcome=Outcome(row.outcome),
        phase=Phase(row.phase),
        cause=None if row.cause is None else Cause(row.cause),
        measurement=_measurement(row, windows),
        numerics=None if row.numerics is None else NumericsReport.from_dict(row.numerics),
        quality=None if row.quality is None else QualityCurve.from_dict(row.quality),
        diagnosis=None if row.diagnosis is None else Diagnosis.from_dict(row.diagnosis),
        **{name: getattr(row, name) for name in AS_IS if getattr(row, name) is not None},
    )


def _measurement(row: TrialRow, windows: list[WindowRow]) -> Measurement | None:
    if row.throughput is None:
        return None
    values = {field.name: getattr(row, field.name) for field in MEASURED}
    for field in MEASURED:
        if field.default is MISSING and values[field.name] is None:
            values[field.name] = math.nan
    return Measurement(**values, windows=tuple(map(_window, windows)))


def _window(row: WindowRow) -> Window:
    return Window(**{field.name: getattr(row, field.name) for field in fields(Window)})
