"""What a store of runs and trials must do.

`autotune.storage.sql` does it in SQLite and PostgreSQL, `autotune.storage.memory` in a process's
memory. `autotune.storage.testing` has the tests that every store must pass, also one of your own.
"""

from typing import Protocol

from autotune.search_space.plan import Plan
from autotune.storage.records import NewRun, Promise, RunRecord, RunState, TrialRecord, Winner
from autotune.trials.result import Purpose, TrialResult


class RunLog(Protocol):
    """What a run in progress reads and writes; see `TrialStore` for the rules."""

    def trials(self, run_id: int) -> list[TrialRecord]:
        """Return the trials of a run by number, their windows included."""

    def start_trial(
        self,
        run_id: int,
        number: int,
        plan: Plan,
        purpose: Purpose,
        reason: str,
        log_path: str,
        *,
        num_ranks: int = 1,
        promise: Promise | None = None,
    ) -> None:
        """Store a trial in flight, on `num_ranks` devices, with what is expected of it."""

    def finish_trial(self, run_id: int, number: int, result: TrialResult, used_s: float) -> None:
        """Store how a trial ended, and the budget that the run has used by now."""

    def finish_run(
        self,
        run_id: int,
        state: RunState,
        *,
        stop_reason: str,
        used_s: float,
        winner: Winner | None,
    ) -> None:
        """Store how the run ended and what it concluded, in place of an earlier conclusion."""


class TrialStore(RunLog, Protocol):
    """A store of runs and trials, with one writer (the driver of a run) and many readers.

    Every method is one transaction: when it returns, its data survives SIGKILL of the driver.
    Not thread-safe; each thread opens its own.

    Raises:
        StoreError: from any method, when the database cannot do what is asked.
    """

    def create_run(self, new: NewRun) -> RunRecord:
        """Store a new run in state `running`.

        Raises:
            UsageError: when its name is taken, or reserved for the store.
        """

    def find_unfinished(self, key: str, name: str | None = None) -> RunRecord | None:
        """Return the running or interrupted run with this key, of this name or else the latest."""

    def resume_run(self, run_id: int, *, budget_s: float, driver: str) -> RunRecord:
        """Make the run `running` under a new driver and drop its trials that were in flight."""

    def runs(self, *, limit: int | None = None, offset: int = 0) -> list[RunRecord]:
        """Return runs, newest first: all, or at most `limit` after leaving out `offset`."""

    def run(self, ref: str) -> RunRecord:
        """Return the run with this id or name, `last` for the newest.

        Raises:
            NotFoundError: when there is none, with the nearest name.
        """

    def close(self) -> None:
        """Close the connections."""
