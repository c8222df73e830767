"""The loop of a run: starts the trials that the agenda chooses, stores them, and ends in time."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from autotune.agent.agenda import Agenda
from autotune.agent.conclusion.conclude import unconfirmed
from autotune.agent.conclusion.confirm import Ending
from autotune.agent.conclusion.quality import conclude_by_quality
from autotune.agent.diagnosing import diagnosis_of
from autotune.agent.done import done_from_records
from autotune.agent.history import History
from autotune.agent.journal import Journal
from autotune.agent.observer import Observer
from autotune.agent.proposal import Proposal
from autotune.agent.proposers.baseline import check_baseline
from autotune.agent.proposers.earlier import EarlierBest
from autotune.agent.settings import SearchSettings
from autotune.agent.stages import stages_of
from autotune.agent.startup import MeasuredPlan
from autotune.clock import Budget
from autotune.dispatch.runner import Finished, Runner
from autotune.dispatch.trial_log import log_path
from autotune.errors import ClusterError, DiskFullError, ResourceError, StoreError
from autotune.search_space.space import Space
from autotune.storage.records import RunRecord, RunState, Winner
from autotune.storage.store import RunLog
from autotune.trials.cause import Cause
from autotune.trials.request import Deadlines, RankPlace, TrialRequest
from autotune.trials.result import Purpose, TrialResult

_POLL_S = 0.5  # seconds between two looks at whether the user stopped the run
_REPLACE_S = 20.0  # for lost devices to be replaced when none is left; Ray needs 7 s for one
_STOP_S = 5.0  # for trials to end when the user stops the run


class Search:
    """One run from its first trial, or from where it stopped, to its conclusion.

    Every decision is a function of the finished trials in the store and of the time left, so a
    run whose driver was killed goes on as if nothing had happened.

    Args:
        space: the space of plans that can win.
        runner: runs the trials; it has devices for one or more of them.
        store: keeps the trials and their results.
        run: the run's record in the store; new, or resumed with its trials.
        settings: limits and thresholds.
        budget: of the whole run, earlier sessions included.
        observer: is told of every trial.
        is_stopped: asked often; once it returns true, the run ends with the trials so far.
        log_dir: folder where the runner writes each trial's log.
        scouting: the space on one device if a trial has several; it is searched first.
        earlier: the best plans of earlier runs, to be measured first.
        compiled_earlier: measurements of earlier runs, whose kernels may still be in the
            compiler's cache.
    """

    def __init__(
        self,
        *,
        space: Space,
        runner: Runner,
        store: RunLog,
        run: RunRecord,
        settings: SearchSettings,
        budget: Budget,
        observer: Observer,
        is_stopped: Callable[[], bool],
        log_dir: Path,
        scouting: Space | None = None,
        earlier: Sequence[EarlierBest] = (),
        compiled_earlier: Sequence[MeasuredPlan] = (),
    ) -> None:
        self._runner, self._store, self._run = runner, store, run
        self._settings, self._budget, self._log_dir = settings, budget, log_dir
        self._observer, self._is_stopped = observer, is_stopped
        self._journal = Journal(
            (space,) if scouting is None else (scouting, space),
            settings.memory_cap_bytes(runner.hardware),
            done_from_records(store.trials(run.id)),
            settings.objective,
            compiled_earlier,
        )
        self._agenda = Agenda(
            stages=stages_of(space, scouting, settings, runner.hardware, earlier),
            ending=Ending(settings=settings, hardware=runner.hardware),
            journal=self._journal,
            settings=settings,
            budget=budget,
            observer=observer,
        )

    def run(self) -> Winner | None:
        """Search, confirm and conclude within the budget, and store how the run ended.

        Returns:
            The winner; not confirmed when the user stopped the run, None when they stopped it
            before a baseline was measured.

        Raises:
            WorkloadError: the baseline fails in the user's code.
            NothingRanError: not even a baseline could be measured.
            ResourceError: the store, the cluster or a disk failed; what was stored is kept, and
                the best so far is stored as a winner that is not confirmed.
        """
        try:
            self._loop()
            winner, state, reason = self._conclusion()
        except ResourceError as error:
            self._finish_early(error)
            raise
        except KeyboardInterrupt:
            self._finish(RunState.INTERRUPTED, "interrupted twice", None)
            raise
        except BaseException as error:
            self._finish(RunState.FAILED, str(error) or type(error).__name__, None)
            raise
        return self._finish(state, reason, winner)

    def _loop(self) -> None:
        self._fill()
        while self._journal.running:
            finished = self._runner.wait(_POLL_S)
            self._observer.on_phases(self._runner.phases())
            if not finished and self._budget.remaining_s <= 0:
                finished = self._runner.drop()
            self._collect(finished)
            if self._is_stopped():
                self._cancel_all()
            # The agenda's answer changes only when a trial ends.
            if finished:
                self._fill()

    def _fill(self) -> None:
        self._wait_for_devices()
        while not self._is_stopped():
            proposal = self._agenda.next(self._runner.capacity - self._journal.num_busy)
            if proposal is None:
                break
            self._submit(proposal)

    def _wait_for_devices(self) -> None:
        """Wait for lost devices to be replaced, while nothing runs and there is time for trials.

        Raises:
            ClusterError: when too few are left.
        """
        clock, needed = self._budget.clock, self._history.space.num_ranks
        until = clock.now() + _REPLACE_S
        while not (self._journal.running or self._is_stopped() or self._has_no_time):
            left = self._runner.capacity
            if left >= needed:
                return
            if clock.now() >= until:
                raise ClusterError(
                    f"the cluster has {left} device(s) left, fewer than the {needed} of a trial; "
                    "type the same command to go on when the lost ones are back"
                )
            clock.sleep(_POLL_S)

    @property
    def _has_no_time(self) -> bool:
        return self._budget.remaining_s <= self._settings.teardown_s

    def _submit(self, proposal: Proposal) -> None:
        limit = self._agenda.limit(proposal)
        number = self._journal.start(proposal)
        self._store.start_trial(
            self._run.id,
            number,
            proposal.plan,
            proposal.purpose,
            proposal.reason,
            str(log_path(self._log_dir, number)),
            num_ranks=proposal.num_ranks,
            promise=proposal.promise,
        )
        self._observer.on_submit(number, proposal)
        self._runner.submit(self._request(number, proposal, *limit))

    def _request(
        self, number: int, proposal: Proposal, give_up_after_s: float, give_up_cause: Cause
    ) -> TrialRequest:
        return TrialRequest(
            number=number,
            plan=proposal.plan,
            purpose=proposal.purpose,
            workload_path=self._run.new.workload_path,
            working_dir=str(Path.cwd()),
            device_kind=self._runner.hardware.device_kind,
            seed=self._settings.seed,
            protocol=self._settings.protocol,
            deadlines=self._deadlines(proposal),
            compare_with=proposal.compare_with,
            diagnosis=diagnosis_of(
                proposal,
                self._journal.history(proposal.num_ranks),
                self._settings.gain,
                self._budget.remaining_s,
            ),
            interesting_above=self._agenda.interesting_above(proposal),
            give_up_after_s=give_up_after_s,
            give_up_cause=give_up_cause,
            memory_limit_bytes=self._settings.max_memory_bytes,
            place=RankPlace(world_size=proposal.num_ranks),
            command=self._history.space.facts.command,
            arguments=self._history.space.facts.arguments,
            quality=proposal.quality,
            uneven_batches=self._history.space.facts.uneven_batches,
        )

    def _deadlines(self, proposal: Proposal) -> Deadlines:
        usual = Deadlines.within(self._settings.budget_s)
        if proposal.quality is None:
            return usual
        # It ends by itself, or with the budget.
        return replace(usual, measure_s=max(usual.measure_s, self._settings.budget_s))

    def _collect(self, finished: list[Finished]) -> None:
        """Store all finished trials, then raise an error if one of them ends the run."""
        trials = []
        for end in finished:
            number, result = end.request.number, end.result
            self._store.finish_trial(self._run.id, number, result, self._budget.used_s)
            proposal = self._journal.running[number]
            trials.append(self._journal.end(number, result))
            self._observer.on_finish(number, proposal, result)
        for trial in trials:
            self._check_disk(trial.result)
            is_compared = trial.num_ranks == self._history.space.num_ranks
            if trial.purpose is Purpose.BASELINE and is_compared and not self._is_stopped():
                check_baseline(trial, self._history, self._settings.budget_s)

    def _check_disk(self, result: TrialResult) -> None:
        """Raise an error if the disk is full, as all further trials would fail."""
        if result.cause is Cause.DISK_FULL:
            raise DiskFullError(
                f"a trial found its disk full ({result.error}); free some space where trials "
                f"write, as their logs do in {self._log_dir}, and type the same command again; "
                "finished trials are kept"
            )

    def _cancel_all(self) -> None:
        for number in self._journal.running:
            self._runner.cancel(number, Cause.USER_STOPPED)
        until = self._budget.clock.now() + _STOP_S
        while self._journal.running:
            is_late = self._budget.clock.now() > until
            self._collect(self._runner.drop() if is_late else self._runner.wait(_POLL_S))

    @property
    def _history(self) -> History:
        return self._agenda.history

    def _conclusion(self) -> tuple[Winner | None, RunState, str]:
        if not self._is_stopped():
            winner = conclude_by_quality(self._history, self._settings)
            return winner, RunState.DONE, self._agenda.why_over
        reason = "stopped by the user"
        if self._history.baseline is None:
            return None, RunState.INTERRUPTED, reason
        why = "not confirmed: the run was stopped; the same command goes on with it"
        return unconfirmed(self._history, why), RunState.INTERRUPTED, reason

    def _finish_early(self, failure: ResourceError) -> None:
        """Store the best so far as not confirmed; a store that has failed is not asked again."""
        found = self._history.baseline is not None
        why = f"not confirmed: {failure}"
        winner = unconfirmed(self._history, why) if found else None
        with contextlib.suppress(StoreError):
            self._finish(RunState.INTERRUPTED, str(failure), winner)

    def _finish(self, state: RunState, reason: str, winner: Winner | None) -> Winner | None:
        """Store how the run ended; return the winner with what disturbed the run."""
        told = winner and replace(winner, remarks=(*winner.remarks, *self._settings.disturbances))
        self._store.finish_run(
            self._run.id, state, stop_reason=reason, used_s=self._budget.used_s, winner=told
        )
        return told
