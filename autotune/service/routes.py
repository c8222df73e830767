"""The routes of the service under `/api/v1/`: jobs come in, are watched, and can be cancelled."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from uuid import uuid4

from anyio import to_thread
from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import FileResponse, PlainTextResponse, Response, StreamingResponse

from autotune.dashboard.api import MEDIA_TYPES, PREFIX, Format, Limit, Offset
from autotune.dashboard.source import Source
from autotune.errors import NotAllowedError, NotFoundError, UsageError
from autotune.export.contents import read_plan_file
from autotune.export.plan_file import dump_plan
from autotune.report.reading import read_run
from autotune.service.orders import WORKLOAD
from autotune.service.processes import JobProcess
from autotune.service.request import JobRequest
from autotune.service.settings import ServiceSettings
from autotune.service.stream import JobStream, Place
from autotune.service.uploads import Submission, read_form, submission_of
from autotune.service.views import audit_view, event_view, job_view
from autotune.service.visitors import require, visitor
from autotune.storage.access import Role, TokenRecord
from autotune.storage.job_records import JobRecord, JobState, NewJob

TAG = "jobs"
SUBMIT_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["job"],
                    "properties": {
                        "job": {"type": "string", "description": "The job as a JSON object."},
                        "archive": {
                            "type": "string",
                            "format": "binary",
                            "description": "The workload's folder, packed by `tar -czf`.",
                        },
                    },
                }
            },
            "application/json": {"schema": {"type": "object"}},
        },
    }
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRoutes:
    """The handlers of the routes.

    Attributes:
        source: opens the store.
        settings: how jobs run.
        wake: called when there is something new for the loop.
    """

    source: Source
    settings: ServiceSettings
    wake: Callable[[], None]

    @property
    def router(self) -> APIRouter:
        """The routes."""
        router = APIRouter(prefix=PREFIX, tags=[TAG])
        router.add_api_route("/jobs", self.jobs)
        router.add_api_route(
            "/jobs", self.submit, methods=["POST"], status_code=201, openapi_extra=SUBMIT_BODY
        )
        router.add_api_route("/jobs/{job}", self.job)
        router.add_api_route("/jobs/{job}/cancel", self.cancel, methods=["POST"])
        router.add_api_route("/jobs/{job}/stream", self.stream, response_class=StreamingResponse)
        router.add_api_route("/jobs/{job}/log", self.log, response_class=FileResponse)
        router.add_api_route("/jobs/{job}/plan", self.plan, response_class=PlainTextResponse)
        router.add_api_route("/jobs/{job}/report", self.report)
        router.add_api_route("/audit", self.audit)
        return router

    def jobs(
        self,
        state: Annotated[
            list[JobState] | None, Query(description="Only jobs in this state; may be repeated.")
        ] = None,
        limit: Limit = 100,
        offset: Offset = 0,
    ) -> dict[str, Any]:
        """List jobs in pages, newest first; `items` are as in `autotune jobs --json`."""
        states = state or list(JobState)
        with self.source.store() as store:
            found = store.jobs.jobs(states=states, limit=limit, offset=offset)
            counts = store.jobs.counts()
        total = sum(counts[one] for one in states)
        items = [job_view(job) for job in found]
        return {"total": total, "limit": limit, "offset": offset, "items": items}

    async def submit(self, request: Request) -> dict[str, Any]:
        """Queue a run. A job that is sent again with its `key` is not queued twice."""
        token = require(Role.SUBMIT)
        async with read_form(request) as form:
            return await to_thread.run_sync(self._submit, token, form)

    def _submit(self, token: TokenRecord, form: Mapping[str, Any]) -> dict[str, Any]:
        submission = submission_of(form, self.settings.workloads)
        try:
            num_devices = self._check(submission.request, token)
            with self.source.store_to_write() as store:
                job = store.jobs.add(_new_job(submission, token, num_devices))
                if not _is_its_own(job, submission):
                    submission.drop()  # an earlier request of the same key brought it
        except BaseException:
            submission.drop()
            raise
        self.wake()
        return job_view(job)

    def _check(self, request: JobRequest, token: TokenRecord) -> int:
        """Return how many devices a job needs.

        Raises:
            UsageError: when the server does not have them, or cannot run such a job.
            NotAllowedError: when the token does not allow them, or not as many hours.
        """
        devices = self.settings.devices
        needed = request.devices or devices.needed(int(request.options.get("gpus_per_trial", 1)))
        if needed > len(devices.ids):
            raise UsageError(
                f"the job needs {needed} devices and the server has {len(devices.ids)}; use fewer"
            )
        if token.max_devices is not None and needed > token.max_devices:
            raise NotAllowedError(
                f"the job needs {needed} devices and the token {token.name!r} allows "
                f"{token.max_devices}; use fewer"
            )
        if token.max_hours is not None and request.budget_s > 3600 * token.max_hours:
            raise NotAllowedError(
                f"the budget {request.budget} is longer than the {token.max_hours:g} h that the "
                f"token {token.name!r} allows; use a shorter one"
            )
        if request.command and self.settings.ray_address is not None:
            raise UsageError(
                "this server runs jobs on a Ray cluster, which takes a model.py and no command"
            )
        if request.python is not None and not Path(request.python).is_file():
            raise UsageError(f"the server sees no Python interpreter {request.python}")
        return needed

    def job(self, job: str) -> dict[str, Any]:
        """Return a job (by number, or `last`) with its events."""
        with self.source.store() as store:
            found = store.jobs.job(job)
            events = store.jobs.events(found.id)
        return {**job_view(found), "events": [event_view(event) for event in events]}

    def cancel(self, job: str) -> dict[str, Any]:
        """Cancel a job; what its run has found is kept. Others' jobs need `administer`."""
        return job_view(self.cancel_for(visitor(), job))

    def cancel_for(self, token: TokenRecord, job: str) -> JobRecord:
        """Cancel a job on behalf of a token.

        Raises:
            NotAllowedError: when the job is of somebody else and the token does not administer.
        """
        with self.source.store() as store:
            found = store.jobs.job(job)
        if not may_cancel(token, found):
            raise NotAllowedError(
                f"{found.run_name} belongs to {found.new.owner!r}; the token {token.name!r} may "
                f"{token.role.value}, and cannot cancel it"
            )
        with self.source.store_to_write() as store:
            cancelled = store.jobs.cancel(found.id, token.name)
        self.wake()
        return cancelled

    def stream(
        self,
        job: str,
        last_event_id: Annotated[
            str | None, Header(description="The id of the last event that was received.")
        ] = None,
    ) -> StreamingResponse:
        """Stream a job's events and output lines as server-sent events, until it has ended."""
        with self.source.store() as store:
            found = store.jobs.job(job)
        stream = JobStream(self.source, found.id, self._output(found))
        return StreamingResponse(
            stream.messages(Place.of(last_event_id)),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )

    def log(self, job: str, *, download: bool = False) -> FileResponse:
        """Return all that a job has printed; `download=true` lets a browser save it."""
        with self.source.store() as store:
            found = store.jobs.job(job)
        output = self._output(found)
        if not output.is_file():
            raise NotFoundError(f"{found.run_name} has printed nothing on this server")
        return FileResponse(
            output,
            media_type="text/plain; charset=utf-8",
            filename=f"{found.run_name}.log",
            content_disposition_type="attachment" if download else "inline",
        )

    def plan(self, job: str, format: Format = "yaml") -> Response:  # noqa: A002  the name users know from --format
        """Return the plan file that a job's run has found."""
        with self.source.store() as store:
            found = store.jobs.job(job)
            file = read_plan_file(store, store.run(str(_run_of(found))), None)
        text = dump_plan(file, format, f"plan.{format}")
        return Response(text, media_type=MEDIA_TYPES[format])

    def report(self, job: str) -> dict[str, Any]:
        """Return the run of a job, as `autotune show RUN --json`."""
        with self.source.store() as store:
            found = store.jobs.job(job)
            return read_run(store, store.run(str(_run_of(found))))

    def audit(self, limit: Limit = 100, offset: Offset = 0) -> dict[str, Any]:
        """List who did what, newest first; needs a token of `administer`."""
        require(Role.ADMINISTER)
        with self.source.store() as store:
            entries = store.audit.latest(limit=limit, offset=offset)
        return {"limit": limit, "offset": offset, "items": [audit_view(one) for one in entries]}

    def _output(self, job: JobRecord) -> Path:
        return JobProcess(self.settings.job_folder(job.id)).output


def may_cancel(token: TokenRecord, job: JobRecord) -> bool:
    """Return whether a token allows to cancel a job: its holder's own, or any to administer."""
    is_own = token.name == job.new.owner and token.role.includes(Role.SUBMIT)
    return is_own or token.role.includes(Role.ADMINISTER)


def _new_job(submission: Submission, token: TokenRecord, num_devices: int) -> NewJob:
    request = submission.request
    unpacked = {} if submission.workload is None else {WORKLOAD: submission.workload.name}
    return NewJob(
        key=f"{token.name}:{request.key or uuid4().hex}",
        name=request.name,
        owner=token.name,
        priority=request.priority,
        num_devices=num_devices,
        budget_s=request.budget_s,
        request={**request.to_dict(), **unpacked},
    )


def _is_its_own(job: JobRecord, submission: Submission) -> bool:
    workload = submission.workload
    return workload is None or job.new.request.get(WORKLOAD) == workload.name


def _run_of(job: JobRecord) -> int:
    if job.run_id is None:
        raise NotFoundError(
            f"{job.run_name} is {job.state.value} and has no run yet; `autotune watch {job.id}` "
            "shows what it does"
        )
    return job.run_id
