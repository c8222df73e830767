"""The page of one job, which is updated until the job has ended."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, dcc, html, no_update
from dash.development.base_component import Component

from autotune.dashboard import parts
from autotune.dashboard.api import PREFIX
from autotune.dashboard.callbacks import callback_in_thread
from autotune.dashboard.source import Source
from autotune.dashboard.visit import Visit
from autotune.report.words import duration
from autotune.service.pages.queue import state_badge
from autotune.service.processes import JobProcess
from autotune.service.routes import JobRoutes, may_cancel
from autotune.service.views import job_view
from autotune.service.visitors import visitor
from autotune.storage.job_records import ENDED, JobEvent, JobRecord, JobState

PULSE_MS = 1000  # between looks for something new
TAIL_BYTES = 16_384  # of the output
EVENT_COLUMNS = ("When", "What", "")


class JobPage:
    """The page of one job.

    Args:
        routes: the handlers that cancel jobs.
    """

    def __init__(self, routes: JobRoutes) -> None:
        self._routes = routes

    def page(self, source: Source, visit: Visit, job: str) -> Component:
        """Return the page."""
        record, found, version = self._found(source, visit, job)
        return dmc.Box(
            [
                dcc.Store(id="job", data=str(record.id)),
                dcc.Store(id="job-version", data=version),
                dcc.Interval(id="job-pulse", interval=PULSE_MS, disabled=record.state in ENDED),
                html.Div(found, id="job-found"),
            ]
        )

    @staticmethod
    def title(source: Source, job: str) -> str:
        """Return the job's name."""
        with source.store() as store:
            return store.jobs.job(job).shown_name

    def add_callbacks(self, app: Dash, source: Source) -> None:
        """Add the callbacks that keep the page up to date, and that cancel the job."""

        def refresh(_: Any, job: str, version: list[Any], told: dict[str, Any]) -> Any:
            record, found, now = self._found(source, Visit.of(told), job)
            over = record.state in ENDED
            return (no_update, no_update, over) if now == version else (found, now, over)

        def cancel(clicks: int | None, job: str) -> Any:
            if not clicks:
                return no_update
            return job_view(self._routes.cancel_for(visitor(), job))["state"] != "queued"

        callback_in_thread(
            app,
            Output("job-found", "children"),
            Output("job-version", "data"),
            Output("job-pulse", "disabled"),
            Input("job-pulse", "n_intervals"),
            State("job", "data"),
            State("job-version", "data"),
            State("visit", "data"),
            prevent_initial_call=True,
        )(refresh)
        callback_in_thread(
            app,
            Output("job-cancel", "disabled"),
            Input("job-cancel", "n_clicks"),
            State("job", "data"),
            prevent_initial_call=True,
        )(cancel)

    def _found(
        self, source: Source, visit: Visit, job: str
    ) -> tuple[JobRecord, Component, list[Any]]:
        """Return the job, what the page shows, and a value that changes whenever that does."""
        with source.store() as store:
            record = store.jobs.job(job)
            events = store.jobs.events(record.id)
        output = JobProcess(self._routes.settings.job_folder(record.id)).output
        size = output.stat().st_size if output.is_file() else 0
        shown = dmc.Box(
            [
                _heading(record),
                _conclusion(record),
                parts.section("What was asked", parts.facts(_facts(record, visit))),
                parts.section("What happened", _events(events, visit)),
                _log(record, output),
            ]
        )
        version = [record.state.value, record.cancelled_by, record.run_id, len(events), size]
        return record, shown, version


def _heading(job: JobRecord) -> Component:
    run = parts.link(f"run {job.run_name}", f"/runs/{job.run_id}") if job.run_id else None
    return parts.title(job.shown_name, state_badge(job), run, _cancel_button(job))


def _conclusion(job: JobRecord) -> Component | None:
    if job.state not in ENDED or job.message is None:
        return None
    colour = {JobState.DONE: "green", JobState.CANCELLED: "gray"}.get(job.state, "red")
    return parts.alert(job.message, f"The job is {job.state.value}", colour)


def _facts(job: JobRecord, visit: Visit) -> Iterator[tuple[str, parts.Child]]:
    view = job_view(job)
    yield "Workload", view["workload"]
    yield "Owner", job.new.owner
    yield "Priority", str(job.new.priority)
    yield "Budget", duration(job.new.budget_s)
    yield "Devices", ", ".join(job.devices) or f"{job.new.num_devices}, when it starts"
    options = view["request"]["options"] or {}
    if options:
        yield "Options", ", ".join(f"{name}={value}" for name, value in options.items())
    yield "Waited", duration(view["waited_s"])
    yield "Submitted", visit.time(view["created_at"])
    yield "Started", visit.time(view["started_at"])
    yield "Ended", visit.time(view["finished_at"])
    if job.run_id is not None:
        at = f"{PREFIX}/jobs/{job.id}"
        plan = parts.server_link("plan.yaml", f"{at}/plan", "plan.yaml")
        report = parts.server_link("report.json", f"{at}/report", "report.json")
        yield "To download", dmc.Group([plan, report])


def _events(events: list[JobEvent], visit: Visit) -> Component:
    rows = [[visit.time(event.at.isoformat()), event.kind, event.text] for event in events]
    return parts.table(EVENT_COLUMNS, rows)


def _log(job: JobRecord, output: Path) -> Component | None:
    if not output.is_file():
        return None
    at = f"{PREFIX}/jobs/{job.id}/log"
    links = [
        parts.server_link("Look at the whole log", at),
        parts.server_link("Download it", f"{at}?download=true", f"{job.run_name}.log"),
    ]
    return parts.section("End of the log", parts.text_block(_tail(output)), dmc.Group(links))


def _tail(output: Path) -> str:
    with output.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL_BYTES))
        text = file.read().decode(errors="replace")
    return text if size <= TAIL_BYTES else text.partition("\n")[2]


def _cancel_button(job: JobRecord) -> Component | None:
    """Return the button where the visitor's token allows it, and there is something to cancel."""
    if job.state in ENDED or not may_cancel(visitor(), job):
        return None
    return dmc.Button(
        "Cancel the job",
        id="job-cancel",
        color="red",
        variant="outline",
        size="xs",
        disabled=job.cancelled_by is not None,
    )
