"""The callbacks of a run's page: they fill its sections and its table."""

from collections.abc import Iterator
from typing import Any

import dash_mantine_components as dmc
from dash import ClientsideFunction, Dash, Input, Output, State, no_update
from dash.development.base_component import Component

from autotune.dashboard import charts, parts
from autotune.dashboard.callbacks import callback_in_thread
from autotune.dashboard.pages.plan_links import plan_links
from autotune.dashboard.pages.run import goes_on, knobs_of, sections, table, top, version_of
from autotune.dashboard.source import Source
from autotune.dashboard.step_time import shares
from autotune.dashboard.trial_table import (
    columns_of,
    conditions,
    definitions,
    order,
    row,
)
from autotune.dashboard.visit import Visit
from autotune.errors import UsageError
from autotune.export.contents import read_plan_file
from autotune.export.plan_file import dump_plan
from autotune.report import diagnosis
from autotune.report.as_json import trial_view
from autotune.report.reading import read_trials
from autotune.report.words import cell, samples
from autotune.search_space.plan import Plan
from autotune.storage.records import RunRecord, TrialRecord
from autotune.storage.statistics import KnobEffect, ValueEffect
from autotune.trials.result import Purpose

MAX_DOTS = 800  # trials in the chart of throughput against memory
EFFECT_SAMPLE = 5000  # trials from which the effects of knobs are computed


def add_callbacks(app: Dash, source: Source) -> None:
    """Add the callbacks of the page."""
    RunCallbacks(source).add_to(app)
    app.clientside_callback(
        ClientsideFunction("autotune", "refresh_grid"),
        Input("version", "data"),
        prevent_initial_call=True,
    )


class RunCallbacks:
    """The callbacks of a run's page; each method returns the content of one section."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def add_to(self, app: Dash) -> None:
        """Register each method for the section that it fills."""
        run, version = State("run", "data"), Input("version", "data")
        visit = State("visit", "data")
        callback_in_thread(
            app,
            Output("version", "data"),
            Output("pulse", "disabled"),
            Output("top", "children"),
            Input("pulse", "n_intervals"),
            run,
            State("version", "data"),
            visit,
            prevent_initial_call=True,
        )(self.poll)
        callback_in_thread(app, Output("rest", "children"), Input("run", "data"), visit)(
            self.sections
        )
        callback_in_thread(
            app, Output("table", "children"), Input("grid-ready", "data"), run
        )(self.table)
        callback_in_thread(app, Output("best", "children"), version, run)(self.best)
        callback_in_thread(
            app, Output("trade-off", "children"), version, Input("colour", "value"), run
        )(self.trade_off)
        callback_in_thread(app, Output("effects", "children"), version, run)(self.effects)
        callback_in_thread(app, Output("step-time", "children"), version, run)(self.step_time)
        callback_in_thread(app, Output("failures", "children"), version, run)(self.failures)
        callback_in_thread(app, Output("plan", "children"), version, run)(self.plan)
        callback_in_thread(
            app, Output("trials", "getRowsResponse"), Input("trials", "getRowsRequest"), run, visit
        )(self.rows)
        callback_in_thread(
            app,
            Output("address", "href", allow_duplicate=True),
            Input("trade-off-chart", "clickData"),
            run,
            prevent_initial_call=True,
        )(self.clicked)
        callback_in_thread(app, Output("trials", "columnDefs"), Input("columns", "value"), run)(
            self.columns
        )
        callback_in_thread(
            app, Output("selected", "children"), Input("trials", "selectedRows"), run
        )(self.selected)

    def poll(self, _: int, run: int, version: list[Any], told: dict[str, Any]) -> Any:
        """Return the page's new version and top, if the run has changed."""
        with self._source.store() as store:
            record = store.run(str(run))
            now = version_of(store, record)
            if now == version:
                return no_update, not goes_on(record), no_update
            return now, not goes_on(record), top(store, record, Visit.of(told))

    def sections(self, run: int, told: dict[str, Any]) -> Component:
        """Return the empty sections of the page."""
        with self._source.store() as store:
            record = store.run(str(run))
            return sections(record, knobs_of(store, record), Visit.of(told))

    def table(self, ready: bool | None, run: int) -> Any:  # noqa: FBT001  what the browser says
        """Return the table of trials once its script is there."""
        if not ready:
            return no_update
        with self._source.store() as store:
            record = store.run(str(run))
            return table(record, knobs_of(store, record))

    def best(self, _: Any, run: int) -> Component:
        """Return the chart of the best throughput so far over time."""
        with self._source.store() as store:
            record = store.run(str(run))
            points = store.statistics(record).best_so_far()
        if not points:
            return parts.placeholder("No trial has been measured yet.")
        ended = record.finished_at or points[-1].finished_at
        return charts.best_so_far(points, record.created_at, ended)

    def trade_off(self, _: Any, colour: str | None, run: int) -> Component:
        """Return the chart of throughput against memory, coloured by a knob or by the front."""
        with self._source.store() as store:
            statistics = store.statistics(store.run(str(run)))
            points, front = statistics.sample(MAX_DOTS), statistics.front()
            total = statistics.num_measured()
        chart = charts.trade_off(points, front, colour)
        return dmc.Box([chart, _thinned(len(points), total)])

    def clicked(self, dot: dict[str, Any] | None, run: int) -> Any:
        """Return the address of the trial whose dot was clicked."""
        return f"/runs/{run}/trials/{dot['trial']}" if dot and "trial" in dot else no_update

    def effects(self, _: Any, run: int) -> Component:
        """Return how throughput varies with each knob's values."""
        with self._source.store() as store:
            record = store.run(str(run))
            effects = store.statistics(record).knob_effects(EFFECT_SAMPLE)
            total = store.statistics(record).num_measured()
        if not effects:
            return parts.placeholder("No knob has been tried with several values yet.")
        num_used = sum(value.num_trials for value in effects[0].values)
        items = [_effect(effect) for effect in effects]
        return dmc.Box(
            [
                dmc.Accordion(items, multiple=True, value=[effects[0].knob]),
                parts.placeholder(f"From {num_used} of {total} measured trials."),
            ]
        )

    def step_time(self, _: Any, run: int) -> Component:
        """Return the parts of a step, for the baseline and the winner."""
        with self._source.store() as store:
            record = store.run(str(run))
            trials = store.trials_for(record.id, [Purpose.BASELINE, Purpose.CONFIRM])
        baseline = record.new.baseline
        known = [(name, _best_known(trials, plan, baseline)) for name, plan in _plans(record)]
        found = [(name, trial) for name, trial in known if trial is not None]
        if not found:
            return parts.placeholder("Not known yet.")
        bounds = [
            (f"{name}: bound by", diagnosis.bound(trial["diagnosis"]))
            for name, trial in found
            if trial["diagnosis"] is not None
        ]
        chart = charts.step_parts([(name, shares(trial) or {}) for name, trial in found])
        return dmc.Box([chart, parts.facts(bounds)])

    def failures(self, _: Any, run: int) -> Component:
        """Return the number of failed trials by outcome, each with its latest error."""
        with self._source.store() as store:
            record = store.run(str(run))
            failures = store.statistics(record).failures()
            latest = store.some_trials(record.id, [number for _, _, number in failures])
        if not failures:
            return parts.placeholder("No trial has failed.")
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
        """Return the text of the winner's plan file, and links to all formats."""
        with self._source.store() as store:
            record = store.run(str(run))
            try:
                file = read_plan_file(store, record, None)
            except UsageError as error:
                return parts.placeholder(str(error))
        return dmc.Stack([plan_links(record.id), parts.text_block(dump_plan(file))])

    def rows(self, request: dict[str, Any] | None, run: int, told: dict[str, Any]) -> Any:
        """Return the rows that the grid requests, sorted and filtered by the database."""
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
        visit = Visit.of(told)
        shown = [row(trial, visit) for trial in found["items"]]
        return {"rowData": shown, "rowCount": found["total"]}

    def columns(self, names: list[str], run: int) -> list[dict[str, Any]]:
        """Return the definitions of the chosen columns, in the order of choice."""
        with self._source.store() as store:
            known = {c.name: c for c in columns_of(knobs_of(store, store.run(str(run))))}
        return definitions(known[name] for name in names if name in known)

    def selected(self, rows: list[dict[str, Any]] | None, run: int) -> Component:
        """Return a link to the page that compares the selected trials."""
        if not rows:
            return parts.placeholder("Select trials to compare them.")
        named = ",".join(f"{run}.{chosen['id']}" for chosen in rows)
        return parts.link(f"Compare {len(rows)} trials", f"/compare?trials={named}")


def _plans(run: RunRecord) -> Iterator[tuple[str, Plan]]:
    yield "baseline", run.new.baseline
    if run.winner is not None and not run.winner.kept_baseline:
        yield "winner", run.winner.plan


def _best_known(trials: list[TrialRecord], plan: Plan, baseline: Plan) -> dict[str, Any] | None:
    """Return the `trial_view` of this plan whose step is known best: with a diagnosis if any."""
    views = [trial_view(trial, baseline) for trial in trials if trial.plan == plan]
    known = [view for view in views if shares(view) is not None]
    return max(known, key=lambda view: view["diagnosis"] is not None, default=None)


def _thinned(shown: int, total: int) -> Component | None:
    if shown >= total:
        return None
    return parts.placeholder(f"Shown are {shown} of {total} trials, evenly chosen, and the front.")


def _effect(effect: KnobEffect) -> Component:
    share = f"{100 * effect.explained:.0f} % of the variance"
    best = max(value.fastest for value in effect.values)
    rows = [_value_row(value, best) for value in effect.values]
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


def _value_row(value: ValueEffect, best: float) -> list[parts.Child]:
    return [
        value.value,
        str(value.num_trials),
        samples(value.slowest),
        samples(value.mean),
        samples(value.fastest),
        parts.range_bar(value.slowest, value.mean, value.fastest, best),
    ]
