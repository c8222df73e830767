"""A store in the memory of one process, for tests and for runs that replay recorded trials."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Self

from autotune.search_space.plan import Plan
from autotune.storage.driver import state_now
from autotune.storage.naming import check_name, default_name, name_taken, no_such_run
from autotune.storage.records import (
    UNFINISHED,
    NewRun,
    Promise,
    RunRecord,
    RunState,
    TrialRecord,
    Winner,
)
from autotune.trials.result import Purpose, TrialResult


class MemoryStore:
    """A `TrialStore` whose runs are gone when its process ends; see there for the methods."""

    def __init__(self) -> None:
        self._runs: dict[int, RunRecord] = {}
        self._trials: dict[int, dict[int, TrialRecord]] = {}

    @classmethod
    def holding(cls, run: RunRecord, trials: Iterable[TrialRecord]) -> Self:
        """Return a store that holds a run of another store, with its trials."""
        store = cls()
        store._runs[run.id] = run
        store._trials[run.id] = {trial.number: trial for trial in trials}
        return store

    def create_run(self, new: NewRun) -> RunRecord:
        """Store a new run in state `running`.

        Raises:
            UsageError: when its name is taken, or reserved for the store.
        """
        check_name(new.name)
        for run in self._runs.values():
            if run.name == new.name:
                raise name_taken(new, run_id=run.id, key=run.new.key, state=run.state)
        run_id = len(self._runs) + 1
        self._trials[run_id] = {}
        self._runs[run_id] = RunRecord(
            id=run_id,
            name=new.name or default_name(run_id),
            new=new,
            state=RunState.RUNNING,
            used_s=0.0,
            created_at=datetime.now(UTC),
            finished_at=None,
            stop_reason=None,
            num_trials=0,
            winner=None,
        )
        return self._record(run_id)

    def find_unfinished(self, key: str, name: str | None = None) -> RunRecord | None:
        """Return the running or interrupted run with this key, of this name or else the latest."""
        found = [r for r in self._latest_first() if r.new.key == key and r.state in UNFINISHED]
        named = (run for run in found if run.name == name)
        run = next(named, next(iter(found), None))
        return None if run is None else self._record(run.id)

    def resume_run(self, run_id: int, *, budget_s: float, driver: str) -> RunRecord:
        """Make the run `running` under a new driver and drop its trials that were in flight."""
        ended = {n: t for n, t in self._trials[run_id].items() if t.result is not None}
        self._trials[run_id] = ended
        run = self._runs[run_id]
        self._runs[run_id] = replace(
            run,
            new=replace(run.new, budget_s=budget_s, driver=driver),
            state=RunState.RUNNING,
            finished_at=None,
            stop_reason=None,
        )
        return self._record(run_id)

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
        """Store a trial in flight, on `num_ranks` devices, with what is expected of it.

        Raises:
            ValueError: when the run has a trial of this number.
        """
        if number in self._trials[run_id]:
            raise ValueError(f"run {run_id} has a trial {number} already; give it another number")
        self._trials[run_id][number] = TrialRecord(
            run_id=run_id,
            number=number,
            plan=plan,
            purpose=purpose,
            reason=reason,
            started_at=datetime.now(UTC),
            finished_at=None,
            log_path=log_path,
            result=None,
            num_ranks=num_ranks,
            promise=promise,
        )

    def finish_trial(self, run_id: int, number: int, result: TrialResult, used_s: float) -> None:
        """Store how a trial ended, and the budget that the run has used by now."""
        trial = self._trials[run_id][number]
        ended = replace(trial, finished_at=datetime.now(UTC), result=result)
        self._trials[run_id][number] = ended
        self._runs[run_id] = replace(self._runs[run_id], used_s=used_s)

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
        self._runs[run_id] = replace(
            self._runs[run_id],
            state=state,
            stop_reason=stop_reason,
            used_s=used_s,
            winner=winner,
            finished_at=datetime.now(UTC),
        )

    def runs(self, *, limit: int | None = None, offset: int = 0) -> list[RunRecord]:
        """Return runs, newest first: all, or at most `limit` after leaving out `offset`."""
        return [self._record(run.id) for run in self._latest_first()][offset:][:limit]

    def run(self, ref: str) -> RunRecord:
        """Return the run with this id or name, `last` for the newest.

        Raises:
            NotFoundError: when there is none, with the nearest name.
        """
        for run in self._latest_first():
            if ref in ("last", str(run.id), run.name):
                return self._record(run.id)
        raise no_such_run(ref, [run.name for run in self._runs.values()], "this process's memory")

    def trials(self, run_id: int) -> list[TrialRecord]:
        """Return the trials of a run by number, their windows included."""
        return [trial for _, trial in sorted(self._trials[run_id].items())]

    def close(self) -> None:
        """Do nothing: what is in memory stays until the store itself is gone."""

    def _latest_first(self) -> Iterator[RunRecord]:
        return reversed(self._runs.values())

    def _record(self, run_id: int) -> RunRecord:
        """Return the run with its number of trials, and `killed` where its driver is gone."""
        run = self._runs[run_id]
        return replace(
            run,
            state=state_now(run.state, run.new.driver),
            num_trials=len(self._trials[run_id]),
        )
