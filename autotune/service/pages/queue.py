"""The page of the queue, which keeps itself up to date."""

from typing import Any

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, dcc, html, no_update
from dash.development.base_component import Component

from autotune.dashboard import parts
from autotune.dashboard.callbacks import callback_in_thread
from autotune.dashboard.source import Source
from autotune.dashboard.visit import Visit
from autotune.report.words import duration
from autotune.service.settings import ServiceSettings
from autotune.service.views import job_view
from autotune.storage.job_records import JobRecord, JobState

PAGE = 100  # jobs on the page
PULSE_MS = 2000  # between looks for something new
COLUMNS = (
    "Job",
    "State",
    "Owner",
    "Priority",
    "Devices",
    "Waited",
    "Budget",
    "Workload",
    "Run",
    "Submitted",
    "Conclusion",
)
NUMERIC = ("Priority", "Devices", "Waited", "Budget")


class QueuePage:
    """The page of the queue.

    Args:
        settings: how jobs run.
    """

    def __init__(self, settings: ServiceSettings) -> None:
        self._num_devices = len(settings.devices.ids)

    def page(self, source: Source, visit: Visit) -> Component:
        """Return the page."""
        found, version = self._found(source, visit)
        return dmc.Box(
            [
                dcc.Store(id="queue-version", data=version),
                dcc.Interval(id="queue-pulse", interval=PULSE_MS),
                parts.title("Queue"),
                html.Div(found, id="queue"),
            ]
        )

    def add_callbacks(self, app: Dash, source: Source) -> None:
        """Add the callback that keeps the list up to date."""

        def refresh(_: Any, version: list[Any], told: dict[str, Any]) -> Any:
            found, now = self._found(source, Visit.of(told))
            return (no_update, no_update) if now == version else (found, now)

        callback_in_thread(
            app,
            Output("queue", "children"),
            Output("queue-version", "data"),
            Input("queue-pulse", "n_intervals"),
            State("queue-version", "data"),
            State("visit", "data"),
            prevent_initial_call=True,
        )(refresh)

    def _found(self, source: Source, visit: Visit) -> tuple[Component, list[Any]]:
        """Return the tiles and the list, and a value that changes whenever they do."""
        with source.store() as store:
            jobs = store.jobs.jobs(limit=PAGE)
            counts = store.jobs.counts()
            running = store.jobs.jobs(states=[JobState.RUNNING])
        num_taken = sum(len(job.devices) for job in running)
        rows = [_row(job, visit) for job in jobs]
        # A minute's change of what waits is worth an update, too.
        version = [
            [job.id, job.state.value, job.run_id, job.cancelled_by, row[5]]
            for job, row in zip(jobs, rows, strict=True)
        ]
        shown = dmc.Box([self._tiles(counts, num_taken), _list(rows)])
        return shown, [num_taken, *version]

    def _tiles(self, counts: dict[JobState, int], num_taken: int) -> Component:
        return dmc.SimpleGrid(
            [
                parts.tile("Queued", str(counts[JobState.QUEUED]), "jobs"),
                parts.tile("Running", str(counts[JobState.RUNNING]), "jobs"),
                parts.tile("Devices in use", f"{num_taken} of {self._num_devices}", "devices"),
                parts.tile("Done", str(counts[JobState.DONE]), "jobs"),
                parts.tile("Failed", str(counts[JobState.FAILED]), "jobs"),
            ],
            cols={"base": 2, "sm": 3, "lg": 5},
            mb="md",
        )


def _list(rows: list[list[Any]]) -> Component:
    if not rows:
        words = parts.commands(["autotune submit MODEL --server URL --budget 2h --watch"])
        return parts.section("No job yet", words)
    return html.Div(parts.table(COLUMNS, rows, NUMERIC), className="runs")


def _row(job: JobRecord, visit: Visit) -> list[Any]:
    view = job_view(job)
    return [
        parts.link(job.shown_name, f"/jobs/{job.id}"),
        state_badge(job),
        job.new.owner,
        str(job.new.priority),
        str(job.new.num_devices),
        duration(view["waited_s"]),
        duration(job.new.budget_s),
        view["workload"],
        parts.link(job.run_name, f"/runs/{job.run_id}") if job.run_id else "-",
        visit.time(view["created_at"]),
        job.message or "-",
    ]


def state_badge(job: JobRecord) -> Component:
    """Return a job's state on its colour."""
    return parts.badge("stopping" if job_view(job)["is_stopping"] else job.state.value)
