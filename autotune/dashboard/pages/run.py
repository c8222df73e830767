"""One run: what it found, how, and all its trials; live while it goes on."""

from collections.abc import Iterator
from typing import Any

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, dcc, html, no_update
from dash.development.base_component import Component

from autotune.dashboard import charts, parts
from autotune.dashboard.callbacks import answers
from autotune.dashboard.pages.conclusion import changes, headline
from autotune.dashboard.pages.plan_links import plan_links
from autotune.dashboard.source import Source
from autotune.dashboard.step_time import shares
from autotune.dashboard.trial_table import (
    SHOWN,
    Column,
    columns_of,
    conditions,
    definitions,
    grid,
    order,
    row,
)
from autotune.dashboard.where import Where
from autotune.errors import UsageError
from autotune.export.contents import read_plan_file
from autotune.export.plan_file import dump_plan
from autotune.report.reading import read_trials
from autotune.report.words import cell, duration, samples
from autotune.storage.records import RunRecord, RunState, TrialRecord
from autotune.storage.sql import SqlStore
from autotune.storage.statistics import KnobEffect, ValueEffect
from autotune.storage.views import run_view, trial_view
from autotune.trials.result import Purpose

PULSE_MS = 1500
MAX_DOTS = 800
MAX_EFFECTS = 5000
KNOB_SAMPLE = 200
ABOUT_EFFECTS = (
    "How much of the spread of throughput lies between a knob's values, over all measured trials. "
    "The search tries good plans more often, so this is a hint; a knob flipped alone is the proof."
)
REFRESH = "(version) => { dash_ag_grid.getApi('trials').refreshInfiniteCache(); }"
"""The table's rows stay; the grid asks again for those in sight."""


def page(source: Source, where: Where, run: str) -> Component:
    """Return the page of a run: what it found. Callbacks add the rest, and keep it up to date."""
    with source.store() as store:
        record = store.run(run)
        version = _version(store, record)
        top = _top(store, record, where)
    return dmc.Box(
        [
            dcc.Store(id="run", data=record.id),
            dcc.Store(id="version", data=version),
            dcc.Interval(id="pulse", interval=PULSE_MS, disabled=not _goes_on(record)),
            html.Div(top, id="top"),
            html.Div(id="rest"),
        ]
    )


def _rest(run: RunRecord, knobs: dict[str, list[Any]], where: Where) -> Component:
    """Return the frames of what takes longer to know or to draw."""
    wide = {"base": 1, "lg": 2}
    return dmc.Box(
        [
            dmc.SimpleGrid([_best(), _trade_off(list(knobs))], cols=wide),
            parts.section("What each knob does", html.Div(id="effects"), about=ABOUT_EFFECTS),
            dmc.SimpleGrid(
                [
                    parts.section("Where the step's time goes", html.Div(id="step-time")),
                    parts.section("Failures", html.Div(id="failures")),
                ],
                cols=wide,
            ),
            _trials(columns_of(knobs)),
            parts.section("Plan", html.Div(id="plan")),
            parts.section("About this run", parts.facts(_about(run, where))),
        ]
    )


def _knobs(store: SqlStore, run: RunRecord) -> dict[str, list[Any]]:
    plans = [run.new.baseline, *(p.plan for p in store.statistics(run).sample(KNOB_SAMPLE))]
    knobs: dict[str, list[Any]] = {}
    for plan in plans:
        for knob, value in plan.items:
            knobs.setdefault(knob, []).append(value)
    return knobs


def _version(store: SqlStore, run: RunRecord) -> list[Any]:
    """Return what changes when something new is to be shown."""
    return [run.state.value, *store.statistics(run).progress()]


def _goes_on(run: RunRecord) -> bool:
    return run.state in {RunState.RUNNING, RunState.INTERRUPTED}


def _top(store: SqlStore, run: RunRecord, where: Where) -> Component:
    view = run_view(run)
    best = store.statistics(run).best_so_far()
    title = parts.title(
        run.name,
        parts.badge(run.state.value),
        dmc.Text(f"started {where.time(view['created_at'])}", c="dimmed", size="sm"),
    )
    return dmc.Box(
        [
            title,
            headline(view, best[-1] if best else None),
            _progress(view, store.statistics(run).outcomes()),
            changes(view["winner"]),
        ]
    )


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
    return parts.section("Best so far", html.Div(id="best"))


def _trade_off(knobs: list[str]) -> Component:
    colour = dmc.Select(
        id="colour",
        label="Colour by",
        placeholder="what nothing beats",
        data=parts.choices(knobs),
        clearable=True,
        searchable=True,
        size="xs",
        w=220,
        mb="xs",
    )
    about = "A dot is a trial; click one to see it. Its memory is the peak of its worst rank."
    return parts.section(
        "Throughput against memory", colour, html.Div(id="trade-off"), about=about
    )


def _trials(columns: list[Column]) -> Component:
    shown = [column for column in columns if column.name in SHOWN]
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
    return parts.section(
        "Trials",
        html.Div(id="selected"),
        chooser,
        grid(shown),
    )


def _about(run: RunRecord, where: Where) -> Iterator[tuple[str, parts.Child]]:
    view = run_view(run)
    yield "Workload", run.new.workload_path
    yield "Machine", cell(view["hardware"].get("device_name"))
    yield "Devices", cell(view["hardware"].get("num_devices"))
    yield "Ranks in a trial", str(run.new.num_ranks)
    versions = view["hardware"].get("versions", {})
    yield "Versions", ", ".join(f"{name} {version}" for name, version in versions.items())
    yield "Started", where.time(view["created_at"])
    yield "Ended", where.time(view["finished_at"])
    yield "Optuna's dashboard", parts.outside("of this run's study", f"/optuna/{run.id}")
    yield "As JSON", parts.outside(f"/api/v1/runs/{run.id}", f"/api/v1/runs/{run.id}")


def add_callbacks(app: Dash, source: Source) -> None:
    """Add what fills the live parts, and what answers the table."""
    _Answers(source).add_to(app)
    app.clientside_callback(REFRESH, Input("version", "data"), prevent_initial_call=True)


class _Answers:
    """The page's callbacks."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def add_to(self, app: Dash) -> None:
        run, version = State("run", "data"), Input("version", "data")
        where = State("where", "data")
        answers(
            app,
            Output("version", "data"),
            Output("pulse", "disabled"),
            Output("top", "children"),
            Input("pulse", "n_intervals"),
            run,
            State("version", "data"),
            where,
            prevent_initial_call=True,
        )(self.look)
        answers(app, Output("rest", "children"), Input("run", "data"), where)(self.rest)
        answers(app, Output("best", "children"), version, run)(self.best)
        answers(app, Output("trade-off", "children"), version, Input("colour", "value"), run)(
            self.trade_off
        )
        answers(app, Output("effects", "children"), version, run)(self.effects)
        answers(app, Output("step-time", "children"), version, run)(self.step_time)
        answers(app, Output("failures", "children"), version, run)(self.failures)
        answers(app, Output("plan", "children"), version, run)(self.plan)
        answers(
            app, Output("trials", "getRowsResponse"), Input("trials", "getRowsRequest"), run, where
        )(self.rows)
        answers(
            app,
            Output("address", "href", allow_duplicate=True),
            Input("trade-off-chart", "clickData"),
            run,
            prevent_initial_call=True,
        )(self.clicked)
        answers(app, Output("trials", "columnDefs"), Input("columns", "value"), run)(self.columns)
        answers(app, Output("selected", "children"), Input("trials", "selectedRows"), run)(
            self.selected
        )

    def look(self, _: int, run: int, version: list[Any], told: dict[str, Any]) -> Any:
        """See whether there is anything new."""
        with self._source.store() as store:
            record = store.run(str(run))
            now = _version(store, record)
            if now == version:
                return no_update, not _goes_on(record), no_update
            return now, not _goes_on(record), _top(store, record, Where.of(told))

    def rest(self, run: int, told: dict[str, Any]) -> Component:
        """Return the frames of the page's other parts."""
        with self._source.store() as store:
            record = store.run(str(run))
            return _rest(record, _knobs(store, record), Where.of(told))

    def best(self, _: Any, run: int) -> Component:
        with self._source.store() as store:
            record = store.run(str(run))
            points = store.statistics(record).best_so_far()
        if not points:
            return parts.nothing("No trial has been measured yet.")
        ended = record.finished_at or points[-1].finished_at
        return charts.best_so_far(points, record.created_at, ended)

    def trade_off(self, _: Any, colour: str | None, run: int) -> Component:
        with self._source.store() as store:
            statistics = store.statistics(store.run(str(run)))
            points, front = statistics.sample(MAX_DOTS), statistics.front()
            total = statistics.num_measured()
        chart = charts.trade_off(points, front, colour)
        return dmc.Box([chart, _thinned(len(points), total)])

    def clicked(self, dot: dict[str, Any] | None, run: int) -> Any:
        """Lead to the trial whose dot was clicked."""
        return f"/runs/{run}/trials/{dot['trial']}" if dot and "trial" in dot else no_update

    def effects(self, _: Any, run: int) -> Component:
        with self._source.store() as store:
            record = store.run(str(run))
            effects = store.statistics(record).knob_effects(MAX_EFFECTS)
            total = store.statistics(record).num_measured()
        if not effects:
            return parts.nothing("No knob has been tried with several values yet.")
        looked_at = sum(value.num_trials for value in effects[0].values)
        items = [_effect(effect) for effect in effects]
        return dmc.Box(
            [
                dmc.Accordion(items, multiple=True, value=[effects[0].knob]),
                parts.nothing(f"{looked_at} of {total} trials with a measurement."),
            ]
        )

    def step_time(self, _: Any, run: int) -> Component:
        with self._source.store() as store:
            record = store.run(str(run))
            trials = store.trials_for(record.id, [Purpose.BASELINE, Purpose.CONFIRM])
        named = [
            (name, found)
            for name, plan in _plans(record)
            if (found := _shares_of(trials, plan, record)) is not None
        ]
        if not named:
            return parts.nothing("Not known yet.")
        return charts.time_of_step(named)

    def failures(self, _: Any, run: int) -> Component:
        with self._source.store() as store:
            record = store.run(str(run))
            failures = store.statistics(record).failures()
            latest = store.some_trials(record.id, [number for _, _, number in failures])
        if not failures:
            return parts.nothing("No trial has failed.")
        errors = {trial.number: trial.result and trial.result.error for trial in latest}
        rows: list[list[parts.Child]] = [
            [
                parts.badge(outcome),
                str(count),
                parts.link(str(number), f"/runs/{run}/trials/{number}"),
                cell(errors.get(number)),
            ]
            for outcome, count, number in failures
        ]
        return parts.table(("Outcome", "Trials", "Latest", "Its error"), rows, ("Trials",))

    def plan(self, _: Any, run: int) -> Component:
        with self._source.store() as store:
            record = store.run(str(run))
            try:
                file = read_plan_file(store, record, None)
            except UsageError as error:
                return parts.nothing(str(error))
        return dmc.Stack([plan_links(record.id), parts.text_block(dump_plan(file))])

    def rows(self, request: dict[str, Any] | None, run: int, told: dict[str, Any]) -> Any:
        """Return the rows in sight: sorted, filtered and paged by the database."""
        if request is None:
            return no_update
        first, last = int(request["startRow"]), int(request["endRow"])
        with self._source.store() as store:
            record = store.run(str(run))
            found = read_trials(
                store,
                record,
                conditions=conditions(request["filterModel"]),
                sort=order(request["sortModel"]),
                limit=last - first,
                offset=first,
            )
        where = Where.of(told)
        shown = [row(trial, where) for trial in found["items"]]
        return {"rowData": shown, "rowCount": found["total"]}

    def columns(self, names: list[str], run: int) -> list[dict[str, Any]]:
        """Return the chosen columns, in the order chosen."""
        with self._source.store() as store:
            known = {c.name: c for c in columns_of(_knobs(store, store.run(str(run))))}
        return definitions(known[name] for name in names if name in known)

    def selected(self, rows: list[dict[str, Any]] | None, run: int) -> Component:
        """Return the link that compares the selected trials."""
        if not rows:
            return parts.nothing("Select trials to compare them.")
        named = ",".join(f"{run}.{chosen['id']}" for chosen in rows)
        return parts.link(f"Compare {len(rows)} trials", f"/compare?trials={named}")


def _plans(run: RunRecord) -> Iterator[tuple[str, Any]]:
    yield "baseline", run.new.baseline
    if run.winner is not None and not run.winner.kept_baseline:
        yield "winner", run.winner.plan


def _shares_of(trials: list[TrialRecord], plan: Any, run: RunRecord) -> dict[str, float] | None:
    known = (shares(trial_view(t, run.new.baseline)) for t in trials if t.plan == plan)
    return next((found for found in known if found is not None), None)


def _thinned(shown: int, total: int) -> Component | None:
    if shown >= total:
        return None
    return parts.nothing(f"{shown} of {total} trials, evenly chosen, and the front.")


def _effect(effect: KnobEffect) -> Component:
    share = f"{100 * effect.explained:.0f} % of the spread"
    best = max(value.fastest for value in effect.values)
    rows = [_value(value, best) for value in effect.values]
    columns = ("Value", "Trials", "Slowest", "Mean", "Fastest", "From slowest to fastest")
    return dmc.AccordionItem(
        [
            dmc.AccordionControl(
                dmc.Group([dmc.Text(effect.knob, fw=600), dmc.Text(share, c="dimmed", size="sm")])
            ),
            dmc.AccordionPanel(parts.table(columns, rows, columns[1:5])),
        ],
        value=effect.knob,
    )


def _value(value: ValueEffect, best: float) -> list[parts.Child]:
    return [
        value.value,
        str(value.num_trials),
        samples(value.slowest),
        samples(value.mean),
        samples(value.fastest),
        parts.span(value.slowest, value.mean, value.fastest, best),
    ]
