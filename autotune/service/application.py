"""Builds the server's application: the dashboard with the queue, for those with a token."""

from collections.abc import Callable

from starlette.types import ASGIApp

from autotune.dashboard.app import build_app
from autotune.dashboard.extras import Extras
from autotune.service.routes import JobRoutes
from autotune.service.settings import ServiceSettings
from autotune.service.visitors import GuardedSource, Visitors

SUMMARY = "Jobs, and the runs, trials and plans that they made."


def make_service(settings: ServiceSettings, wake: Callable[[], None]) -> ASGIApp:
    """Return the application.

    Args:
        settings: how jobs run.
        wake: called when there is something new for the loop.
    """
    source = GuardedSource(settings.storage)
    routes = JobRoutes(source=source, settings=settings, wake=wake)
    extras = Extras(routers=(routes.router,))
    return build_app(source, Visitors(settings.storage).gate, SUMMARY, extras)
