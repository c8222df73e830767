"""The view `trials_wide`: trials with a column for each knob, which makes SQL on plans easy."""

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    ColumnElement,
    Connection,
    Dialect,
    Double,
    Select,
    cast,
    func,
    select,
    text,
)
from sqlalchemy.orm import Session

from autotune.search_space.plan import Plan, Value
from autotune.storage.tables import KnobRow, RunRow, TrialRow

VIEW = "trials_wide"
LEFT_OUT = {"plan", "numerics", "quality", "diagnosis", "traceback", "log_tail", "log_path"}
"""Columns of `trials` that the view leaves out, as they hold long texts or JSON."""

KINDS: Mapping[type, str] = {bool: "boolean", int: "integer", float: "real", str: "text"}
"""Names of the types of knobs' values, as `knobs.kind` has them."""


def remember_knobs(session: Session, plan: Plan) -> None:
    """Add a column to the view for each knob of the plan that has none yet."""
    known = {(row.name, row.kind) for row in session.scalars(select(KnobRow))}
    new = {(name, _kind(value)) for name, value in plan.items} - known
    if new:
        session.add_all(KnobRow(name=name, kind=kind) for name, kind in new)
        session.flush()
        drop_view(session.connection())
        create_view(session)


def drop_view(connection: Connection) -> None:
    """Drop the view, if it is there."""
    connection.execute(text(f"DROP VIEW IF EXISTS {VIEW}"))


def create_view(session: Session) -> None:
    """Create the view for the knobs seen so far."""
    kinds: dict[str, set[str]] = {}
    for row in session.scalars(select(KnobRow).order_by(KnobRow.name)):
        kinds.setdefault(row.name, set()).add(row.kind)
    connection = session.connection()
    compiled = _select(kinds, connection.dialect).compile(
        connection, compile_kwargs={"literal_binds": True}
    )
    connection.exec_driver_sql(f"CREATE VIEW {VIEW} AS {compiled}")


def knob_columns(knobs: Iterable[str]) -> dict[str, str]:
    """Return each knob's column: its name, or `knob_<name>` where a trial's column has it."""
    taken = {column.name for column in _trial_columns()}
    columns: dict[str, str] = {}
    for knob in knobs:
        column = knob
        # Databases compare names without case, Python's keyword arguments with it.
        while column.lower() in taken:
            column = f"knob_{column}"
        taken.add(column.lower())
        columns[knob] = column
    return columns


def _select(kinds: Mapping[str, set[str]], dialect: Dialect) -> "Select[*tuple[Any, ...]]":
    names = knob_columns(kinds)
    knobs = [_extract(k, kinds[k], dialect).label(column) for k, column in names.items()]
    return select(*_trial_columns(), *knobs).join(RunRow, RunRow.id == TrialRow.run_id)


def _trial_columns() -> list[ColumnElement[Any]]:
    own = [column for column in TrialRow.__table__.columns if column.name not in LEFT_OUT]
    memory = func.coalesce(TrialRow.peak_reserved_overall_bytes, TrialRow.peak_host_bytes)
    return [RunRow.name.label("run"), *own, memory.label("memory_bytes")]


def _extract(knob: str, kinds: set[str], dialect: Dialect) -> ColumnElement[Any]:
    if dialect.name == "sqlite":
        # Numbers stay numbers here and booleans become 0 and 1.
        return func.json_extract(TrialRow.plan, f'$."{knob}"')
    value: ColumnElement[Any] = TrialRow.plan[knob].as_string()
    if kinds == {"boolean"}:
        return cast(value, Boolean)
    if kinds == {"integer"}:
        return cast(value, BigInteger)
    if kinds <= {"integer", "real"}:
        return cast(value, Double)
    return value


def _kind(value: Value) -> str:
    return KINDS[type(value)]
