"""The loop that starts queued jobs, watches over running ones, and stores how they end."""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from autotune.clock import in_words
from autotune.errors import StoreError
from autotune.report.conclusion import headline
from autotune.report.reading import read_conclusion
from autotune.service.orders import order_for
from autotune.service.processes import JobProcess, Life, Look
from autotune.service.scheduler import Holding, Waiting, choose
from autotune.service.settings import ServiceSettings
from autotune.storage.driver import on_this_machine, this_driver
from autotune.storage.job_records import JobRecord, JobState
from autotune.storage.records import RunState
from autotune.storage.sql import SqlStore

logger = logging.getLogger(__name__)

TICK_S = 0.25
"""Seconds between two looks at the jobs."""
REST_S = 0.05
"""Seconds of rest after a look, so that many submissions at once are not slowed by looks."""
BEAT_S = 3.0
"""Seconds between two signs of life of the server in charge."""
HURRY_S, STOP_S = 30.0, 60.0
"""Seconds after which a job that was asked to end gets the second Ctrl-C, and then is killed."""
LATE_S, LATE_SHARE = 600.0, 0.5
"""A job is stopped when it is late by this much, and by this share of its budget."""
MAX_STARTS = 5
"""How often a job is started whose processes died without leaving an exit code."""
TAIL_BYTES = 8192
"""Bytes of a job's output in which its last message is looked for."""


class JobLoop:
    """Starts, watches and ends the jobs of a store. All its methods run in one thread.

    Args:
        store: open for writing, used by this loop alone.
        settings: how jobs run.
        ended: called with each job that has ended; must return at once.
    """

    def __init__(
        self, store: SqlStore, settings: ServiceSettings, ended: Callable[[JobRecord], None]
    ) -> None:
        self._store = store
        self._settings = settings
        self._ended = ended
        self._server = this_driver()
        self._processes: dict[int, JobProcess] = {}
        self._late: set[int] = set()

    def tick(self) -> None:
        """Look at each running job, and start those that wait and fit."""
        for job in self._store.jobs.jobs(states=[JobState.RUNNING]):
            self._watch(job)
        self._start_waiting()

    def _watch(self, job: JobRecord) -> None:
        if not on_this_machine(str(job.server)):
            self._give_up_elsewhere(job)
            return
        process = self._process(job.id)
        look = process.look()
        if look.life is Life.ENDED:
            self._finish(job, *self._how_it_ended(job, look))
        elif look.life is Life.GONE:
            self._go_on_without(job, process)
        elif look.life is Life.RUNNING:
            if look.process is not None and look.process != job.process:
                self._store.jobs.set_process(job.id, look.process)
            self._stop_if_due(job, process)

    def _process(self, job_id: int) -> JobProcess:
        if job_id not in self._processes:
            self._processes[job_id] = JobProcess(self._settings.job_folder(job_id))
        return self._processes[job_id]

    def _give_up_elsewhere(self, job: JobRecord) -> None:
        """End a job of another machine that somebody has cancelled; its processes are not here."""
        if job.cancelled_at is not None and _seconds_since(job.cancelled_at) > STOP_S:
            host = str(job.server).partition(":")[0]
            message = f"cancelled by {job.cancelled_by}; what runs of it on {host} is not stopped"
            self._finish(job, JobState.CANCELLED, None, message)

    def _stop_if_due(self, job: JobRecord, process: JobProcess) -> None:
        if job.cancelled_at is not None:
            self._stop(process, _seconds_since(job.cancelled_at), is_idle=job.run_id is None)
            return
        late_s = _seconds_since(job.started_at) - job.new.budget_s
        patience_s = max(LATE_S, LATE_SHARE * job.new.budget_s)
        if late_s > patience_s:
            self._note_late(job, late_s)
            self._stop(process, late_s - patience_s, is_idle=job.run_id is None)

    @staticmethod
    def _stop(process: JobProcess, since_s: float, *, is_idle: bool) -> None:
        """Let a job end that was first asked to `since_s` ago, in ever clearer words.

        Args:
            process: of the job.
            since_s: in seconds.
            is_idle: it has no run yet, and so nothing to keep.
        """
        if since_s > STOP_S:
            process.kill()
        elif since_s > HURRY_S or (is_idle and since_s > TICK_S):
            process.stop_at_once()
        else:
            process.stop()

    def _note_late(self, job: JobRecord, late_s: float) -> None:
        if job.id not in self._late:
            self._late.add(job.id)
            text = f"stopped by the server: {in_words(late_s)} above its budget"
            self._store.jobs.note(job.id, "stopping", text)

    def _go_on_without(self, job: JobRecord, process: JobProcess) -> None:
        """Queue a job again whose processes died, unless it is to end."""
        process.kill()
        if job.cancelled_by is not None:
            message = f"cancelled by {job.cancelled_by}; its processes were killed"
            self._finish(job, JobState.CANCELLED, None, message)
        elif self._is_run_done(job):
            self._finish(job, JobState.DONE, None, self._headline(job))
        elif job.id in self._late:
            message = "killed, as it went on long after its budget"
            self._finish(job, JobState.FAILED, None, message)
        elif job.num_starts >= MAX_STARTS:
            message = f"its processes died {job.num_starts} times without an exit code"
            self._finish(job, JobState.FAILED, None, message)
        else:
            self._processes.pop(job.id, None)
            self._store.jobs.queue_again(job.id, "its processes are gone; it goes on from there")

    def _is_run_done(self, job: JobRecord) -> bool:
        if job.run_id is None:
            return False
        return self._store.run(str(job.run_id)).state is RunState.DONE

    def _how_it_ended(self, job: JobRecord, look: Look) -> tuple[JobState, int | None, str]:
        code = look.exit_code
        if code == 0:
            return JobState.DONE, code, self._headline(job)
        if job.cancelled_by is not None:
            return JobState.CANCELLED, code, f"stopped by {job.cancelled_by}; {self._kept(job)}"
        if job.id in self._late:
            return JobState.FAILED, code, f"stopped long after its budget; {self._kept(job)}"
        return JobState.FAILED, code, self._why_failed(job.id, code)

    def _headline(self, job: JobRecord) -> str:
        if job.run_id is None:
            return "ended"
        conclusion = read_conclusion(self._store, self._store.run(str(job.run_id)))
        return "ended" if conclusion is None else headline(conclusion.verdict)

    def _kept(self, job: JobRecord) -> str:
        if job.run_id is None:
            return "nothing was measured yet"
        run = self._store.run(str(job.run_id))
        return f"{run.num_trials} trials are kept, {'and' if run.winner else 'but without'} a plan"

    def _why_failed(self, job_id: int, code: int | None) -> str:
        said = last_message(self._process(job_id).output)
        if said is not None:
            return said
        if code is not None and code < 0:
            return f"killed by signal {-code}; the end of its log may say why"
        return f"ended with exit code {code}; the end of its log may say why"

    def _finish(
        self, job: JobRecord, state: JobState, exit_code: int | None, message: str
    ) -> None:
        self._store.jobs.finish(job.id, state, exit_code=exit_code, message=message)
        self._processes.pop(job.id, None)
        self._late.discard(job.id)
        self._ended(self._store.jobs.job(str(job.id)))

    def _start_waiting(self) -> None:
        running = self._store.jobs.jobs(states=[JobState.RUNNING])
        holding = [_holding(job) for job in running if on_this_machine(str(job.server))]
        devices = self._settings.devices.ids
        if len(devices) <= sum(len(job.devices) for job in holding):
            return  # the queue, which may be long, need not be read
        waiting = [_waiting(job) for job in self._store.jobs.jobs(states=[JobState.QUEUED])]
        for start in choose(waiting, holding, devices, self._limits(), time.time()):
            if self._store.jobs.claim(start.job_id, start.devices, self._server):
                self._start(self._store.jobs.job(str(start.job_id)))

    def _limits(self) -> Mapping[str, int | None]:
        return {token.name: token.max_devices for token in self._store.tokens.all()}

    def _start(self, job: JobRecord) -> None:
        try:
            self._process(job.id).start(order_for(job, self._settings))
        except OSError as error:
            self._finish(job, JobState.FAILED, None, f"cannot be started: {error}")


def _waiting(job: JobRecord) -> Waiting:
    return Waiting(
        id=job.id,
        owner=job.new.owner,
        priority=job.new.priority,
        num_devices=job.new.num_devices,
        budget_s=job.new.budget_s,
        queued_at=job.created_at.timestamp(),
    )


def _holding(job: JobRecord) -> Holding:
    assert job.started_at is not None
    ends_at = job.started_at.timestamp() + job.new.budget_s
    return Holding(owner=job.new.owner, devices=job.devices, ends_at=ends_at)


def _seconds_since(moment: datetime | None) -> float:
    return 0.0 if moment is None else (datetime.now(UTC) - moment).total_seconds()


def last_message(output: Path) -> str | None:
    """Return the last message that autotune printed into a job's output; None: there is none."""
    with contextlib.suppress(FileNotFoundError), output.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
        lines = file.read().decode(errors="replace").splitlines()
        said = [line for line in lines if line.startswith("autotune: ")]
        return said[-1].removeprefix("autotune: ") if said else None
    return None


class LoopThread:
    """Runs a loop in a thread until it is ended, or the server is in charge no more.

    Args:
        open_loop: opens a store, and returns it with the loop on it; called in the thread.
        beat: says that the server lives; False where another one is in charge.
        lost: called when the thread ends by itself: another server is in charge, or it failed.
    """

    def __init__(
        self,
        open_loop: Callable[[], tuple[SqlStore, JobLoop]],
        beat: Callable[[], bool],
        lost: Callable[[], None],
    ) -> None:
        self._open_loop = open_loop
        self._beat = beat
        self._lost = lost
        self._wake = threading.Event()
        self._is_ending = False
        self._thread = threading.Thread(target=self._run, name="jobs", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """Look at the jobs at once: there may be a new one."""
        self._wake.set()

    def end(self) -> None:
        """End the thread after its present look; the jobs' processes go on."""
        self._is_ending = True
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            store, loop = self._open_loop()
            with contextlib.closing(store):
                self._go_round(loop)
        finally:  # also after a bug: a server that starts no jobs must not look as if it did
            if not self._is_ending:
                self._lost()

    def _go_round(self, loop: JobLoop) -> None:
        next_beat = time.monotonic()
        while not self._is_ending:
            try:
                if time.monotonic() >= next_beat:
                    if not self._beat():
                        return
                    next_beat = time.monotonic() + BEAT_S
                loop.tick()
            except StoreError as error:  # a database that restarts; jobs go on meanwhile
                logger.warning("%s", error)
            time.sleep(REST_S)
            self._wake.wait(TICK_S)
            self._wake.clear()
