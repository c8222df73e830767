"""Which of the waiting jobs start on which free devices.

Jobs start by priority, then by age. Waiting a day counts like one step of priority, so that a
stream of urgent jobs cannot hold others up for ever. The first job that needs more devices than
are free is given the moment at which enough will be; a later one may start before it only if it
ends by then, or leaves enough devices for it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

PRIORITY_STEP_S = 86_400.0
"""Seconds of waiting that count like one step of priority."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A job that waits; times are in seconds since the epoch."""

    id: int
    owner: str
    priority: int
    num_devices: int
    budget_s: float
    queued_at: float

    def urgency(self, now: float) -> float:
        """Return the priority, with the time that it has waited."""
        return self.priority + (now - self.queued_at) / PRIORITY_STEP_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A job that runs on devices, until about `ends_at`."""

    owner: str
    devices: tuple[str, ...]
    ends_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A job that starts now, and its devices."""

    job_id: int
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Promise:
    """From `at` on, `num_spare` devices are free beside those of the job that waits for it."""

    at: float
    num_spare: int


@dataclass(slots=True, kw_only=True)
class _Floor:
    """The devices, and the jobs that hold them."""

    devices: Sequence[str]
    holding: list[Holding]
    limits: Mapping[str, int | None]
    now: float
    starts: list[Start] = field(default_factory=list)

    @property
    def free(self) -> list[str]:
        taken = {device for job in self.holding for device in job.devices}
        return [device for device in self.devices if device not in taken]

    def is_within_limit(self, job: Waiting) -> bool:
        limit = self.limits.get(job.owner)
        held = sum(len(other.devices) for other in self.holding if other.owner == job.owner)
        return limit is None or held + job.num_devices <= limit

    def start(self, job: Waiting) -> None:
        devices = tuple(self.free[: job.num_devices])
        ends_at = self.now + job.budget_s
        self.holding.append(Holding(owner=job.owner, devices=devices, ends_at=ends_at))
        self.starts.append(Start(job_id=job.id, devices=devices))

    def promise(self, job: Waiting) -> _Promise | None:
        """Return when enough devices will be free for a job; None where there are too few."""
        num_free = len(self.free)
        for other in sorted(self.holding, key=lambda held: held.ends_at):
            num_free += len(other.devices)
            if num_free >= job.num_devices:
                at = max(other.ends_at, self.now)
                return _Promise(at=at, num_spare=num_free - job.num_devices)
        return None

    def fits(self, job: Waiting, promise: _Promise | None) -> bool:
        if job.num_devices > len(self.free):
            return False
        return promise is None or self.ends_by(job, promise) or self.is_spare(job, promise)

    def ends_by(self, job: Waiting, promise: _Promise) -> bool:
        return self.now + job.budget_s <= promise.at

    @staticmethod
    def is_spare(job: Waiting, promise: _Promise) -> bool:
        return job.num_devices <= promise.num_spare


def choose(
    waiting: Sequence[Waiting],
    holding: Sequence[Holding],
    devices: Sequence[str],
    limits: Mapping[str, int | None],
    now: float,
) -> list[Start]:
    """Return the jobs that start now, in order.

    Args:
        waiting: the jobs in the queue.
        holding: the jobs that run.
        devices: all devices, free or not.
        limits: most devices that an owner's jobs may hold together; None or missing: no limit.
        now: in seconds since the epoch.
    """
    floor = _Floor(devices=devices, holding=list(holding), limits=limits, now=now)
    promise: _Promise | None = None
    for job in sorted(waiting, key=lambda one: (-one.urgency(now), one.id)):
        if not floor.is_within_limit(job):
            continue  # it waits for jobs of its own owner, and holds up nobody else
        if floor.fits(job, promise):
            if promise is not None and not floor.ends_by(job, promise):
                num_spare = promise.num_spare - job.num_devices
                promise = _Promise(at=promise.at, num_spare=num_spare)
            floor.start(job)
        elif promise is None:
            promise = floor.promise(job)
    return floor.starts
