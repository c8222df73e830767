"""How a server runs jobs."""

import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.service.devices import Devices
from autotune.storage.job_records import JobRecord
from autotune.storage.sql import SqlStore, open_store

DEFAULT_FOLDER = "autotune-service"
"""The name of the folder of jobs, beside the store or in the working directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """How a server runs jobs.

    Attributes:
        storage: URL or path of the store; None: `autotune.db` here.
        folder: where the server keeps workloads and the jobs' output.
        devices: those that jobs may have.
        python: the interpreter for jobs that name none.
        ray_address: of a cluster that jobs run on; None: this machine.
        passed: variables of the server's environment that jobs inherit beside the usual ones.
        webhook: where to send a message when a job ends; None: nowhere.
        stand_in: returns the command to run in place of `autotune run`, given the job and its
            folder: for tests and benchmarks of the queue. None: `autotune run`.
        turns: the lock by which the server's threads take turns in writing to the store.
    """

    storage: str | None
    folder: Path
    devices: Devices
    python: str = sys.executable
    ray_address: str | None = None
    passed: tuple[str, ...] = ()
    webhook: str | None = None
    stand_in: Callable[[JobRecord, Path], Sequence[str]] | None = None
    turns: AbstractContextManager[Any] = field(default_factory=threading.Lock)

    def open_store(self) -> SqlStore:
        """Open the store for writing, in turns with the server's other threads."""
        return open_store(self.storage, turns=self.turns)

    @property
    def workloads(self) -> Path:
        """The folder of unpacked archives."""
        return self.folder / "workloads"

    def job_folder(self, job_id: int) -> Path:
        """Return the folder of a job's process and output."""
        return self.folder / "jobs" / str(job_id)
