"""The table of a run's trials: the database sorts, filters and pages it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dash_ag_grid as dag
from dash.development.base_component import Component

from autotune.dashboard.where import Where
from autotune.report.words import (
    cell,
    changes_text,
    duration,
    gib,
    interval,
    percent,
    samples,
)
from autotune.storage.selection import FASTEST_FIRST, Condition
from autotune.storage.statistics import IN_FLIGHT
from autotune.storage.wide import knob_columns

PAGE = 100
GIB = 2**30
TESTS = {
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
THEME = (
    "themeQuartz.withParams({backgroundColor: 'var(--mantine-color-body)',"
    " foregroundColor: 'var(--mantine-color-text)', browserColorScheme: 'inherit',"
    " headerBackgroundColor: 'var(--mantine-color-default-hover)',"
    " accentColor: 'var(--mantine-primary-color-filled)', spacing: 6})"
)
"""The grid in the colours of the rest of the page, light or dark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of the table.

    Attributes:
        name: as in `trials_wide`, where the database sorts and filters by it.
        heading: with the unit.
        show: the value as text.
        scale: units of the database in one of the heading; None: it is no number.
        computed: by us, so that the database cannot sort or filter by it.
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
    Column(name="purpose", heading="Purpose"),
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
FIXED = {column.name: column for column in COLUMNS}
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
    """Return all columns: the fixed ones, and one for each knob, given with values of it."""
    named = knob_columns(knobs)
    return [*COLUMNS, *(_knob_column(named[knob], knob, knobs[knob]) for knob in knobs)]


def _knob_column(name: str, knob: str, values: Iterable[Any]) -> Column:
    numeric = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    return Column(name=name, heading=knob, scale=1 if numeric else None)


def grid(columns: Sequence[Column]) -> Component:
    """Return the table; a callback answers its questions for rows."""
    return dag.AgGrid(
        id="trials",
        rowModelType="infinite",
        columnDefs=definitions(columns),
        defaultColDef={"resizable": True, "floatingFilter": True, "suppressMovable": False},
        getRowId="params.data.id",
        dashGridOptions={
            "theme": {"function": THEME},
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
    """Return the columns as the grid wants them."""
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
    """Return what the grid's filters ask for, in the units of the database."""
    asked = []
    for name, test in model.items():
        value = test.get("filter")
        if isinstance(value, int | float):
            value = value * (FIXED[name].scale or 1 if name in FIXED else 1)
        kind = TESTS.get(test["type"], test["type"])
        asked.append(Condition(column=name, test=kind, value=value))
    return asked


def order(model: Sequence[Mapping[str, str]]) -> str | None:
    """Return the column that the grid sorts by, as `select_trials` takes it."""
    if not model:
        return None
    name, descends = model[0]["colId"], model[0]["sort"] == "desc"
    return name if descends == (name in FASTEST_FIRST) else f"-{name}"


def row(trial: dict[str, Any], where: Where) -> dict[str, str]:
    """Return a trial (`trial_view`) as texts by column."""
    values = _values(trial)
    shown = {name: FIXED[name].show(v) if name in FIXED else cell(v) for name, v in values.items()}
    for name in TIMES:
        shown[name] = where.time(values[name])
    number = trial["number"]
    link = f"[{number}](/runs/{trial['run_id']}/trials/{number})"
    return {**shown, "number": link, "id": str(number)}


def _values(trial: dict[str, Any]) -> dict[str, Any]:
    measured = trial["measurement"] or {}
    known = {**trial, **measured}
    knobs = knob_columns(trial["plan"])
    return {
        **{name: known.get(name) for name in FIXED},
        **{knobs[knob]: _json(value) for knob, value in trial["plan"].items()},
        "changes": changes_text(trial),
        "interval": interval(measured),
    }


def _json(value: Any) -> Any:
    return str(value).lower() if isinstance(value, bool) else value
