"""The page that lists all runs, newest first, and keeps itself up to date."""

from pathlib import Path
from typing import Any

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, dcc, html, no_update
from dash.development.base_component import Component

from autotune.dashboard import parts
from autotune.dashboard.callbacks import callback_in_thread
from autotune.dashboard.live import SoFar, so_far
from autotune.dashboard.pages.notes import tags
from autotune.dashboard.source import Source
from autotune.dashboard.visit import Visit
from autotune.report.as_json import run_view
from autotune.report.words import UNKNOWN, cell, duration, samples, speedup
from autotune.storage.notes import Note
from autotune.storage.records import RunRecord, RunState
from autotune.storage.sql import SqlStore

PAGE = 50  # runs on a page
PULSE_MS = 2000  # between looks for something new
COLUMNS = (
    "",
    "Run",
    "State",
    "Speed-up (95 % interval)",
    "Baseline (samples/s)",
    "Winner (samples/s)",
    "Workload",
    "Machine",
    "Trials",
    "Time used",
    "Started",
)
NUMERIC = (*COLUMNS[3:6], "Trials", "Time used")


def page(source: Source, visit: Visit) -> Component:
    """Return the page; `?page=2` has older runs."""
    number = _page_number(visit)
    with source.store() as store:
        total = store.num_runs()
        rows, version = _rows(store, number, visit)
    return dmc.Box(
        [
            dcc.Store(id="runs-page", data=number),
            dcc.Store(id="runs-version", data=version),
            dcc.Interval(id="runs-pulse", interval=PULSE_MS),
            parts.title("Runs", dmc.Badge(str(total), variant="filled", color="gray")),
            html.Div(dmc.Text("Tick runs to compare them.", c="dimmed"), id="picked-runs"),
            dmc.CheckboxGroup(html.Div(rows, id="runs", className="runs"), id="picks", value=[]),
            _page_links(number, -(-total // PAGE)),
        ]
    )


def add_callbacks(app: Dash, source: Source) -> None:
    """Add the callbacks that keep the list up to date, and that compare ticked runs."""

    def refresh(_: Any, number: int, version: list[Any], told: dict[str, Any]) -> Any:
        with source.store() as store:
            rows, now = _rows(store, number, Visit.of(told))
        return (no_update, no_update) if now == version else (rows, now)

    callback_in_thread(
        app,
        Output("runs", "children"),
        Output("runs-version", "data"),
        Input("runs-pulse", "n_intervals"),
        State("runs-page", "data"),
        State("runs-version", "data"),
        State("visit", "data"),
        prevent_initial_call=True,
    )(refresh)
    callback_in_thread(
        app,
        Output("picked-runs", "children"),
        Input("picks", "value"),
        prevent_initial_call=True,
    )(_picked)


def _picked(runs: list[str]) -> Component:
    if not runs:
        return dmc.Text("Tick runs to compare them.", c="dimmed")
    ordered = ",".join(sorted(runs, key=int))
    return parts.link(f"Compare {len(runs)} runs", f"/compare?runs={ordered}")


def _page_number(visit: Visit) -> int:
    asked = visit.query.get("page", "1")
    return max(int(asked), 1) if asked.isdecimal() else 1


def _rows(store: SqlStore, number: int, visit: Visit) -> tuple[Component, list[Any]]:
    """Return the table of a page, and a value that changes whenever the table does."""
    runs = store.runs(limit=PAGE, offset=(number - 1) * PAGE)
    notes = store.notes.of_runs([run.id for run in runs])
    if not runs:
        return parts.section("No run yet", parts.commands(["autotune run MODEL --budget 15m"])), []
    now = {run.id: so_far(store, run) for run in runs if run.state is RunState.RUNNING}
    rows = [_row(run, now.get(run.id), notes.get(run.id), visit) for run in runs]
    version = [
        [run.id, run.state.value, run.num_trials, run.used_s, *(notes.get(run.id) or Note()).tags]
        for run in runs
    ]
    return parts.table(COLUMNS, rows, NUMERIC), version


def _row(run: RunRecord, now: SoFar | None, note: Note | None, visit: Visit) -> list[Any]:
    view = run_view(run)
    winner = view["winner"]
    return [
        dmc.Checkbox(value=str(run.id), **{"aria-label": f"Compare {run.name}"}),
        html.Div([parts.link(run.name, f"/runs/{run.id}"), *tags(note)], className="named"),
        parts.badge(run.state.value),
        _gained(winner) if winner else _speedup(now),
        samples(winner["baseline_throughput"]) if winner else _baseline(now),
        samples(winner["throughput"]) if winner else _best(now),
        Path(view["workload"]).name,
        cell(view["hardware"].get("device_name")),
        str(run.num_trials),
        f"{duration(run.used_s)} of {duration(run.new.budget_s)}",
        visit.time(view["created_at"]),
    ]


def _gained(winner: dict[str, Any]) -> str:
    """Return a winner's speed-up, also where it was measured once."""
    own, baseline = winner["throughput"], winner["baseline_throughput"]
    if winner["speedup"] is not None or not own or not baseline:
        return speedup(winner)
    return f"{own / baseline:.2f}x, not confirmed"


def _baseline(now: SoFar | None) -> str:
    return UNKNOWN if now is None else samples(now.baseline)


def _best(now: SoFar | None) -> str:
    return UNKNOWN if now is None or now.best is None else f"{samples(now.best)} so far"


def _speedup(now: SoFar | None) -> str:
    return UNKNOWN if now is None or now.speedup is None else f"{now.speedup:.2f}x so far"


def _page_links(number: int, last: int) -> Component | None:
    links = []
    if number > 1:
        links.append(dcc.Link("Newer", href=f"/?page={number - 1}"))
    if number < last:
        links.append(dcc.Link("Older", href=f"/?page={number + 1}"))
    return dmc.Group(links, mt="md") if links else None
