"""The table of a run's trials, which the database sorts, filters and divides into pages."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dash_ag_grid as dag
from dash.development.base_component import Component

from autotune.dashboard.visit import Visit
from autotune.report.words import (
    cell,
    changes_text,
    duration,
    gib,
    half_width_percent,
    kind,
    knob_value,
    percent,
    samples,
)
from autotune.storage.selection import FASTEST_FIRST, Condition
from autotune.storage.statistics import IN_FLIGHT
from autotune.storage.wide import knob_columns
from autotune.units import GIB

PAGE = 100  # rows that the grid requests at a time
# The grid's names of filters, and those of `Condition`.
FILTER_TESTS = {
    "contains": "contains",
    "equals": "equals",
    "notEqual": "differs",
    "greaterThanOrEqual": "at_least",
    "lessThanOrEqual": "at_most",
    "blank": "is_unknown",
    "notBlank": "is_known",
}
TEXT_TESTS = ["contains", "equals", "notEqual", "blank", "notBlank"]
NUMBER_TESTS = ["equals", "greaterThanOrEqual", "lessThanOrEqual", "blank", "notBlank"]
GRID_THEME = (
    "themeQuartz.withParams({backgroundColor: 'var(--mantine-color-body)',"
    " foregroundColor: 'var(--mantine-color-text)', browserColorScheme: 'inherit',"
    " headerBackgroundColor: 'var(--mantine-color-default-hover)',"
    " accentColor: 'var(--mantine-primary-color-filled)', spacing: 6})"
)
"""Gives the grid the colours of the page, light or dark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of the table.

    Attributes:
        name: as in `trials_wide`, by which the database sorts and filters.
        heading: the title of the column, with the unit.
        show: returns a value as text.
        scale: the unit of the heading in units of the database; None: values are no numbers.
        computed: whether it is shown in other words than the database has, so that it can neither
            sort nor filter.
        width: in pixels.
    """

    name: str
    heading: str
    show: Callable[[Any], str] = cell
    scale: float | None = None
    computed: bool = False
    width: int = 130


COLUMNS = (
    Column(name="number", heading="Trial", show=str, scale=1, width=110),
    Column(name="purpose", heading="Purpose", show=kind, computed=True, width=170),
    Column(name="changes", heading="Changes from the baseline", computed=True, width=320),
    Column(name="throughput", heading="Samples/s", show=samples, scale=1),
    Column(name="interval", heading="± 95 % (%)", computed=True, width=110),
    Column(name="memory_bytes", heading="Peak memory (GiB)", show=gib, scale=GIB, width=160),
    Column(name="outcome", heading="Outcome", show=lambda value: value or IN_FLIGHT),
    Column(name="reason", heading="Reason", width=360),
    Column(name="error", heading="Error", width=300),
    Column(name="step_ms", heading="Step (ms)", scale=1),
    Column(name="data_wait_share", heading="Waiting for data (%)", show=percent, scale=0.01),
    Column(name="first_step_s", heading="First step (s)", scale=1),
    Column(name="total_s", heading="Took", show=duration, scale=1),
    Column(name="overhead_s", heading="Overhead (s)", scale=1),
    Column(name="num_ranks", heading="Ranks", scale=1),
    Column(name="started_at", heading="Started"),
    Column(name="finished_at", heading="Ended"),
)
# The columns that every run has; those of knobs come after them.
FIXED = {column.name: column for column in COLUMNS}
# The columns that are visible until the viewer chooses others.
SHOWN = (
    "number",
    "purpose",
    "changes",
    "throughput",
    "interval",
    "memory_bytes",
    "outcome",
    "reason",
)
TIMES = ("started_at", "finished_at")


def columns_of(knobs: Mapping[str, Iterable[Any]]) -> list[Column]:
    """Return the fixed columns, and one for each of `knobs`, given as {knob: some values}."""
    named = knob_columns(knobs)
    return [*COLUMNS, *(_knob_column(named[knob], knob, knobs[knob]) for knob in knobs)]


def _knob_column(name: str, knob: str, values: Iterable[Any]) -> Column:
    numeric = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    return Column(name=name, heading=knob, scale=1 if numeric else None)


def grid(columns: Sequence[Column], asked: Mapping[str, Any]) -> Component:
    """Return the empty table, which shows what is asked for; it requests its rows by a callback.

    Args:
        columns: from left to right.
        asked: the grid's filter model.
    """
    return dag.AgGrid(
        id="trials",
        rowModelType="infinite",
        columnDefs=definitions(columns),
        filterModel=dict(asked),
        defaultColDef={"resizable": True, "floatingFilter": True, "suppressMovable": False},
        getRowId="params.data.id",
        dashGridOptions={
            "theme": {"function": GRID_THEME},
            "cacheBlockSize": PAGE,
            "maxBlocksInCache": 20,
            "rowBuffer": 0,
            "rowSelection": {"mode": "multiRow", "headerCheckbox": False},
            "enableCellTextSelection": True,
            "suppressColumnVirtualisation": True,  # all chosen columns can be found and read
        },
        style={"height": "36rem"},
    )


def definitions(columns: Iterable[Column]) -> list[dict[str, Any]]:
    """Return the column definitions of AG Grid."""
    return [_definition(column) for column in columns]


def _definition(column: Column) -> dict[str, Any]:
    plain = {"field": column.name, "headerName": column.heading, "width": column.width}
    if column.name == "number":
        plain |= {"cellRenderer": "markdown", "pinned": "left"}
    if column.computed:
        return {**plain, "sortable": False, "filter": False}
    numeric = column.scale is not None
    return {
        **plain,
        "type": "rightAligned" if numeric else None,
        "tooltipField": None if numeric else column.name,
        "filter": "agNumberColumnFilter" if numeric else "agTextColumnFilter",
        "filterParams": {
            "filterOptions": NUMBER_TESTS if numeric else TEXT_TESTS,
            "maxNumConditions": 1,
        },
    }


def conditions(model: Mapping[str, Any]) -> list[Condition]:
    """Return the conditions of the grid's filter model, in units of the database."""
    found = []
    for name, test in model.items():
        value = test.get("filter")
        if isinstance(value, int | float):
            value = value * (FIXED[name].scale or 1 if name in FIXED else 1)
        kind = FILTER_TESTS.get(test["type"], test["type"])
        found.append(Condition(column=name, test=kind, value=value))
    return found


def order(model: Sequence[Mapping[str, str]]) -> str | None:
    """Return the sort column of the grid's sort model, as `select_trials` takes it."""
    if not model:
        return None
    name, descends = model[0]["colId"], model[0]["sort"] == "desc"
    return name if descends == (name in FASTEST_FIRST) else f"-{name}"


def row(trial: dict[str, Any], visit: Visit) -> dict[str, str]:
    """Return a `trial_view` as {column: text}."""
    values = _values(trial)
    shown = {name: FIXED[name].show(v) if name in FIXED else cell(v) for name, v in values.items()}
    for name in TIMES:
        shown[name] = visit.time(values[name])
    number = trial["number"]
    link = f"[{number}](/runs/{trial['run_id']}/trials/{number})"
    return {**shown, "number": link, "id": str(number)}


def _values(trial: dict[str, Any]) -> dict[str, Any]:
    measured = trial["measurement"] or {}
    known = {**trial, **measured}
    knobs = knob_columns(trial["plan"])
    return {
        **{name: known.get(name) for name in FIXED},
        **{knobs[knob]: knob_value(value) for knob, value in trial["plan"].items()},
        "changes": changes_text(trial),
        "interval": half_width_percent(measured),
    }
