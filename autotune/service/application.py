"""Builds the server's application: the dashboard with the queue, for those with a token."""

from collections.abc import Callable

from starlette.types import ASGIApp

from autotune.dashboard.app import build_app
from autotune.dashboard.extras import Extras, Page
from autotune.service.metrics import Metrics
from autotune.service.pages.job import JobPage
from autotune.service.pages.queue import QueuePage
from autotune.service.routes import JobRoutes
from autotune.service.settings import ServiceSettings
from autotune.service.visitors import GuardedSource, Visitors
from autotune.storage.sql import SqlStore

SUMMARY = "Jobs, and the runs, trials and plans that they made."


def make_service(settings: ServiceSettings, writer: SqlStore, wake: Callable[[], None]) -> ASGIApp:
    """Return the application.

    Args:
        settings: how jobs run.
        writer: the store, opened by the settings; opening it for each job would take longer than
            all the rest of a submission.
        wake: called when there is something new for the loop.
    """
    source = GuardedSource(settings.storage, writer)
    routes = JobRoutes(source=source, settings=settings, wake=wake)
    queue, job = QueuePage(settings), JobPage(routes)
    extras = Extras(
        routers=(routes.router, Metrics(source, settings).router),
        pages=(
            Page(pattern=r"/queue/?", build=queue.page, title=lambda _: "Queue"),
            Page(pattern=r"/jobs/([^/]+)/?", build=job.page, title=job.title),
        ),
        menu=(("Queue", "/queue"),),
        callbacks=(queue.add_callbacks, job.add_callbacks),
    )
    return build_app(source, Visitors(settings.storage).gate, SUMMARY, extras)
