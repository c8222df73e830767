"""What fills the parts of a run's page, and answers its table."""

from collections.abc import Iterator
from typing import Any

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, no_update
from dash.development.base_component import Component

from autotune.dashboard import charts, parts
from autotune.dashboard.callbacks import answers
from autotune.dashboard.pages.plan_links import plan_links
from autotune.dashboard.pages.run import frames, goes_on, knobs_of, top, version_of
from autotune.dashboard.source import Source
from autotune.dashboard.step_time import shares
from autotune.dashboard.trial_table import (
    columns_of,
    conditions,
    definitions,
    order,
    row,
)
from autotune.dashboard.where import Where
from autotune.errors import UsageError
from autotune.export.contents import read_plan_file
from autotune.export.plan_file import dump_plan
from autotune.report import diagnosed
from autotune.report.as_json import trial_view
from autotune.report.reading import read_trials
from autotune.report.words import cell, samples
from autotune.search_space.plan import Plan
from autotune.storage.records import RunRecord, TrialRecord
from autotune.storage.statistics import KnobEffect, ValueEffect
from autotune.trials.result import Purpose

MAX_DOTS = 800
MAX_EFFECTS = 5000
REFRESH = "(version) => { dash_ag_grid.getApi('trials').refreshInfiniteCache(); }"
"""The table's rows stay; the grid asks again for those in sight."""


def add_callbacks(app: Dash, source: Source) -> None:
    """Add what fills the live parts, and what answers the table."""
    RunAnswers(source).add_to(app)
    app.clientside_callback(REFRESH, Input("version", "data"), prevent_initial_call=True)


class RunAnswers:
    """The page's callbacks, by what they fill."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def add_to(self, app: Dash) -> None:
        """Give each part of the page what fills it."""
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
            now = version_of(store, record)
            if now == version:
                return no_update, not goes_on(record), no_update
            return now, not goes_on(record), top(store, record, Where.of(told))

    def rest(self, run: int, told: dict[str, Any]) -> Component:
        """Return the frames of the page's other parts."""
        with self._source.store() as store:
            record = store.run(str(run))
            return frames(record, knobs_of(store, record), Where.of(told))

    def best(self, _: Any, run: int) -> Component:
        """Return the best so far over time."""
        with self._source.store() as store:
            record = store.run(str(run))
            points = store.statistics(record).best_so_far()
        if not points:
            return parts.nothing("No trial has been measured yet.")
        ended = record.finished_at or points[-1].finished_at
        return charts.best_so_far(points, record.created_at, ended)

    def trade_off(self, _: Any, colour: str | None, run: int) -> Component:
        """Return throughput against memory, coloured by a knob or by the front."""
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
        """Return what each knob does."""
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
        """Return where the step's time goes, baseline beside winner."""
        with self._source.store() as store:
            record = store.run(str(run))
            trials = store.trials_for(record.id, [Purpose.BASELINE, Purpose.CONFIRM])
        baseline = record.new.baseline
        known = [(name, _best_known(trials, plan, baseline)) for name, plan in _plans(record)]
        found = [(name, trial) for name, trial in known if trial is not None]
        if not found:
            return parts.nothing("Not known yet.")
        bounds = [
            (f"{name}: bound by", diagnosed.bound(trial["diagnosis"]))
            for name, trial in found
            if trial["diagnosis"] is not None
        ]
        chart = charts.time_of_step([(name, shares(trial) or {}) for name, trial in found])
        return dmc.Box([chart, parts.facts(bounds)])

    def failures(self, _: Any, run: int) -> Component:
        """Return how trials failed, with the latest error of each kind."""
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
        """Return the winner's plan file, in all formats."""
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
            known = {c.name: c for c in columns_of(knobs_of(store, store.run(str(run))))}
        return definitions(known[name] for name in names if name in known)

    def selected(self, rows: list[dict[str, Any]] | None, run: int) -> Component:
        """Return the link that compares the selected trials."""
        if not rows:
            return parts.nothing("Select trials to compare them.")
        named = ",".join(f"{run}.{chosen['id']}" for chosen in rows)
        return parts.link(f"Compare {len(rows)} trials", f"/compare?trials={named}")


def _plans(run: RunRecord) -> Iterator[tuple[str, Plan]]:
    yield "baseline", run.new.baseline
    if run.winner is not None and not run.winner.kept_baseline:
        yield "winner", run.winner.plan


def _best_known(trials: list[TrialRecord], plan: Plan, baseline: Plan) -> dict[str, Any] | None:
    """Return the trial of this plan that says most about its step, one with a diagnosis if any."""
    views = [trial_view(trial, baseline) for trial in trials if trial.plan == plan]
    known = [view for view in views if shares(view) is not None]
    return max(known, key=lambda view: view["diagnosis"] is not None, default=None)


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
