"""A store in memory: the seam's other side for tests that start hundreds of runs."""

import datetime as dt
from dataclasses import replace

from autotune.search_space.plan import Plan
from autotune.storage.records import NewRun, RunRecord, RunState, TrialRecord, Winner
from autotune.trials.result import Purpose, TrialResult

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


class MemoryStore:
    """Keeps one run."""

    def __init__(self) -> None:
        self._trials: dict[int, TrialRecord] = {}
        self._run: RunRecord | None = None

    def create_run(self, new: NewRun) -> RunRecord:
        self._run = RunRecord(
            id=1,
            name="run-1",
            new=new,
            state=RunState.RUNNING,
            used_s=0.0,
            created_at=NOW,
            finished_at=None,
            stop_reason=None,
            num_trials=0,
            winner=None,
        )
        return self._run

    def find_unfinished(self, key: str) -> RunRecord | None:
        return self._run

    def resume_run(self, run_id: int, *, budget_s: float, driver: str) -> RunRecord:
        self._trials = {n: t for n, t in self._trials.items() if t.result is not None}
        self._run = replace(self._run, state=RunState.RUNNING)
        return self._run

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
    ) -> None:
        assert number not in self._trials
        self._trials[number] = TrialRecord(
            run_id=run_id,
            number=number,
            plan=plan,
            purpose=purpose,
            reason=reason,
            started_at=NOW,
            finished_at=None,
            log_path=log_path,
            result=None,
            num_ranks=num_ranks,
        )

    def finish_trial(self, run_id: int, number: int, result: TrialResult, used_s: float) -> None:
        self._trials[number] = replace(self._trials[number], finished_at=NOW, result=result)
        self._run = replace(self._run, used_s=used_s)

    def finish_run(
        self,
        run_id: int,
        state: RunState,
        *,
        stop_reason: str,
        used_s: float,
        winner: Winner | None,
    ) -> None:
        self._run = replace(
            self._run, state=state, stop_reason=stop_reason, used_s=used_s, winner=winner
        )

    def runs(self, *, limit: int | None = None, offset: int = 0) -> list[RunRecord]:
        return ([self._run] if self._run else [])[offset:][:limit]

    def run(self, ref: str) -> RunRecord:
        return self._run

    def trials(self, run_id: int) -> list[TrialRecord]:
        return [self._trials[number] for number in sorted(self._trials)]

    def forget_after(self, number: int, used_s: float) -> None:
        """Leave the store as it was when trial `number` had just ended."""
        self._trials = {n: t for n, t in self._trials.items() if n <= number}
        self._run = replace(self._run, used_s=used_s, state=RunState.RUNNING, winner=None)

    def close(self) -> None:
        pass
