"""Runs trials through Ray: each rank in a fresh process, on the device of a slot actor."""

from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import ray
from ray.exceptions import RayError

from autotune.clock import Clock, SystemClock
from autotune.dispatch.clusters import Cluster
from autotune.dispatch.job import Job
from autotune.dispatch.mark import new_token
from autotune.dispatch.runner import Finished
from autotune.dispatch.running import RunningRank, RunningTrial
from autotune.dispatch.slots import Slots, visible_devices
from autotune.dispatch.trial_log import log_path
from autotune.errors import ClusterError
from autotune.search_space.hardware import Hardware
from autotune.trials.cause import Cause
from autotune.trials.request import RankPlace, TrialRequest
from autotune.trials.result import Outcome, Phase

DEFAULT_ENTRY = "autotune.trials.rank:run_trial"
COMMAND_ENTRY = "autotune.trials.command.launch:run_command"
# For a slot to clean up: killing takes 10 s at most, waiting for device memory another 10 s.
CLEAN_UP_TIMEOUT_S = 25.0
CLOSE_TIMEOUT_S = 1.0  # for Ray to finish its start when the run ends meanwhile
MAX_POLL_S = 1.0  # between checks of deadlines and of Ray itself
PORT_TIMEOUT_S = 5.0  # for a slot to name a free port
ITEM_TIMEOUT_S = 5.0  # for an item that a slot has sent to come from its node
RAY_LOST = "Ray's own processes ended or no longer answer"
NO_ANSWER = f"what runs it did not answer within {CLEAN_UP_TIMEOUT_S:g} s and was started anew"


class RayRunner:
    """Runs each rank of a trial in a fresh process on its device.

    Use it as a context manager; trials that still run when it closes end when the cluster closes.

    Args:
        cluster: has one slot for each device; their number is the capacity.
        log_dir: the folder for the logs, `trial-<number>.log`; created when missing.
        entry: `module:function` that runs a rank in its process.
        clock: for durations and deadlines.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        log_dir: Path,
        entry: str = DEFAULT_ENTRY,
        clock: Clock | None = None,
    ) -> None:
        self._cluster = cluster
        self._log_dir = log_dir.absolute()
        self._entry = entry
        self._clock = clock or SystemClock()
        self._opening: Future[Slots] | None = None
        self._running: list[RunningTrial] = []

    @property
    def hardware(self) -> Hardware:
        """The hardware that trials run on."""
        return self._cluster.hardware

    @property
    def capacity(self) -> int:
        """The number of ranks that can run at the same time; less while nodes are lost."""
        opening = self._opening
        if opening is None or not opening.done() or opening.exception():
            return self._cluster.hardware.num_devices  # `submit` waits, or raises what went wrong
        return opening.result().num_open()

    def start(self) -> None:
        """Start Ray and return at once; `submit` waits for it. Optional."""
        if self._opening is not None:
            return
        self._log_dir.mkdir(parents=True, exist_ok=True)
        self._cluster.start()
        opener = ThreadPoolExecutor(1, thread_name_prefix="ray-start")
        self._opening = opener.submit(self._cluster.open_slots)
        opener.shutdown(wait=False)

    def submit(self, request: TrialRequest) -> None:
        """Start a trial on `request.place.world_size` free devices.

        Raises:
            RuntimeError: when fewer devices are free.
            ClusterError: when Ray did not start, or is lost.
        """
        asked_at = self._clock.now()
        slots = self._slots(request.give_up_after_s)
        if self._cluster.is_lost():
            raise ClusterError("the private Ray cluster is gone; type the same command to go on")
        self._cluster.restart_fork_server()
        slots.import_modules(self._cluster.imports)
        taken = {rank.slot for trial in self._running for rank in trial.ranks}
        chosen = slots.choose(taken, request.place.world_size)
        places = self._places(slots, chosen)
        started_at = self._clock.now()  # waiting for Ray to start is not the trial's time
        visible = visible_devices([slots[index].place for index in chosen])
        # A command starts its ranks by itself, on the cores of all of them.
        shared = frozenset().union(*(slots[index].cores for index in chosen))
        cores = None if request.command is None else shared
        ranks = [
            self._launch(replace(request, place=place), slots, index, devices, cores)
            for index, place, devices in zip(chosen, places, visible, strict=True)
        ]
        self._running.append(
            RunningTrial(request=request, ranks=ranks, asked_at=asked_at, started_at=started_at)
        )

    def _slots(self, timeout_s: float | None = None) -> Slots:
        self.start()
        assert self._opening is not None
        try:
            return self._opening.result(timeout_s)
        except TimeoutError as error:
            raise ClusterError(
                f"Ray did not start within the {timeout_s:.0f} s that were left for trials; "
                "look for processes that hang, or give a larger --budget"
            ) from error

    def _places(self, slots: Slots, chosen: list[int]) -> list[RankPlace]:
        """Return the place of each rank, numbered as torchrun does."""
        if len(chosen) == 1:
            return [RankPlace()]
        first = slots[chosen[0]]
        port = _free_port(first.actor)
        nodes = [slots[index].place.node_id for index in chosen]
        return [
            RankPlace(
                rank=rank,
                world_size=len(chosen),
                local_rank=nodes[:rank].count(node),
                local_world_size=nodes.count(node),
                master_addr=first.place.address,
                master_port=port,
            )
            for rank, node in enumerate(nodes)
        ]

    def _launch(
        self,
        request: TrialRequest,
        slots: Slots,
        index: int,
        devices: str | None,
        cores: frozenset[int] | None,
    ) -> RunningRank:
        slot, token = slots[index], new_token()
        log = log_path(self._log_dir, request.number, request.place.rank)
        job = Job(
            entry=self._entry if request.command is None else COMMAND_ENTRY,
            argument=request,
            log=str(log),
            token=token,
            cores=cores or slot.cores,
            visible_devices=devices,
        )
        stream = slot.actor.run.remote(job)
        return RunningRank(
            slot=index, token=token, log=log, stream=stream, phase_since=self._clock.now()
        )

    def wait(self, timeout_s: float) -> list[Finished]:
        """Wait up to `timeout_s` for a trial to end; return those that have ended, if any."""
        until = self._clock.now() + timeout_s
        while True:
            finished = self._poll(until)
            if finished or not self._running or self._clock.now() >= until:
                return finished

    def _poll(self, until: float) -> list[Finished]:
        """Enforce deadlines, wait for reports of the ranks, and return the trials that ended."""
        now = self._clock.now()
        for trial in self._running:
            self._enforce_deadline(trial, now)
            if self._cluster.is_lost():
                self._mark_lost(trial)
            elif self._is_stuck(trial, now):
                self._start_anew(trial, now)
        streams = {s: (t, r) for t in self._running for s, r in t.open_streams.items()}
        if streams:
            ready, _ = ray.wait(list(streams), timeout=self._poll_timeout_s(until))
            for stream in ready:
                self._receive(*streams[stream])
        return [self._finish(trial) for trial in list(self._running) if not trial.open_streams]

    def _poll_timeout_s(self, until: float) -> float:
        earliest = min([until, *(trial.deadline() for trial in self._running)])
        return min(max(earliest - self._clock.now(), 0.0), MAX_POLL_S)

    def _enforce_deadline(self, trial: RunningTrial, now: float) -> None:
        if now < trial.deadline():
            return
        if trial.kill_at is None:
            trial.expire(now)
        hung = trial.stopped is not None and trial.stopped.outcome is Outcome.TIMEOUT
        if hung and not trial.has_begun:
            self._cluster.kill_fork_server()
        for rank in trial.kill(now):
            actor = self._slots()[rank.slot].actor
            (actor.end_showing_stacks if hung else actor.end).remote(rank.token)

    def _is_stuck(self, trial: RunningTrial, now: float) -> bool:
        return trial.ended_since is not None and now > trial.ended_since + CLEAN_UP_TIMEOUT_S

    def _mark_lost(self, trial: RunningTrial) -> None:
        for rank in trial.open_streams.values():
            trial.mark_lost(rank, RAY_LOST, self._clock.now())

    def _start_anew(self, trial: RunningTrial, now: float) -> None:
        """Give up a trial whose end is not reported, and replace all that should report it."""
        self._cluster.kill_fork_server()
        for rank in trial.open_streams.values():
            trial.mark_unreported(rank, NO_ANSWER, now)
            self._slots().replace(rank.slot)

    def _receive(self, trial: RunningTrial, rank: RunningRank) -> None:
        now = self._clock.now()
        try:
            trial.receive(rank, ray.get(next(rank.stream), timeout=ITEM_TIMEOUT_S), now)
            self._cluster.trial_has_begun()
        except StopIteration:
            trial.mark_lost(rank, "its slot ended without a report", now)
        except RayError as error:
            trial.mark_lost(rank, str(error), now)
            if not self._cluster.is_lost():
                self._slots().replace(rank.slot)

    def _finish(self, trial: RunningTrial) -> Finished:
        self._running.remove(trial)
        return Finished(request=trial.request, result=trial.conclude(self._clock.now()))

    def phases(self) -> dict[int, Phase]:
        """Return the phase of each running trial, that of its first rank, by its number."""
        return {trial.request.number: trial.ranks[0].phase for trial in self._running}

    def cancel(self, number: int, cause: Cause) -> None:
        """Stop a running trial; `wait` returns it with the outcome `cancelled` and `cause`."""
        now = self._clock.now()
        for trial in self._running:
            if trial.request.number == number and trial.ended_since is None:
                trial.stop(Outcome.CANCELLED, cause.words, now, cause)
                self._enforce_deadline(trial, now)

    def drop(self) -> list[Finished]:
        """Return the trials that still run, as far as they came; see `Runner`."""
        for trial in self._running:
            self._mark_lost(trial)
        return [self._finish(trial) for trial in list(self._running)]

    def close(self) -> None:
        """Drop the running trials, which end when the cluster closes. Safe to call twice."""
        opening, self._opening = self._opening, None
        if opening is not None:
            wait_for([opening], CLOSE_TIMEOUT_S)
        self._running.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _free_port(actor: Any) -> int:
    try:
        port: int = ray.get(actor.free_port.remote(), timeout=PORT_TIMEOUT_S)
    except RayError:
        return 0  # the slot is lost, which the trial finds out when it starts
    return port
