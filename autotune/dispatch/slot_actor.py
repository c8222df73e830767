"""The Ray actor of a slot: holds a device, runs trials' processes on it, and cleans up."""

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

from autotune.dispatch import workload_folder
from autotune.dispatch.death import host_oom_kills
from autotune.dispatch.fork_client import ForkedJob, ForkServerProcess
from autotune.dispatch.job import Exit, Failure, Job
from autotune.dispatch.machine import used_device_bytes
from autotune.dispatch.reaper import TRIAL_VARIABLE, kill_all, send_signal
from autotune.dispatch.run_resources import RunResources
from autotune.dispatch.trial_log import BoundedLog, read_and_remove
from autotune.dispatch.workload_folder import PackedFolder
from autotune.errors import ClusterError
from autotune.trials.result import Kept, Phase, TrialResult

MEMORY_WAIT_S = 10.0  # for the driver to free the device memory of killed processes
MEMORY_SLACK_BYTES = 64 * 2**20  # of device memory that may be in use more than before the trial
STACKS_WAIT_S = 0.3  # for a process to write the stacks of its threads, also when it swaps
CHECK_EVERY_S = 0.2  # whether a job that has not begun yet was ended
# Ray's concurrency groups: one trial at a time, and meanwhile the calls that end it.
CONCURRENCY = {"trial": 1, "control": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPlace:
    """The place of a slot: Ray's node, its devices there, and all cores of that machine.

    `visible_devices` is None without GPUs.
    """

    node_id: str
    address: str
    visible_devices: str | None
    machine_cores: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankExit:
    """How a rank's process ended; sent when all that it started is gone, too.

    Attributes:
        log_tail: the end of its output.
        log: its whole log, where the driver's log folder is not on this node; else None.
        exit_code: its exit status, or minus the number of the signal that killed it; None: it did
            not begin.
        ended_at: when it ended, in seconds of its node's wall clock; None: unknown.
        oom_killed: whether the kernel killed any process for lack of host memory meanwhile.
        leftover: what could not be cleaned up, in words; None: nothing.
    """

    log_tail: str = ""
    log: bytes | None = None
    exit_code: int | None = None
    ended_at: float | None = None
    oom_killed: bool = False
    leftover: str | None = None


# What a slot sends of a rank: its progress and result, and last how it ended.
Item = Phase | Kept | TrialResult | Failure | RankExit


class SlotActor:
    """An actor for which Ray reserves a device; it runs one process of one trial at a time."""

    def __init__(self, device_kind: str) -> None:
        cuda = device_kind == "cuda"
        # Ray sets this to the reserved devices, among those that the user made visible.
        self._devices = os.environ["CUDA_VISIBLE_DEVICES"] if cuda else None
        self._idle_bytes = self._used_bytes()
        self._server: ForkServerProcess | None = None
        self._fork_address = ""
        self._drivers_folder: Path | None = None
        self._folder_copy = Path()
        self._lock = threading.Lock()
        self._sessions: dict[str, int] = {}
        self._ended: set[str] = set()

    def place(self) -> SlotPlace:
        """Return the place of this slot."""
        return SlotPlace(
            node_id=ray.get_runtime_context().get_node_id(),
            address=str(get_node_ip_address()),  # type: ignore[no-untyped-call]
            visible_devices=self._devices,
            machine_cores=frozenset(os.sched_getaffinity(0)),
        )

    @ray.method(concurrency_group="trial")
    def open(self, token: str, cores: frozenset[int], address: str | None) -> None:
        """Prepare for jobs; to be called once, before all others.

        Args:
            token: put into the environment of the processes started here.
            cores: the CPU cores of this slot.
            address: of a fork server on this machine; None: start one.
        """
        if address is None:
            environment = users_environment()
            self._server = ForkServerProcess(
                RunResources(token), environment=environment, cores=cores
            )
            address = self._server.address
        self._fork_address = address

    def source_hash(self, folder: str) -> str | None:
        """Return a hash of the Python files below `folder` on this node; None: no such folder."""
        return workload_folder.source_hash(Path(folder))

    @ray.method(concurrency_group="trial")
    def unpack(self, folder: str, packed: PackedFolder) -> None:
        """Write a copy of the driver's `folder`; trials then find the workload in the copy."""
        self._folder_copy = Path(self._fork_address).with_name("workload")
        self._drivers_folder = Path(folder)
        packed.unpack(self._folder_copy)

    @ray.method(concurrency_group="trial")
    def import_modules(self, modules: tuple[str, ...]) -> None:
        """Import `modules` in this slot's own fork server, if any; errors are ignored."""
        if self._server is not None:
            self._server.import_modules(modules)

    @ray.method(num_returns="streaming", concurrency_group="trial", max_task_retries=0)
    def run(self, job: Job) -> Iterator[Item]:
        """Run a job: yield what its process yields, then its `RankExit`."""
        if self._server is not None:
            self._server.restart_if_unusable()
        job, drivers_log = self._localised(job), job.log
        Path(job.log).unlink(missing_ok=True)
        log, oom_kills, end = BoundedLog(Path(job.log)), host_oom_kills(), RankExit()
        try:
            with ForkedJob(self._fork_address, job) as forked:
                for item in self._items(job, forked):
                    if isinstance(item, Exit):
                        end = RankExit(exit_code=item.code, ended_at=time.time())
                    else:
                        yield item
        except ClusterError as error:
            yield Failure(error=str(error), traceback="")
        end = replace(end, oom_killed=host_oom_kills() > oom_kills)
        end = self._clean_up(job, log, end)
        is_local = job.log == drivers_log
        yield end if is_local else replace(end, log=read_and_remove(log.path))

    def _localised(self, job: Job) -> Job:
        """Return the job with paths of this node, where it lacks the driver's folders."""
        log = Path(job.log)
        if not (log.is_absolute() and log.parent.is_dir()):
            job = replace(job, log=str(Path(self._fork_address).with_name(log.name)))
        if self._drivers_folder is None:
            return job
        inside = Path(job.argument.workload_path).relative_to(self._drivers_folder)
        working_dir = Path(job.argument.working_dir)
        argument = replace(
            job.argument,
            workload_path=str(self._folder_copy / inside),
            working_dir=str(working_dir if working_dir.is_dir() else self._folder_copy),
        )
        return replace(job, argument=argument)

    def _items(self, job: Job, forked: ForkedJob) -> Iterator[Any]:
        """Yield what the job's process sends; nothing when `end` comes before it begins."""
        while not forked.has_begun(CHECK_EVERY_S):
            if job.token in self._ended:
                return
        self._begin(job.token, forked.pid())
        yield from forked.items()

    def _begin(self, token: str, session: int) -> None:
        with self._lock:
            self._sessions[token] = session
            ended = token in self._ended
        if ended:
            kill_all(TRIAL_VARIABLE, token, session)

    @ray.method(concurrency_group="control")
    def free_port(self) -> int:
        """Return a free TCP port of this node."""
        with socket.create_server(("", 0)) as server:
            port: int = server.getsockname()[1]
        return port

    @ray.method(concurrency_group="control")
    def end(self, token: str) -> None:
        """Kill the job with this token, now or as soon as it begins."""
        kill_all(TRIAL_VARIABLE, token, self._mark_ended(token))

    @ray.method(concurrency_group="control")
    def end_showing_stacks(self, token: str) -> None:
        """Kill the job, after its process has written the stacks of its threads to the log."""
        session = self._mark_ended(token)
        if session is not None:
            send_signal(signal.SIGUSR2, [session])
            time.sleep(STACKS_WAIT_S)
        kill_all(TRIAL_VARIABLE, token, session)

    def _mark_ended(self, token: str) -> int | None:
        """Return the session of the job's processes; None: it has not begun, and never will."""
        with self._lock:
            self._ended.add(token)
            return self._sessions.get(token)

    def _clean_up(self, job: Job, log: BoundedLog, end: RankExit) -> RankExit:
        with self._lock:
            session = self._sessions.pop(job.token, None)
        gone = kill_all(TRIAL_VARIABLE, job.token, session)
        free = self._wait_for_memory()
        log_tail = log.close()
        problems = ([] if gone else ["processes"]) + ([] if free else ["device memory"])
        leftover = " and ".join(problems) or None
        return replace(end, log_tail=log_tail, leftover=leftover)

    def _wait_for_memory(self) -> bool:
        """Return whether the device's memory is as free as before the trial, in time."""
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
    """Return this Ray worker's environment, without the variables that Ray sets in workers."""
    set_by_ray = ("OMP_NUM_THREADS", "PYTHONBREAKPOINT", "CUDA_VISIBLE_DEVICES")
    return {name: value for name, value in os.environ.items() if name not in set_by_ray}
