"""The page that shows trials or runs side by side."""

from collections.abc import Callable, Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, no_update
from dash.development.base_component import Component

from autotune.dashboard import parts
from autotune.dashboard.callbacks import callback_in_thread
from autotune.dashboard.source import Source
from autotune.dashboard.visit import Visit
from autotune.errors import UsageError
from autotune.report.as_json import run_view
from autotune.report.reading import read_trial
from autotune.report.words import (
    UNKNOWN,
    cell,
    duration,
    gib,
    kind,
    knob_value,
    percent,
    samples,
    speedup,
)
from autotune.storage.sql import SqlStore
from autotune.storage.statistics import IN_FLIGHT

MAX_COLUMNS = 12
HOW_TO_NAME = "write trials as RUN.NUMBER, such as 3.12,3.15, and runs as 3,4"

# A row's title, and a function that returns its text for a view.
Row = tuple[str, Callable[[dict[str, Any]], str]]


def page(source: Source, visit: Visit) -> Component:
    """Return the page: `?trials=3.12,3.15` or `?runs=3,4`."""
    trials, runs = _split(visit.query.get("trials")), _split(visit.query.get("runs"))
    with source.store() as store:
        tables = [
            *([_trials(store, trials)] if trials else []),
            *([_runs(store, runs, visit)] if runs else []),
        ]
    return dmc.Box([parts.title("Compare"), _form(trials, runs), *tables])


def _split(text: str | None) -> list[str]:
    named = [name.strip() for name in (text or "").split(",") if name.strip()]
    if len(named) > MAX_COLUMNS:
        raise UsageError(
            f"{len(named)} are too many to compare side by side; choose {MAX_COLUMNS} or fewer"
        )
    return named


def _form(trials: list[str], runs: list[str]) -> Component:
    return dmc.Group(
        [
            dmc.TextInput(
                id="compare-trials",
                label="Trials (run.number)",
                value=",".join(trials),
                placeholder="3.12,3.15",
            ),
            dmc.TextInput(
                id="compare-runs", label="Runs", value=",".join(runs), placeholder="3,4"
            ),
            dmc.Button("Compare", id="compare"),
        ],
        align="end",
        mb="md",
    )


def add_callbacks(app: Dash, source: Source) -> None:
    """Make the form open an address that holds its choices, so that it can be shared."""
    callback_in_thread(
        app,
        Output("address", "href", allow_duplicate=True),
        Input("compare", "n_clicks"),
        State("compare-trials", "value"),
        State("compare-runs", "value"),
        prevent_initial_call=True,
    )(_address)


def _address(clicks: int | None, trials: str, runs: str) -> Any:
    if not clicks:
        return no_update
    asked = {"trials": trials, "runs": runs}
    query = "&".join(f"{name}={text.strip()}" for name, text in asked.items() if text.strip())
    return f"/compare?{query}"


def _trials(store: SqlStore, named: Sequence[str]) -> Component:
    views = [_trial(store, name) for name in named]
    knobs = list(dict.fromkeys(knob for view in views for knob in view["plan"]))
    rows = [
        *_rows(TRIAL_ROWS, views),
        *([knob, *(knob_value(view["plan"].get(knob)) for view in views)] for knob in knobs),
    ]
    heads = [
        parts.link(f"Trial {view['number']} of run {view['run_id']}", _trial_address(view))
        for view in views
    ]
    return parts.section(
        "Trials", parts.side_by_side(heads, rows), about="Values that differ are bold."
    )


def _trial(store: SqlStore, name: str) -> dict[str, Any]:
    run, dot, number = name.rpartition(".")
    if not dot or not number.isdecimal():
        raise UsageError(f"{name!r} names no trial; {HOW_TO_NAME}")
    return read_trial(store, store.run(run), int(number))


def _trial_address(view: dict[str, Any]) -> str:
    return f"/runs/{view['run_id']}/trials/{view['number']}"


def _runs(store: SqlStore, named: Sequence[str], visit: Visit) -> Component:
    views = [run_view(store.run(name)) for name in named]
    rows = [*_rows(RUN_ROWS, views), ["Started", *(visit.time(v["created_at"]) for v in views)]]
    knobs = list(dict.fromkeys(knob for view in views for knob in _winner(view)))
    rows += [[knob, *(knob_value(_winner(view).get(knob)) for view in views)] for knob in knobs]
    heads = [parts.link(view["name"], f"/runs/{view['id']}") for view in views]
    about = "Values that differ are bold. Knobs are those of the winners."
    return parts.section("Runs", parts.side_by_side(heads, rows), about=about)


def _winner(run: dict[str, Any]) -> dict[str, Any]:
    return dict(run["winner"]["plan"]) if run["winner"] else {}


def _rows(rows: Sequence[Row], views: Sequence[dict[str, Any]]) -> list[list[str]]:
    return [[name, *(show(view) for view in views)] for name, show in rows]


def _of_measured(name: str, show: Callable[[Any], str]) -> Callable[[dict[str, Any]], str]:
    return lambda view: show((view["measurement"] or {}).get(name))


def _of_winner(name: str, show: Callable[[Any], str]) -> Callable[[dict[str, Any]], str]:
    return lambda view: show((view["winner"] or {}).get(name))


TRIAL_ROWS: tuple[Row, ...] = (
    ("Outcome", lambda view: view["outcome"] or IN_FLIGHT),
    ("Purpose", lambda view: kind(view["purpose"])),
    ("Reason", lambda view: str(view["reason"])),
    ("Error", lambda view: cell(view["error"])),
    ("Samples/s", _of_measured("throughput", samples)),
    ("... from", _of_measured("throughput_low", samples)),
    ("... to (95 %)", _of_measured("throughput_high", samples)),
    ("Step time (ms)", _of_measured("step_ms", cell)),
    ("Waiting for data (%)", _of_measured("data_wait_share", percent)),
    ("Peak memory (GiB)", _of_measured("memory_bytes", gib)),
    ("First step", _of_measured("first_step_s", duration)),
    ("Took", lambda view: duration(view["total_s"])),
    ("Ranks", lambda view: str(view["num_ranks"])),
)
RUN_ROWS: tuple[Row, ...] = (
    ("State", lambda view: str(view["state"])),
    ("Workload", lambda view: str(view["workload"])),
    ("Machine", lambda view: cell(view["hardware"].get("device_name"))),
    ("Ranks", lambda view: str(view["num_ranks"])),
    ("Trials", lambda view: str(view["num_trials"])),
    ("Baseline (samples/s)", _of_winner("baseline_throughput", samples)),
    ("Winner (samples/s)", _of_winner("throughput", samples)),
    ("Speed-up", lambda view: speedup(view["winner"]) if view["winner"] else UNKNOWN),
    ("Peak memory (GiB)", _of_winner("memory_bytes", gib)),
    ("Time used", lambda view: duration(view["used_s"])),
    ("Stopped", lambda view: cell(view["stop_reason"])),
)
