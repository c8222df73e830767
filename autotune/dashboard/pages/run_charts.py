"""The callbacks that draw the charts of a run's page."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, ctx, no_update
from dash.development.base_component import Component

from autotune.dashboard import charts, parts
from autotune.dashboard.callbacks import callback_in_thread
from autotune.dashboard.dots import RunDots
from autotune.dashboard.importance import importance
from autotune.dashboard.knob_lines import knob_lines
from autotune.dashboard.source import Source
from autotune.dashboard.step_time import shares
from autotune.report import diagnosis
from autotune.report.as_json import trial_view
from autotune.report.verdict import disqualified
from autotune.report.words import samples
from autotune.search_space.plan import Plan
from autotune.storage.dots import Dot
from autotune.storage.records import RunRecord, RunState, TrialRecord
from autotune.storage.sql import SqlStore
from autotune.trials.result import Purpose

MAX_DOTS = 800  # trials in a chart
MAX_CHOICES = 300  # trials to open without a pointer
EFFECT_SAMPLE = 5000  # trials from which the effects of knobs are computed
CHECKS = (Purpose.NUMERICS, Purpose.CONFIRM)
"""What trials are for by which plans are found that may not win."""
CLICKED = ("progress-chart", "trade-off-chart", "knob-lines-chart")
"""The charts whose dots lead to their trials."""


class RunCharts:
    """The charts of a run's page; each method returns the content of one section."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def add_to(self, app: Dash) -> None:
        """Register each method for the section that it fills."""
        run, version = State("run", "data"), Input("version", "data")
        beat = Input("beat", "n_intervals")
        callback_in_thread(app, Output("best", "children"), version, beat, run)(self.progress)
        callback_in_thread(
            app, Output("trade-off", "children"), version, Input("colour", "value"), run
        )(self.trade_off)
        callback_in_thread(app, Output("knob-lines", "children"), version, run)(self.knob_lines)
        callback_in_thread(app, Output("effects", "children"), version, run)(self.effects)
        callback_in_thread(app, Output("step-time", "children"), version, run)(self.step_time)
        callback_in_thread(app, Output("go", "data"), version, run)(self.choices)
        callback_in_thread(
            app,
            Output("address", "href", allow_duplicate=True),
            Input("go", "value"),
            run,
            prevent_initial_call=True,
        )(self.go)
        for name in CLICKED:
            callback_in_thread(
                app,
                Output("address", "href", allow_duplicate=True),
                Input(name, "clickData"),
                run,
                prevent_initial_call=True,
            )(self.clicked)

    def progress(self, _: Any, __: Any, run: int) -> Component:
        """Return the chart of throughput over time, which goes on to now while the run does."""
        with self._source.store() as store:
            record = store.run(str(run))
            best = store.statistics(record).best_so_far()
            found = dots_of(store, record)
        if not found.measured and not found.failed:
            return parts.placeholder("No trial has ended yet.")
        return charts.progress(found, best, _until(record, found))

    def trade_off(self, _: Any, colour: str | None, run: int) -> Component:
        """Return the chart of throughput against memory, coloured by a knob or by the front."""
        with self._source.store() as store:
            record = store.run(str(run))
            found = dots_of(store, record)
            front = {point.number for point in store.statistics(record).front()}
        if not any(dot.memory_bytes is not None for dot in found.measured):
            return parts.placeholder("No trial with a known peak memory yet.")
        return dmc.Box(
            [charts.trade_off(found, front, colour), _thinned(len(found.dots), record.num_trials)]
        )

    def knob_lines(self, _: Any, run: int) -> Component:
        """Return the chart of all knobs at once."""
        with self._source.store() as store:
            found = dots_of(store, store.run(str(run)))
        return knob_lines(found) or parts.placeholder("No two measured trials differ yet.")

    def clicked(self, click: dict[str, Any] | None, run: int) -> Any:
        """Return the address of the trial whose dot was clicked."""
        if ctx.triggered_id is None or not click or "customdata" not in click["points"][0]:
            return no_update
        return f"/runs/{run}/trials/{click['points'][0]['customdata']}"

    def choices(self, _: Any, run: int) -> list[dict[str, str]]:
        """Return the trials that can be opened without a pointer, the fastest first."""
        with self._source.store() as store:
            found = dots_of(store, store.run(str(run)))
        fastest = sorted(found.measured, key=lambda dot: -(dot.throughput or 0.0))
        return [
            {"value": str(dot.number), "label": _choice(found, dot)}
            for dot in [*fastest, *found.failed][:MAX_CHOICES]
        ]

    def go(self, number: str | None, run: int) -> Any:
        """Return the address of the trial that was chosen."""
        return no_update if number is None else f"/runs/{run}/trials/{number}"

    def effects(self, _: Any, run: int) -> Component:
        """Return how throughput varies with each knob's values."""
        with self._source.store() as store:
            record = store.run(str(run))
            effects = store.statistics(record).knob_effects(EFFECT_SAMPLE)
            total = store.statistics(record).num_measured()
        if not effects:
            return parts.placeholder("No knob has been tried with several values yet.")
        return importance(effects, total)

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


def dots_of(store: SqlStore, run: RunRecord) -> RunDots:
    """Return the run's trials as charts draw them, with the plans that may not win."""
    dots = store.statistics(run).dots(MAX_DOTS)
    is_checked = any(dot.purpose in CHECKS for dot in dots)
    trials = store.some_trials(run.id, [dot.number for dot in dots]) if is_checked else []
    out = frozenset(other.plan for other in disqualified(run, trials))
    return RunDots(run=run, dots=dots, disqualified=out)


def _choice(found: RunDots, dot: Dot) -> str:
    gave = (
        found.role(dot).name if dot.throughput is None else f"{samples(dot.throughput)} samples/s"
    )
    return f"trial {dot.number}: {gave}"


def _until(run: RunRecord, found: RunDots) -> datetime:
    if run.state is RunState.RUNNING:
        return datetime.now(UTC)
    ended = [dot.finished_at for dot in found.dots if dot.finished_at is not None]
    return run.finished_at or max(ended, default=run.created_at)


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
    return parts.placeholder(f"Shown are {shown} of {total} trials, evenly chosen.")
