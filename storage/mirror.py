"""Keeps what a run writes into its store in memory as well, for when the store fails."""

from collections.abc import Callable

from autotune.errors import StoreError
from autotune.search_space.plan import Plan
from autotune.storage.memory import MemoryStore
from autotune.storage.records import Promise, RunRecord, RunState, TrialRecord, Winner
from autotune.storage.store import RunLog, TrialStore
from autotune.trials.result import Purpose, TrialResult


class MirroredLog(RunLog):
    """The log of one run, in memory and in a store.

    The first write that the store refuses raises its StoreError; from then on all is written to
    memory alone, so that the run can conclude.

    Args:
        store: keeps the log beyond this process.
        run: as the store has it.
    """

    def __init__(self, store: TrialStore, run: RunRecord) -> None:
        self._store, self._run_id = store, run.id
        self._memory = MemoryStore.holding(run, store.trials(run.id))
        self._has_failed = False

    @property
    def run(self) -> RunRecord:
        """The run as it is now."""
        return self._memory.run(str(self._run_id))

    def trials(self, run_id: int) -> list[TrialRecord]:
        """See `RunLog`."""
        return self._memory.trials(run_id)

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
        """See `RunLog`."""

        def start_in(log: RunLog) -> None:
            log.start_trial(
                run_id,
                number,
                plan,
                purpose,
                reason,
                log_path,
                num_ranks=num_ranks,
                promise=promise,
            )

        self._write(start_in)

    def finish_trial(self, run_id: int, number: int, result: TrialResult, used_s: float) -> None:
        """See `RunLog`."""
        self._write(lambda log: log.finish_trial(run_id, number, result, used_s))

    def finish_run(
        self,
        run_id: int,
        state: RunState,
        *,
        stop_reason: str,
        used_s: float,
        winner: Winner | None,
    ) -> None:
        """See `RunLog`."""

        def finish_in(log: RunLog) -> None:
            log.finish_run(run_id, state, stop_reason=stop_reason, used_s=used_s, winner=winner)

        self._write(finish_in)

    def _write(self, write_to: Callable[[RunLog], None]) -> None:
        write_to(self._memory)
        if self._has_failed:
            return
        try:
            write_to(self._store)
        except StoreError:
            self._has_failed = True
            raise
