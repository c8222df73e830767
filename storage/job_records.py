"""Jobs of the search service as plain values."""

import enum
from dataclasses import dataclass
from datetime import datetime
from typing import Any


class JobState(enum.Enum):
    """Where a job is.

    `queued` -> `running` -> `done` (the run reached a conclusion), `failed` or `cancelled` (what
    was found is kept). A queued job can be cancelled, too. A running job whose processes died
    together with its server is `queued` again, and goes on with its run.
    """

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDED = (JobState.DONE, JobState.FAILED, JobState.CANCELLED)
"""The states that a job does not leave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """A job that is to be queued.

    Attributes:
        key: chosen by the sender, unique: a job that is sent again with its key is not a new one.
        name: for people; None: there is none.
        owner: the name of the token that it came with.
        priority: jobs of a larger one start first.
        num_devices: devices that it holds while it runs.
        budget_s: wall clock of its run.
        request: the workload, the options of `autotune run` and the Python environment, as JSON.
    """

    key: str
    name: str | None
    owner: str
    priority: int
    num_devices: int
    budget_s: float
    request: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """A job as it is stored.

    Attributes:
        new: what was asked.
        run_name: the name of its run.
        run_id: of its run; None before the run is in the store.
        devices: the ids of those that it holds, or held last.
        server: `host:pid:start-time` of the server that started it last.
        process: the same of the process that watches over it; None before that is known.
        num_starts: how often it was started; more than 1 after its processes died.
        cancelled_by: the token's name; None: nobody has cancelled it.
        exit_code: of `autotune run`; None while it runs, and where it is not known.
        message: why it failed, or what its end means.
    """

    id: int
    new: NewJob
    state: JobState
    run_name: str
    run_id: int | None
    devices: tuple[str, ...]
    server: str | None
    process: str | None
    num_starts: int
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    cancelled_by: str | None
    cancelled_at: datetime | None
    exit_code: int | None
    message: str | None

    @property
    def shown_name(self) -> str:
        """The name that its sender gave, or else that of its run."""
        return self.new.name or self.run_name


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent:
    """Something that happened to a job; `id` grows with time."""

    id: int
    at: datetime
    kind: str
    text: str
