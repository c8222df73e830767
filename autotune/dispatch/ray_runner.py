"""Runs trials through Ray: each rank in a fresh process beside the actor that keeps its device."""

from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import ray
from ray.exceptions import RayError

from autotune.clock import Clock, SystemClock
from autotune.dispatch.job import Job
from autotune.dispatch.mark import new_token
from autotune.dispatch.runner import Finished
from autotune.dispatch.running import RunningRank, RunningTrial
from autotune.dispatch.seats import Seats, visible_devices
from autotune.dispatch.site import Site
from autotune.dispatch.trial_log import log_path
from autotune.errors import ClusterError
from autotune.search_space.hardware import Hardware
from autotune.trials.cause import Cause
from autotune.trials.request import RankPlace, TrialRequest
from autotune.trials.result import Outcome

DEFAULT_ENTRY = "autotune.trials.rank:run_trial"
# Killing takes 10 s at most, and waiting for the device's memory as long again.
CLEAN_UP_TIMEOUT_S = 60.0
LONGEST_LOOK_S = 1.0
PORT_TIMEOUT_S = 10.0
GONE = "Ray's own processes ended or no longer answer"


class RayRunner:
    """Runs each rank of a trial in a fresh process on its device.

    Use it as a context manager; trials that still run when it is closed end with its site.

    Args:
        site: where trials run; its number of devices is the capacity.
        log_dir: where each trial's `trial-<number>.log` goes; created when missing.
        entry: `module:function` that runs a rank inside its process.
        clock: for durations and deadlines.
    """

    def __init__(
        self,
        site: Site,
        *,
        log_dir: Path,
        entry: str = DEFAULT_ENTRY,
        clock: Clock | None = None,
    ) -> None:
        self._site = site
        self._log_dir = log_dir.absolute()
        self._entry = entry
        self._clock = clock or SystemClock()
        self._opening: Future[Seats] | None = None
        self._running: list[RunningTrial] = []

    @property
    def hardware(self) -> Hardware:
        """What trials run on."""
        return self._site.hardware

    @property
    def capacity(self) -> int:
        """How many ranks may run at the same time; fewer while nodes are lost."""
        opening = self._opening
        if opening is None or not opening.done() or opening.exception():
            return self._site.hardware.num_devices  # `submit` waits, or says what is wrong
        return opening.result().num_open()

    def start(self) -> None:
        """Begin to open the site and return at once; `submit` waits for it. Optional."""
        if self._opening is not None:
            return
        self._log_dir.mkdir(parents=True, exist_ok=True)
        self._site.start()
        opener = ThreadPoolExecutor(1, thread_name_prefix="ray-start")
        self._opening = opener.submit(self._site.open)
        opener.shutdown(wait=False)

    def submit(self, request: TrialRequest) -> None:
        """Start a trial on as many free devices as its place says that it has ranks.

        Raises:
            RuntimeError: when fewer devices are free.
            ClusterError: when Ray did not start, or is gone.
        """
        seats = self._seats()
        self._site.revive()
        seats.preload(self._site.imports)
        taken = {rank.seat for trial in self._running for rank in trial.ranks}
        chosen = seats.choose(taken, request.place.world_size)
        places = self._places(seats, chosen)
        started_at = self._clock.now()  # waiting for Ray to start is not the trial's time
        visible = visible_devices([seats[index].place for index in chosen])
        ranks = [
            self._launch(replace(request, place=place), seats, index, devices)
            for index, place, devices in zip(chosen, places, visible, strict=True)
        ]
        self._running.append(RunningTrial(request=request, ranks=ranks, started_at=started_at))

    def _seats(self) -> Seats:
        self.start()
        assert self._opening is not None
        seats = self._opening.result()
        if self._site.is_lost():
            raise ClusterError("the private Ray cluster is gone; type the same command to go on")
        return seats

    def _places(self, seats: Seats, chosen: list[int]) -> list[RankPlace]:
        """Return where each rank is among the others, as torchrun would tell it."""
        if len(chosen) == 1:
            return [RankPlace()]
        first = seats[chosen[0]]
        port = _free_port(first.slot)
        nodes = [seats[index].place.node_id for index in chosen]
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
        self, request: TrialRequest, seats: Seats, index: int, devices: str | None
    ) -> RunningRank:
        seat, token = seats[index], new_token()
        log = log_path(self._log_dir, request.number, request.place.rank)
        job = Job(
            entry=self._entry,
            argument=request,
            log=str(log),
            token=token,
            cores=seat.cores,
            visible_devices=devices,
        )
        stream = seat.slot.run.remote(job)
        return RunningRank(
            seat=index, token=token, log=log, stream=stream, phase_since=self._clock.now()
        )

    def wait(self, timeout_s: float) -> list[Finished]:
        """Return the trials that ended, waiting up to `timeout_s` for the first; may be empty."""
        until = self._clock.now() + timeout_s
        while True:
            finished = self._look(until)
            if finished or not self._running or self._clock.now() >= until:
                return finished

    def _look(self, until: float) -> list[Finished]:
        """Take in what has happened, or the first thing that happens before `until`."""
        now = self._clock.now()
        for trial in self._running:
            self._keep_deadlines(trial, now)
            if self._site.is_lost() or self._is_stuck(trial, now):
                self._lose(trial)
        speakers = {s: (t, r) for t in self._running for s, r in t.waits_for.items()}
        if speakers:
            ready, _ = ray.wait(list(speakers), timeout=self._look_s(until))
            for stream in ready:
                self._listen(*speakers[stream])
        return [self._finished(trial) for trial in list(self._running) if not trial.waits_for]

    def _look_s(self, until: float) -> float:
        earliest = min([until, *(trial.deadline() for trial in self._running)])
        return min(max(earliest - self._clock.now(), 0.0), LONGEST_LOOK_S)

    def _keep_deadlines(self, trial: RunningTrial, now: float) -> None:
        if now < trial.deadline():
            return
        if trial.kill_at is None:
            trial.expire(now)
        hung = trial.stopped is not None and trial.stopped.outcome is Outcome.TIMEOUT
        for rank in trial.kill(now):
            slot = self._seats()[rank.seat].slot
            (slot.end_showing_stacks if hung else slot.end).remote(rank.token)

    def _is_stuck(self, trial: RunningTrial, now: float) -> bool:
        return trial.over_since is not None and now > trial.over_since + CLEAN_UP_TIMEOUT_S

    def _lose(self, trial: RunningTrial) -> None:
        for rank in trial.waits_for.values():
            trial.lose(rank, GONE, self._clock.now())

    def _listen(self, trial: RunningTrial, rank: RunningRank) -> None:
        now = self._clock.now()
        try:
            trial.hear(rank, ray.get(next(rank.stream)), now)
        except StopIteration:
            trial.lose(rank, "it ended without a word", now)
        except RayError as error:
            trial.lose(rank, str(error), now)
            if not self._site.is_lost():
                self._seats().replace(rank.seat)

    def _finished(self, trial: RunningTrial) -> Finished:
        self._running.remove(trial)
        return Finished(request=trial.request, result=trial.conclude(self._clock.now()))

    def cancel(self, number: int, cause: Cause) -> None:
        """End a running trial; it comes back from `wait` as `cancelled`, with `cause`."""
        now = self._clock.now()
        for trial in self._running:
            if trial.request.number == number and trial.over_since is None:
                trial.stop(Outcome.CANCELLED, cause.words, now, cause)
                self._keep_deadlines(trial, now)

    def close(self) -> None:
        """Forget what runs; its site ends it. Safe to call twice."""
        opening, self._opening = self._opening, None
        if opening is not None:
            wait_for([opening])
        self._running.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _free_port(slot: Any) -> int:
    try:
        port: int = ray.get(slot.free_port.remote(), timeout=PORT_TIMEOUT_S)
    except RayError:
        return 0  # the slot is lost, as its trial is about to hear
    return port
