"""The page of one run, which is updated while the run goes on."""

import json
from collections.abc import Iterator
from typing import Any

import dash_mantine_components as dmc
from dash import dcc, html
from dash.development.base_component import Component

from autotune.agent.objectives.stored import objective_from
from autotune.dashboard import parts
from autotune.dashboard.pages.conclusion import conclusion
from autotune.dashboard.pages.notes import notes_section, tags
from autotune.dashboard.source import Source
from autotune.dashboard.trial_table import (
    SHOWN,
    columns_of,
    grid,
)
from autotune.dashboard.visit import Visit
from autotune.report.as_json import run_view
from autotune.report.words import cell, duration
from autotune.storage.records import RunRecord, RunState
from autotune.storage.sql import SqlStore

PULSE_MS = 1000  # between checks for something new
BEAT_MS = 5000  # between updates of what moves with the clock alone
KNOB_SAMPLE = 200  # trials from which a run's knobs and their values are read
ABOUT_BEST = (
    "Each mark is a trial with the 95 % interval of its throughput; click it to see the trial. "
    "Failures stand at 0. Baseline and winner are drawn where the confirmation puts them."
)
ABOUT_LINES = (
    "A line is a trial, the stronger the faster; each row is a knob that differs between trials."
)
ABOUT_EFFECTS = (
    "The share of the variance of throughput, over all measured trials, that lies between the "
    "values of a knob. It is a hint only, as the search tries fast plans more often; changing one "
    "knob alone is the proof."
)


def page(source: Source, visit: Visit, run: str) -> Component:
    """Return the page with the run's result; callbacks add the other parts and update all."""
    with source.store() as store:
        record = store.run(run)
        version = version_of(store, record)
        found = top(store, record, visit)
        note = store.notes.of(record.id)
    return dmc.Box(
        [
            dcc.Store(id="run", data=record.id),
            dcc.Store(id="version", data=version),
            dcc.Interval(id="pulse", interval=PULSE_MS, disabled=not goes_on(record)),
            dcc.Interval(id="beat", interval=BEAT_MS, disabled=not goes_on(record)),
            html.Div(found, id="top"),
            html.Div(id="live"),
            html.Div(id="rest"),
            notes_section(note, record.id),
        ]
    )


def title(source: Source, run: str) -> str:
    """Return the run's name."""
    with source.store() as store:
        return store.run(run).name


def sections(run: RunRecord, knobs: dict[str, list[Any]], visit: Visit) -> Component:
    """Return the empty sections of the page, which callbacks fill."""
    wide = {"base": 1, "lg": 2}
    return dmc.Box(
        [
            dmc.SimpleGrid([_best(), _trade_off(list(knobs), visit)], cols=wide),
            parts.section("All knobs at once", html.Div(id="knob-lines"), about=ABOUT_LINES),
            parts.section("What each knob does", html.Div(id="effects"), about=ABOUT_EFFECTS),
            dmc.SimpleGrid(
                [
                    parts.section("Where the step's time goes", html.Div(id="step-time")),
                    parts.section("Failures", html.Div(id="failures")),
                ],
                cols=wide,
            ),
            parts.section("Trials", parts.grid_wanted(), html.Div(id="table", className="table")),
            parts.section("Plan", html.Div(id="plan")),
            parts.section("About this run", parts.facts(_about(run, visit))),
        ]
    )


def knobs_of(store: SqlStore, run: RunRecord) -> dict[str, list[Any]]:
    """Return {knob: values} of a run's plans, from a sample of its trials."""
    plans = [run.new.baseline, *(p.plan for p in store.statistics(run).sample(KNOB_SAMPLE))]
    knobs: dict[str, list[Any]] = {}
    for plan in plans:
        for knob, value in plan.items:
            knobs.setdefault(knob, []).append(value)
    return knobs


def version_of(store: SqlStore, run: RunRecord) -> list[Any]:
    """Return a value that changes whenever the page has something new to show."""
    return [run.state.value, *store.statistics(run).progress()]


def goes_on(run: RunRecord) -> bool:
    """Return whether the run may still change."""
    return run.state in {RunState.RUNNING, RunState.KILLED, RunState.INTERRUPTED}


def top(store: SqlStore, run: RunRecord, visit: Visit) -> Component:
    """Return the top of the page: title, result so far, progress, and changed knobs."""
    view = run_view(run)
    heading = parts.title(
        run.name,
        parts.badge(run.state.value),
        *tags(store.notes.of(run.id)),
        dmc.Text(f"started {visit.time(view['created_at'])}", c="dimmed", size="sm"),
    )
    found = conclusion(store, run, view)
    progress = _progress(view, store.statistics(run).outcomes())
    return dmc.Box([heading, found, progress])


def _progress(run: dict[str, Any], outcomes: dict[str, int]) -> Component:
    share = min(100 * run["used_s"] / run["budget_s"], 100.0) if run["budget_s"] else 100.0
    counts = (
        ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items()) or "no trial yet"
    )
    words = f"{duration(run['used_s'])} of {duration(run['budget_s'])} used; {counts}"
    return dmc.Box(
        [
            dmc.Progress(value=round(share, 1), **{"aria-label": "Share of the budget used"}),
            dmc.Text(words, size="sm", c="dimmed", mt=4),
            dmc.Text(run["stop_reason"], size="sm") if run["stop_reason"] else None,
        ],
        mb="md",
    )


def _best() -> Component:
    chooser = dmc.Select(
        id="go",
        label="Open a trial",
        placeholder="by its number",
        searchable=True,
        size="xs",
        w=280,
        mt="xs",
    )
    plot = html.Div(id="best", className="plot")
    return parts.section("Best so far", plot, chooser, about=ABOUT_BEST)


def _trade_off(knobs: list[str], visit: Visit) -> Component:
    asked = visit.query.get("colour")
    colour = dmc.Select(
        id="colour",
        label="Colour by",
        placeholder="what the trial is",
        data=parts.choices(knobs),
        value=asked if asked in knobs else None,
        clearable=True,
        searchable=True,
        size="xs",
        w=220,
        mb="xs",
    )
    about = (
        "Memory is the peak of the worst rank. On the dotted line are the trials that no other "
        "beats in both throughput and memory."
    )
    return parts.section(
        "Throughput against memory", colour, html.Div(id="trade-off"), about=about
    )


def table(run: RunRecord, knobs: dict[str, list[Any]], visit: Visit) -> Component:
    """Return the table of trials with the choice of its columns; it requests its rows itself."""
    columns = columns_of(knobs)
    asked = visit.query.get("columns", "").split(",")
    known = {column.name: column for column in columns}
    shown = [known[name] for name in asked if name in known]
    shown = shown or [known[name] for name in SHOWN]
    data = [{"value": column.name, "label": column.heading} for column in columns]
    chooser = dmc.MultiSelect(
        id="columns",
        label="Columns",
        data=data,
        value=[column.name for column in shown],
        searchable=True,
        size="xs",
        mb="xs",
    )
    return dmc.Box([html.Div(id="selected"), chooser, grid(shown, _filter(visit))])


def _filter(visit: Visit) -> dict[str, Any]:
    """Return the table's filter that the address holds, as AG Grid has it."""
    try:
        asked = json.loads(visit.query.get("filter", "{}"))
    except ValueError:
        return {}
    if not isinstance(asked, dict):
        return {}
    return {k: test for k, test in asked.items() if isinstance(test, dict) and "type" in test}


def _about(run: RunRecord, visit: Visit) -> Iterator[tuple[str, parts.Child]]:
    view = run_view(run)
    yield "Workload", run.new.workload_path
    if view["command"] is not None:
        yield "Command", view["command"]
    yield "Objective", objective_from(run.new.objective).words
    yield "Machine", cell(view["hardware"].get("device_name"))
    yield "Devices", cell(view["hardware"].get("num_devices"))
    yield "Ranks in a trial", str(run.new.num_ranks)
    versions = view["hardware"].get("versions", {})
    yield "Versions", ", ".join(f"{name} {version}" for name, version in versions.items())
    yield "Started", visit.time(view["created_at"])
    yield "Ended", visit.time(view["finished_at"])
    yield "Optuna's dashboard", parts.server_link("of this run's study", f"/optuna/{run.id}")
    yield "As JSON", parts.server_link(f"/api/v1/runs/{run.id}", f"/api/v1/runs/{run.id}")
