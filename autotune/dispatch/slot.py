"""The keeper of a device: a light actor that starts its trials' processes and cleans up."""

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray.util import get_node_ip_address

from autotune.dispatch.death import host_oom_kills
from autotune.dispatch.forked import Forked, ForkServer
from autotune.dispatch.job import Exit, Failure, Job
from autotune.dispatch.machine import used_device_bytes
from autotune.dispatch.mark import Scope
from autotune.dispatch.parcel import Parcel, digest
from autotune.dispatch.reaper import TRIAL_VARIABLE, kill_all, send
from autotune.dispatch.trial_log import BoundedLog, take
from autotune.errors import ClusterError
from autotune.trials.result import Kept, Phase, TrialResult

MEMORY_WAIT_S = 10.0
MEMORY_SLACK_BYTES = 64 * 2**20
# What a process needs to write its stacks, also when it is busy swapping.
LAST_STACKS_S = 0.3
# How long a word to end a job that has not begun may go unnoticed.
LOOK_EVERY_S = 0.2
# A trial at a time, what it needs before it, and meanwhile those who may end it.
CONCURRENCY = {"trial": 1, "control": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPlace:
    """Where a slot is: Ray's node, the devices it owns there, and the cores of that machine."""

    node_id: str
    address: str
    visible_devices: str | None
    machine_cores: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Remains:
    """What was left of a rank when all its processes were gone.

    Attributes:
        log_tail: the end of its output.
        log: all of its output that was kept, where the driver's folder for it is not on this node.
        exit_code: of its process; negative: the signal; None: it never began.
        ended_at: when its process ended, in seconds of its node's wall clock; None: not known.
        oom_killed: the kernel killed something for lack of host memory meanwhile.
        leftover: what could not be cleaned up, in words.
    """

    log_tail: str = ""
    log: bytes | None = None
    exit_code: int | None = None
    ended_at: float | None = None
    oom_killed: bool = False
    leftover: str | None = None


Item = Phase | Kept | TrialResult | Failure | Remains


class Slot:
    """Owns a device in Ray's books; runs one process of one trial at a time."""

    def __init__(self, device_kind: str) -> None:
        cuda = device_kind == "cuda"
        # Ray sets it to the devices it gave us, renumbered to the user's own selection.
        self._devices = os.environ["CUDA_VISIBLE_DEVICES"] if cuda else None
        self._idle_bytes = self._used_bytes()
        self._server: ForkServer | None = None
        self._address = ""
        self._theirs: Path | None = None
        self._here = Path()
        self._lock = threading.Lock()
        self._sessions: dict[str, int] = {}
        self._ended: set[str] = set()

    def place(self) -> SlotPlace:
        """Return where this slot is."""
        return SlotPlace(
            node_id=ray.get_runtime_context().get_node_id(),
            address=str(get_node_ip_address()),  # type: ignore[no-untyped-call]
            visible_devices=self._devices,
            machine_cores=frozenset(os.sched_getaffinity(0)),
        )

    @ray.method(concurrency_group="trial")
    def open(self, token: str, cores: frozenset[int], address: str | None) -> None:
        """Get ready to fork on `cores`, from the server at `address` or one of its own.

        Args:
            token: marks what is started here.
            cores: those of this slot.
            address: of a server on this machine; None: start one.
        """
        if address is None:
            environment = users_environment()
            self._server = ForkServer(Scope(token), environment=environment, cores=cores)
            address = self._server.address
        self._address = address

    def digest(self, folder: str) -> str | None:
        """Return a hash of the Python files in `folder` on this node, None without it."""
        return digest(Path(folder))

    @ray.method(concurrency_group="trial")
    def unpack(self, folder: str, parcel: Parcel) -> None:
        """Keep the files of the driver's `folder` here, for trials that expect them there."""
        self._here = Path(self._address).with_name("workload")
        self._theirs = Path(folder)
        parcel.unpack(self._here)

    @ray.method(concurrency_group="trial")
    def prepare(self, modules: tuple[str, ...]) -> None:
        """Let a server of its own import `modules` ahead of the trials; errors do not matter."""
        if self._server is not None:
            self._server.prepare(modules)

    @ray.method(num_returns="streaming", concurrency_group="trial", max_task_retries=0)
    def run(self, job: Job) -> Iterator[Item]:
        """Yield what the job's process yields, then what remained of it."""
        if self._server is not None:
            self._server.revive()
        job, wanted_at = self._localised(job), job.log
        Path(job.log).unlink(missing_ok=True)
        log, oom_kills, remains = BoundedLog(Path(job.log)), host_oom_kills(), Remains()
        try:
            with Forked(self._address, job) as forked:
                for item in self._items(job, forked):
                    if isinstance(item, Exit):
                        remains = Remains(exit_code=item.code, ended_at=time.time())
                    else:
                        yield item
        except ClusterError as error:
            yield Failure(error=str(error), traceback="")
        remains = replace(remains, oom_killed=host_oom_kills() > oom_kills)
        remains = self._clean_up(job, log, remains)
        yield remains if job.log == wanted_at else replace(remains, log=take(log.path))

    def _localised(self, job: Job) -> Job:
        """Return the job with paths of this node, where they are not the driver's."""
        log = Path(job.log)
        if not (log.is_absolute() and log.parent.is_dir()):
            job = replace(job, log=str(Path(self._address).with_name(log.name)))
        if self._theirs is None:
            return job
        inside = Path(job.argument.workload_path).relative_to(self._theirs)
        working_dir = Path(job.argument.working_dir)
        argument = replace(
            job.argument,
            workload_path=str(self._here / inside),
            working_dir=str(working_dir if working_dir.is_dir() else self._here),
        )
        return replace(job, argument=argument)

    def _items(self, job: Job, forked: Forked) -> Iterator[Any]:
        """Yield the job's items; none when it is ended before it begins."""
        while not forked.is_begun(LOOK_EVERY_S):
            if job.token in self._ended:
                return
        self._note(job.token, forked.pid())
        yield from forked.items()

    def _note(self, token: str, session: int) -> None:
        with self._lock:
            self._sessions[token] = session
            ended = token in self._ended
        if ended:
            kill_all(TRIAL_VARIABLE, token, session)

    @ray.method(concurrency_group="control")
    def free_port(self) -> int:
        """Return a port of this node that nobody uses."""
        with socket.create_server(("", 0)) as server:
            port: int = server.getsockname()[1]
        return port

    @ray.method(concurrency_group="control")
    def end(self, token: str) -> None:
        """Kill the job marked with `token`, now or as soon as it begins."""
        kill_all(TRIAL_VARIABLE, token, self._end(token))

    @ray.method(concurrency_group="control")
    def end_showing_stacks(self, token: str) -> None:
        """Kill the job after its process has written the stacks of its threads to the log."""
        session = self._end(token)
        if session is not None:
            send(signal.SIGUSR2, [session])
            time.sleep(LAST_STACKS_S)
        kill_all(TRIAL_VARIABLE, token, session)

    def _end(self, token: str) -> int | None:
        with self._lock:
            self._ended.add(token)
            return self._sessions.get(token)

    def _clean_up(self, job: Job, log: BoundedLog, remains: Remains) -> Remains:
        with self._lock:
            session = self._sessions.pop(job.token, None)
        gone = kill_all(TRIAL_VARIABLE, job.token, session)
        free = self._wait_for_memory()
        log_tail = log.close()
        problems = ([] if gone else ["processes"]) + ([] if free else ["device memory"])
        leftover = " and ".join(problems) or None
        return replace(remains, log_tail=log_tail, leftover=leftover)

    def _wait_for_memory(self) -> bool:
        until = time.monotonic() + MEMORY_WAIT_S
        while self._used_bytes() > self._idle_bytes + MEMORY_SLACK_BYTES:
            if time.monotonic() > until:
                self._idle_bytes = self._used_bytes()
                return False
            time.sleep(0.02)
        self._idle_bytes = self._used_bytes()
        return True

    def _used_bytes(self) -> int:
        return 0 if self._devices is None else used_device_bytes(self._devices)


def users_environment() -> dict[str, str]:
    """Return this Ray worker's environment without what Ray set for its own sake."""
    rays = ("OMP_NUM_THREADS", "PYTHONBREAKPOINT", "CUDA_VISIBLE_DEVICES")
    return {name: value for name, value in os.environ.items() if name not in rays}
