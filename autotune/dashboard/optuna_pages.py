"""Optuna's own dashboard over a run's study, under the paths that it insists on."""

from threading import Lock
from typing import Any

from a2wsgi import WSGIMiddleware
from fastapi import FastAPI
from fastapi.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from autotune.dashboard.problems import answer
from autotune.dashboard.source import Source

OPTUNA_PATHS = ("/dashboard", "/api/meta", "/api/studies", "/static/", "/csv/")
MAX_TRIALS = 2000
"""Of a run in Optuna's dashboard, which sends all of them to the browser: the latest."""


class OptunaPages:
    """Builds a run's study when somebody asks for it.

    Args:
        source: the store of the runs.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._lock = Lock()
        self._studies: Any = None
        self._wsgi: Any = None

    def add_to(self, app: FastAPI) -> None:
        """Add `/optuna/<run>`, which leads to the study, and Optuna's own paths."""
        app.add_api_route("/optuna/{run}", self.show, include_in_schema=False)
        app.add_middleware(_Paths, pages=self)

    def show(self, run: str) -> RedirectResponse:
        """Build the run's study as it is now, and lead to it."""
        with self._source.store() as store:
            record = store.run(run)
            numbers = store.statistics(record).latest(MAX_TRIALS)
            trials = store.some_trials(record.id, numbers)
        with self._lock:
            study = self._started().show(record, trials)
        return RedirectResponse(f"/dashboard/studies/{study}", 303)

    def _started(self) -> Any:
        if self._studies is None:
            # A second of imports that most viewers never need.
            import optuna_dashboard  # noqa: PLC0415

            from autotune.agent.study import Studies  # noqa: PLC0415

            self._studies = Studies()
            self._wsgi = WSGIMiddleware(optuna_dashboard.wsgi(self._studies.storage))
        return self._studies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer as Optuna's dashboard does; it may read, no more."""
        if scope["method"] not in {"GET", "HEAD"}:
            await answer(405, "Optuna's dashboard only reads here")(scope, receive, send)
            return
        with self._lock:
            self._started()
        await self._wsgi(scope, receive, send)


class _Paths:
    """Gives Optuna's paths, whole, to its dashboard, and all others to the application."""

    def __init__(self, app: ASGIApp, pages: OptunaPages) -> None:
        self._app = app
        self._pages = pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or pass on."""
        is_optunas = scope["type"] == "http" and scope["path"].startswith(OPTUNA_PATHS)
        await (self._pages if is_optunas else self._app)(scope, receive, send)
