"""A run of the command under watch: its processes by what they are, what it said, what it kept."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import psutil

REPOSITORY = Path(__file__).parents[1]
sys.path[:0] = [str(REPOSITORY)]

from autotune.dispatch.mark import NO_TRIAL  # noqa: E402
from autotune.dispatch.reaper import (  # noqa: E402
    RUN_VARIABLE,
    TRIAL_VARIABLE,
    find_processes,
    living_processes,
)
from autotune.errors import AutotuneError  # noqa: E402
from autotune.storage.sql import open_store  # noqa: E402

POLL_S = 0.05
HANG_S = 30.0  # beyond the budget; a run that still goes on hangs, and is killed
GONE_S = 10.0  # for the processes of a run to be gone after its end
BEGUN = "#  from"  # the heading above the trials: the probe of the workload is over
TRIAL_LINE = re.compile(r"^ {0,3}(\d+)  +(?:-|\d+)  ", re.MULTILINE)


class WatchedRun:
    """`autotune run` in a folder, its output in files beside it; a context manager that ends it.

    Args:
        folder: where the command is typed.
        words: what stands behind `run`.
        budget_s: of the run.
        roots: ids of processes beside the driver that start processes for the run.
    """

    def __init__(self, folder, words, budget_s, roots=()):
        self.folder, self.budget_s, self.roots = folder, budget_s, roots
        self.tokens = set()
        self.ended_at = None
        self.hung = False
        # Beside the folder, whose file system may be full or read-only.
        self._stderr = folder.with_name("stderr")
        with folder.with_name("stdout").open("w") as out, self._stderr.open("w") as err:
            self.process = subprocess.Popen(
                [*(sys.executable, "-m", "autotune", "run"), *words],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        self.started_at = time.monotonic()

    @property
    def pid(self):
        """The driver's process id."""
        return self.process.pid

    @property
    def goes_on(self):
        """Whether the driver still runs; notes when it ended."""
        if self.ended_at is None and self.process.poll() is not None:
            self.ended_at = time.monotonic()
        return self.ended_at is None

    @property
    def wall_s(self):
        """Seconds from the start of the command to its end, or until now."""
        return (self.ended_at or time.monotonic()) - self.started_at

    def wait_for(self, found):
        """Return the first true value of `found()`, None when the run has ended before."""
        while self.goes_on and self.wall_s < self.budget_s + HANG_S:
            if value := found():
                return value
            time.sleep(POLL_S)
        return None

    def wait_for_trials(self):
        """Wait until the first trial is about to begin."""
        self.wait_for(lambda: BEGUN in self.said)

    def wait(self):
        """Wait for the end; kill a run that hangs."""
        while self.goes_on and self.wall_s < self.budget_s + HANG_S:
            self._note_tokens()
            time.sleep(POLL_S)
        if self.goes_on:
            self.hung = True
            self.process.kill()
            self.process.wait()
            assert not self.goes_on

    @property
    def said(self):
        """What it wrote to stderr so far."""
        return self._stderr.read_text(errors="replace")

    def told_trials(self):
        """Return the numbers of the trials that it said had ended."""
        return {int(number) for number in TRIAL_LINE.findall(self.said)}

    def stored_trials(self):
        """Return the finished trials of the store by number; none when there is no store."""
        try:
            with closing(open_store(str(self.folder / "autotune.db"), read_only=True)) as store:
                trials = store.trials(store.run("last").id)
        except AutotuneError:
            return {}
        return {trial.number: trial for trial in trials if trial.result is not None}

    def processes(self):
        """Return all processes of the run, the driver first."""
        return [self.pid, *(p.pid for p in self._family() if p.pid != self.pid)]

    def ranks(self):
        """Return the processes that a fork server started for a trial."""
        servers = set(self.fork_servers())
        return [
            process.pid
            for process in self._family()
            if process.parent in servers
            and _variable(process.pid, TRIAL_VARIABLE) not in (None, NO_TRIAL)
        ]

    def loader_workers(self):
        """Return the loader workers of ranks."""
        ranks = set(self.ranks())
        return [process.pid for process in self._family() if process.parent in ranks]

    def fork_servers(self):
        """Return the fork servers; what they fork has the same command line."""
        servers = {p.pid: p.parent for p in self._family() if _is_fork_server(p.pid)}
        return [pid for pid, parent in servers.items() if parent not in servers]

    def slot_actors(self):
        """Return Ray's workers that are slot actors."""
        return self._named(lambda words: words[0].startswith("ray::SlotActor"))

    def raylets(self):
        """Return Ray's raylet."""
        return self._named(lambda words: Path(words[0]).name == "raylet")

    def control_stores(self):
        """Return Ray's control store (GCS)."""
        return self._named(lambda words: Path(words[0]).name == "gcs_server")

    def _named(self, is_it):
        return [p.pid for p in self._family() if (words := _command(p.pid)) and is_it(words)]

    def _family(self):
        """Return the processes that carry the run's mark, and those below the driver."""
        self._note_tokens()
        processes = living_processes()
        marked = set().union(*(find_processes(RUN_VARIABLE, token) for token in self.tokens))
        family = marked | self._below_roots(processes)
        return [processes[pid] for pid in sorted(family) if pid in processes]

    def _below_roots(self, processes):
        family = {self.pid, *self.roots}
        while children := {p.pid for p in processes.values() if p.parent in family} - family:
            family |= children
        return family

    def _note_tokens(self):
        """Note the run's token, which each of its processes has in its environment."""
        for pid in self._below_roots(living_processes()):
            if (token := _variable(pid, RUN_VARIABLE)) is not None:
                self.tokens.add(token)

    def leftovers(self):
        """Return the processes of the run that are still there some seconds after its end."""
        until = time.monotonic() + GONE_S
        while left := [
            pid for token in self.tokens for pid in find_processes(RUN_VARIABLE, token)
        ]:
            if time.monotonic() > until:
                break
            time.sleep(POLL_S)
        return left

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for token in self.tokens:
            for pid in find_processes(RUN_VARIABLE, token):
                os.kill(pid, signal.SIGKILL)


def _variable(pid, name):
    """Return a variable of a process's environment, None where it has none or is gone."""
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    start = f"{name}=".encode()
    return next((e[len(start) :].decode() for e in entries if e.startswith(start)), None)


def _command(pid):
    try:
        return psutil.Process(pid).cmdline()
    except psutil.Error:
        return []


def _is_fork_server(pid):
    return "autotune.dispatch.fork_server" in _command(pid)
