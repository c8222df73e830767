"""The JSON API under `/api/v1/`; its documents are those that commands print with `--json`."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import FileResponse, PlainTextResponse, Response
from pydantic import BaseModel, Field

from autotune.dashboard.source import Source
from autotune.dashboard.trial_files import TrialFiles
from autotune.errors import NotFoundError
from autotune.export.contents import read_plan_file
from autotune.export.plan_file import dump_plan
from autotune.report.as_json import query_view, run_view
from autotune.report.reading import read_run, read_trial, read_trials
from autotune.report.tables import csv_text
from autotune.storage.query import QueryResult, read_only_query

PREFIX = "/api/v1"
ALL_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]
MAX_PAGE = 1000  # items on a page
MAX_ROWS = 10_000  # of a query's result
MAX_TIMEOUT_S = 30.0  # of a query
MEDIA_TYPES = {"yaml": "application/yaml", "json": "application/json", "toml": "application/toml"}

Limit = Annotated[int, Query(ge=1, le=MAX_PAGE, description="Items on a page.")]
Offset = Annotated[int, Query(ge=0, description="Items before the page.")]
Format = Literal["yaml", "json", "toml"]


class Question(BaseModel):
    """A SELECT statement in the SQL of the database, with limits for its rows and time."""

    sql: str
    max_rows: int = Field(1000, ge=1, le=MAX_ROWS)
    timeout_s: float = Field(10.0, gt=0, le=MAX_TIMEOUT_S)


class Api:
    """The handlers of the API's routes, which read the store of `source`."""

    def __init__(self, source: Source) -> None:
        self._source = source

    @property
    def router(self) -> APIRouter:
        """The API's routes."""
        router = APIRouter(prefix=PREFIX)
        router.add_api_route("/runs", self.runs, tags=["runs"])
        router.add_api_route("/runs/{run}", self.run, tags=["runs"])
        router.add_api_route("/runs/{run}/trials", self.trials, tags=["trials"])
        router.add_api_route("/runs/{run}/trials/{number}", self.trial, tags=["trials"])
        files = TrialFiles(self._source)
        for name, handler in (("log", files.log), ("trace", files.trace)):
            router.add_api_route(
                f"/runs/{{run}}/trials/{{number}}/{name}",
                handler,
                tags=["trials"],
                response_class=FileResponse,
            )
        router.add_api_route(
            "/runs/{run}/plan", self.plan, tags=["plans"], response_class=PlainTextResponse
        )
        router.add_api_route("/query", self.query, methods=["POST"], tags=["query"])
        router.add_api_route(
            "/query.csv",
            self.query_as_csv,
            methods=["POST"],
            tags=["query"],
            response_class=PlainTextResponse,
        )
        router.add_api_route(
            "/{rest:path}", self.not_found, methods=ALL_METHODS, include_in_schema=False
        )
        return router

    def not_found(self, request: Request) -> None:
        """Refuse an unknown address under the API's prefix, which would else reach the pages."""
        asked = f"{request.method} {request.url.path}"
        raise NotFoundError(f"there is no {asked}; {PREFIX}/docs lists all routes")

    def runs(self, limit: Limit = 100, offset: Offset = 0) -> dict[str, Any]:
        """List runs in pages, newest first; `items` are as in `autotune runs --json`."""
        with self._source.store() as store:
            runs = store.runs(limit=limit, offset=offset)
            total = store.num_runs()
        items = [run_view(run) for run in runs]
        return {"total": total, "limit": limit, "offset": offset, "items": items}

    def run(self, run: str) -> dict[str, Any]:
        """Return a run (by id, name or `last`) as `autotune show RUN --json`."""
        with self._source.store() as store:
            return read_run(store, store.run(run))

    def trials(
        self,
        run: str,
        where: Annotated[
            str | None,
            Query(description="An SQL expression over trials_wide: `precision = 'bf16'`."),
        ] = None,
        sort: Annotated[
            str | None,
            Query(description="A column of trials_wide; `-` before it reverses the order."),
        ] = None,
        limit: Limit = 100,
        offset: Offset = 0,
    ) -> dict[str, Any]:
        """List a run's trials in pages; `items` are as in `autotune trials RUN --json`."""
        with self._source.store() as store:
            return read_trials(
                store, store.run(run), where=where, sort=sort, limit=limit, offset=offset
            )

    def trial(self, run: str, number: int) -> dict[str, Any]:
        """Return a trial as `autotune show RUN TRIAL --json`."""
        with self._source.store() as store:
            return read_trial(store, store.run(run), number)

    def plan(self, run: str, format: Format = "yaml", trial: int | None = None) -> Response:  # noqa: A002  the name users know from --format
        """Return the plan file of the winner or of a trial, as `autotune export` writes it."""
        with self._source.store() as store:
            file = read_plan_file(store, store.run(run), trial)
        return Response(dump_plan(file, format, f"plan.{format}"), media_type=MEDIA_TYPES[format])

    def query(self, question: Question) -> dict[str, Any]:
        """Run a statement that only reads; return `columns`, `rows` and `truncated`."""
        return query_view(self._ask(question))

    def query_as_csv(self, question: Question) -> Response:
        """Run a statement that only reads; return CSV with a header line."""
        result = self._ask(question)
        return Response(csv_text(result.columns, result.rows), media_type="text/csv")

    def _ask(self, question: Question) -> QueryResult:
        return read_only_query(
            self._source.url,
            question.sql,
            timeout_s=question.timeout_s,
            max_rows=question.max_rows,
        )
