"""Serves Optuna's own dashboard for a run's study, at the fixed paths that it uses."""

import re
from threading import Lock
from typing import Any

from a2wsgi import WSGIMiddleware
from anyio import to_thread
from fastapi import FastAPI
from fastapi.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from autotune.dashboard.problems import error_response, status_of
from autotune.dashboard.source import Source
from autotune.errors import AutotuneError

OPTUNA_PATHS = ("/dashboard", "/api/meta", "/api/studies", "/static/", "/csv/")
STUDY = re.compile(r"/dashboard/studies/(\d+)(?:/.*)?")
"""The addresses of studies; a study has the id of its run."""
DATA = re.compile(r"/api/studies/(\d+)(?:/.*)?")
"""The addresses that the page of a study asks again and again."""
MAX_TRIALS = 2000
"""The number of latest trials that are shown, as Optuna's dashboard sends all to the browser."""


class OptunaPages:
    """Optuna's dashboard, with a study of a run from the moment that a viewer opens it.

    Args:
        source: the store that has the runs.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._lock = Lock()
        self._studies: Any = None
        self._wsgi: Any = None
        self._built: set[int] = set()

    def add_to(self, app: FastAPI) -> None:
        """Add `/optuna/<run>`, which redirects to the run's study, and the paths of Optuna."""
        app.add_api_route("/optuna/{run}", self.show, include_in_schema=False)
        app.add_middleware(_OptunaRouter, pages=self)

    def show(self, run: str) -> RedirectResponse:
        """Redirect to the run's study."""
        with self._source.store() as store:
            return RedirectResponse(f"/dashboard/studies/{store.run(run).id}", 303)

    def _build(self, run: str) -> None:
        """Build the study from the run's trials so far."""
        with self._source.store() as store:
            record = store.run(run)
            numbers = store.statistics(record).latest(MAX_TRIALS)
            trials = store.some_trials(record.id, numbers)
        with self._lock:
            self._built.add(self._started().show(record, trials))

    def _started(self) -> Any:
        if self._studies is None:
            # These imports take a second, and most viewers never need them.
            import optuna_dashboard  # noqa: PLC0415

            from autotune.agent.study import Studies  # noqa: PLC0415

            self._studies = Studies()
            self._wsgi = WSGIMiddleware(optuna_dashboard.wsgi(self._studies.storage))
        return self._studies

    def _prepare(self, path: str) -> None:
        """Start Optuna's dashboard, and build the study whose page is opened."""
        if opened := STUDY.fullmatch(path):
            self._build(opened[1])
        elif (asked := DATA.fullmatch(path)) and int(asked[1]) not in self._built:
            self._build(asked[1])
        with self._lock:
            self._started()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on to Optuna's dashboard, if it only reads."""
        if scope["method"] not in {"GET", "HEAD"}:
            await error_response(405, "Optuna's dashboard is read-only here; use `GET`")(
                scope, receive, send
            )
            return
        try:
            await to_thread.run_sync(self._prepare, scope["path"])
        except AutotuneError as error:
            await error_response(status_of(error), str(error))(scope, receive, send)
            return
        await self._wsgi(scope, receive, send)


class _OptunaRouter:
    """ASGI middleware that sends requests for Optuna's paths to its dashboard."""

    def __init__(self, app: ASGIApp, pages: OptunaPages) -> None:
        self._app = app
        self._pages = pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on to Optuna's dashboard or to the application."""
        is_optunas = scope["type"] == "http" and scope["path"].startswith(OPTUNA_PATHS)
        await (self._pages if is_optunas else self._app)(scope, receive, send)
