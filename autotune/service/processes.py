"""Starts a job's process, finds it again after the server's death, stops it, ends all of it."""

import contextlib
import enum
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.dispatch.reaper import kill_all
from autotune.service.supervisor import (
    EXIT,
    JOB_VARIABLE,
    LOCK,
    ORDER,
    OUTPUT,
    PROCESS,
    write_json,
)
from autotune.storage.driver import lives, pid_of

START_S = 30.0
"""Seconds in which a job's process must have begun to watch; it takes a tenth of one."""


class Life(enum.Enum):
    """Whether a job's process is there."""

    STARTING = "starting"
    RUNNING = "running"
    ENDED = "ended"
    GONE = "gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a look at a job's folder shows.

    Attributes:
        life: `ended` where there is an exit code, `gone` where all trace of the process is lost.
        process: `host:pid:start-time` of the process that watches over the job; None: unknown.
        exit_code: of an `ended` job.
    """

    life: Life
    process: str | None = None
    exit_code: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a job's process is to run.

    Attributes:
        command: the program and its arguments.
        working_dir: where it runs.
        environment: all of its variables.
        cores: that it may use; empty: all.
    """

    command: Sequence[str]
    working_dir: Path
    environment: Mapping[str, str]
    cores: Sequence[int]


class JobProcess:
    """The process of one job, through its folder.

    Args:
        folder: of the job; it is made when the job starts.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self._child: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0

    @property
    def output(self) -> Path:
        """The file with what the job has printed."""
        return self.folder / OUTPUT

    def start(self, order: Order) -> None:
        """Start the job in a session of its own; where it runs already, nothing happens."""
        self.folder.mkdir(parents=True, exist_ok=True)
        environment = {**order.environment, JOB_VARIABLE: str(self.folder)}
        document = {
            "command": list(order.command),
            "working_dir": str(order.working_dir),
            "environment": environment,
            "cores": list(order.cores),
        }
        write_json(self.folder / ORDER, document)
        self._child = subprocess.Popen(  # noqa: S603  our own module
            [sys.executable, "-m", "autotune.service.supervisor", str(self.folder)],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._started_at = time.monotonic()

    def look(self) -> Look:
        """Return whether the job's process is there, and how it ended."""
        child_lives = self._child is not None and self._child.poll() is None
        locked = self._is_locked()
        # Read after the lock: whoever held it until a moment ago has written its exit code.
        ended = _read(self.folder / EXIT)
        if ended is not None and not locked:
            self._bury()
            return Look(life=Life.ENDED, exit_code=int(ended["exit_code"]))
        if locked:
            told = _read(self.folder / PROCESS)
            return Look(life=Life.RUNNING, process=None if told is None else told["process"])
        is_young = time.monotonic() - self._started_at < START_S
        return Look(life=Life.STARTING if child_lives and is_young else Life.GONE)

    def stop(self) -> None:
        """Send one Ctrl-C's worth: the job ends by itself and keeps what it has found."""
        self._signal(signal.SIGTERM)

    def stop_at_once(self) -> None:
        """Send the second Ctrl-C's worth: the job leaves what it does; the store has the rest."""
        self._signal(signal.SIGINT)

    def _signal(self, number: int) -> None:
        process = self.look().process
        if process is not None and lives(process):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid_of(process), number)

    def kill(self) -> bool:
        """Kill all processes of the job; False where some are left after ten seconds."""
        process = self.look().process
        session = None if process is None or not lives(process) else pid_of(process)
        is_done = kill_all(JOB_VARIABLE, str(self.folder), session)
        if is_done:
            self._bury()
        return is_done

    def _bury(self) -> None:
        """Take the exit code of a child that is ending."""
        if self._child is not None:
            self._child.wait()

    def _is_locked(self) -> bool:
        try:
            lock = os.open(self.folder / LOCK, os.O_RDWR)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False


def _read(path: Path) -> dict[str, str] | None:
    try:
        return dict(json.loads(path.read_text()))
    except FileNotFoundError:
        return None
