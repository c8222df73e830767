"""Jobs as JSON documents, for the API, the client and the pages."""

from datetime import UTC, datetime
from typing import Any

from autotune.service.orders import WORKLOAD
from autotune.storage.access import AuditEntry
from autotune.storage.job_records import JobEvent, JobRecord, JobState


def job_view(job: JobRecord) -> dict[str, Any]:
    """Return a job; `waited_s` is as in `waited_s` below, `run` the id of its run."""
    new = job.new
    request = {name: value for name, value in new.request.items() if name != WORKLOAD}
    return {
        "id": job.id,
        "name": job.shown_name,
        "owner": new.owner,
        "state": job.state.value,
        "is_stopping": job.state is JobState.RUNNING and job.cancelled_by is not None,
        "priority": new.priority,
        "num_devices": new.num_devices,
        "devices": list(job.devices),
        "budget_s": new.budget_s,
        "workload": workload_words(request),
        "request": request,
        "run": job.run_id,
        "run_name": job.run_name,
        "created_at": _iso(job.created_at),
        "started_at": _iso(job.started_at),
        "finished_at": _iso(job.finished_at),
        "waited_s": waited_s(job),
        "num_starts": job.num_starts,
        "cancelled_by": job.cancelled_by,
        "exit_code": job.exit_code,
        "message": job.message,
    }


def workload_words(request: dict[str, Any]) -> str:
    """Return the workload of a request in a few words: `model.py`, or its command."""
    return str(request.get("model") or " ".join(request.get("command") or ()))


def waited_s(job: JobRecord) -> float:
    """Return the seconds from a job's submission to its latest start, to its end, or to now."""
    until = job.started_at or job.finished_at or datetime.now(UTC)
    return (until - job.created_at).total_seconds()


def event_view(event: JobEvent) -> dict[str, Any]:
    """Return an event of a job."""
    return {"id": event.id, "at": _iso(event.at), "kind": event.kind, "text": event.text}


def audit_view(entry: AuditEntry) -> dict[str, Any]:
    """Return what somebody did."""
    return {
        "at": _iso(entry.at),
        "who": entry.who,
        "action": entry.action,
        "about": entry.about,
    }


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
