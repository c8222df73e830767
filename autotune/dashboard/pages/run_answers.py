"""The callbacks of a run's page: they fill its sections and its table."""

from typing import Any

from dash import ClientsideFunction, Dash, Input, Output, State, no_update
from dash.development.base_component import Component

from autotune.dashboard import parts
from autotune.dashboard.callbacks import callback_in_thread
from autotune.dashboard.live import live
from autotune.dashboard.pages.plan_section import plan_section
from autotune.dashboard.pages.run import goes_on, knobs_of, sections, table, top, version_of
from autotune.dashboard.pages.run_charts import RunCharts
from autotune.dashboard.source import Source
from autotune.dashboard.trial_table import (
    columns_of,
    conditions,
    definitions,
    order,
    row,
)
from autotune.dashboard.visit import Visit
from autotune.errors import UsageError
from autotune.report.reading import read_trials
from autotune.report.words import cell


def add_callbacks(app: Dash, source: Source) -> None:
    """Add the callbacks of the page."""
    RunCallbacks(source).add_to(app)
    RunCharts(source).add_to(app)
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
        callback_in_thread(
            app, Output("live", "children"), Input("pulse", "n_intervals"), version, run
        )(self.live)
        callback_in_thread(app, Output("rest", "children"), Input("run", "data"), visit)(
            self.sections
        )
        callback_in_thread(
            app, Output("table", "children"), Input("grid-ready", "data"), run, visit
        )(self.table)
        callback_in_thread(app, Output("failures", "children"), version, run)(self.failures)
        callback_in_thread(app, Output("plan", "children"), version, run, visit)(self.plan)
        callback_in_thread(
            app, Output("trials", "getRowsResponse"), Input("trials", "getRowsRequest"), run, visit
        )(self.rows)
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

    def live(self, _: Any, __: Any, run: int) -> Component | None:
        """Return what the run does, if it goes on."""
        with self._source.store() as store:
            return live(store, store.run(str(run)))

    def sections(self, run: int, told: dict[str, Any]) -> Component:
        """Return the empty sections of the page."""
        with self._source.store() as store:
            record = store.run(str(run))
            return sections(record, knobs_of(store, record), Visit.of(told))

    def table(self, ready: bool | None, run: int, told: dict[str, Any]) -> Any:  # noqa: FBT001  what the browser says
        """Return the table of trials once its script is there."""
        if not ready:
            return no_update
        with self._source.store() as store:
            record = store.run(str(run))
            return table(record, knobs_of(store, record), Visit.of(told))

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

    def plan(self, _: Any, run: int, told: dict[str, Any]) -> Component:
        """Return the winner's plan, as values and as a file."""
        with self._source.store() as store:
            try:
                return plan_section(store, store.run(str(run)), None, Visit.of(told))
            except UsageError as error:
                return parts.placeholder(str(error))

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
