"""Chooses the next trial of a run: stages of the search first, then the ending."""

import math
from collections.abc import Sequence
from dataclasses import replace

from autotune.agent.conclusion.confirm import Ending
from autotune.agent.conclusion.quality import Contest
from autotune.agent.done import lengths_s
from autotune.agent.forecast.durations import uncached_s, wall_clock_s
from autotune.agent.forecast.speed import Forecast
from autotune.agent.history import SEARCH, History
from autotune.agent.journal import Journal
from autotune.agent.observer import Observer
from autotune.agent.proposal import Proposal
from autotune.agent.proposers.gate import TimeLeft
from autotune.agent.proposers.strategy import Unaffordable
from autotune.agent.settings import SearchSettings
from autotune.agent.stages import Stage
from autotune.agent.stopping import NOT_TRIED, nothing_promising
from autotune.clock import Budget
from autotune.search_space.knobs import is_compiled
from autotune.trials.cause import Cause
from autotune.trials.result import Purpose

_QUANTILE_95 = 1.645  # standard deviations: the one-sided 95 % quantile of the normal distribution
# Least seconds to count as a trial's expected length when it is given up for taking too long.
_LEAST_LENGTH_S = 20.0


_MAX_NOT_TRIED = 3  # plans that are named of those that were not tried for lack of time


class Agenda:
    """Chooses the trials of a run, one after the other.

    A killed run continues where it was: the next trial follows from the journal and the time left,
    and the stage from the trials in the journal.

    Args:
        stages: of the search, in their order; only plans of the last one's space can win.
        ending: chooses the trials after the search.
        journal: the trials so far.
        settings: limits and thresholds.
        budget: of the whole run.
        observer: is told why each stage ended.
    """

    def __init__(
        self,
        *,
        stages: tuple[Stage, ...],
        ending: Ending,
        journal: Journal,
        settings: SearchSettings,
        budget: Budget,
        observer: Observer,
    ) -> None:
        self._stages, self._ending, self._journal = stages, ending, journal
        self._contest = Contest(settings=settings)
        self._settings, self._budget, self._observer = settings, budget, observer
        self._num_ranks = stages[-1].space.num_ranks
        self._num_ended_stages = _num_ended_stages(stages, journal)
        self._num_failed_checks = self.history.verdicts.num_failed
        self._why_over = ""

    @property
    def history(self) -> History:
        """The trials of plans that can win, which have all devices of a trial."""
        return self._journal.history(self._num_ranks)

    def next(self, num_free: int) -> Proposal | None:
        """Return the trial to start now, None to wait for running ones or when the run is over.

        Search trials run side by side; trials of the ending run alone.

        Args:
            num_free: devices that no trial runs on.
        """
        while (stage := self._stage) is not None:
            if stage.space.num_ranks > num_free:
                return None
            proposal = stage.next(self._history_of(stage), self._time_left(stage))
            if proposal is not None:
                return replace(proposal, num_ranks=stage.space.num_ranks)
            if self._journal.running:
                return None
            self._end_stage(stage)
        if self._journal.running:
            return None
        proposal = None
        if self._remaining_s > 0:
            if self.history.verdicts.num_failed > self._num_failed_checks:
                return self._search_again(num_free)
            proposal = self._ending.next(self.history, self._remaining_s)
        proposal = proposal or self._contest.next(self.history, self._whole_remaining_s)
        return proposal and replace(proposal, num_ranks=self._num_ranks)

    def _search_again(self, num_free: int) -> Proposal | None:
        """Return a trial of the last stage, reopened because a numerics check failed after it."""
        self._num_failed_checks = self.history.verdicts.num_failed
        self._num_ended_stages = len(self._stages) - 1
        self._observer.on_note("a numerics check failed: the search goes on without what failed")
        return self.next(num_free)

    def limit(self, proposal: Proposal) -> tuple[float, Cause]:
        """Return the seconds after which a trial is ended, and the cause to give for that.

        Args:
            proposal: the trial that `next` has just returned.
        """
        history = self._journal.history(proposal.num_ranks)
        if proposal.purpose is Purpose.QUALITY:
            return max(0.0, self._whole_remaining_s), Cause.BUDGET_ENDED
        if proposal.purpose not in SEARCH:
            return max(0.0, self._remaining_s), Cause.BUDGET_ENDED
        if history.baseline is None:
            return self._until_search_ends
        # A stage's share of the time limits which trials it starts, not how long they run.
        usual_s = uncached_s(proposal.plan, history, self._ending.hardware)
        patience_s = self._settings.overrun * max(usual_s, _LEAST_LENGTH_S)
        if patience_s < self._search_s:
            return patience_s, Cause.TOO_SLOW
        ends_in_s, cause = self._until_search_ends
        if is_compiled(proposal.plan) and proposal.num_ranks == self._num_ranks:
            # What was compiled so far would be lost: only the time to measure it again is kept.
            again_s = self._ending.confirmable_s(proposal.plan, history)
            ends_in_s = max(ends_in_s, self._remaining_s - again_s)
        return ends_in_s, cause

    def interesting_above(self, proposal: Proposal) -> float | None:
        """Return the throughput below which a trial may stop early, None if it must not."""
        if proposal.purpose is Purpose.BASELINE or proposal.purpose not in SEARCH:
            return None
        history = self._journal.history(proposal.num_ranks)
        best = history.best
        return history.objective.interesting_above(
            history.figures(best),
            history.figures(history.baseline or best),
            self._racing_threshold(history),
        )

    def _racing_threshold(self, history: History) -> float:
        """Return the part of the best value below which a running trial stops early.

        It is lower if processes of one plan differ much: the best plan may have had a fast process
        and this trial a slow one.
        """
        deviation = Forecast(history, self._ending.hardware).process_std
        return min(self._settings.racing, math.exp(-_QUANTILE_95 * math.sqrt(2) * deviation))

    @property
    def why_over(self) -> str:
        """The reason for which the latest stage ended."""
        return self._why_over

    @property
    def _stage(self) -> Stage | None:
        """The current stage, None after the search; the last one until its baseline ran."""
        to_come = self._stages[self._num_ended_stages :]
        if to_come and self.history.baseline is None:
            return to_come[-1]
        return to_come[0] if to_come else None

    def _history_of(self, stage: Stage) -> History:
        return self._journal.history(stage.space.num_ranks)

    def _end_stage(self, stage: Stage) -> None:
        history, left = self._history_of(stage), self._time_left(stage)
        is_out_of_time = left.search_s < max(lengths_s(history.search), default=0.0)
        unaffordable = stage.strategy.unaffordable(history)
        untried = "nothing was left that the time would pay for"
        nothing = untried if unaffordable else nothing_promising(history)
        otherwise = self._used_up(stage) if is_out_of_time else nothing
        why = stage.why_over(history, left) or otherwise
        self._why_over = why + _not_tried(unaffordable, self._budget.total_s)
        self._num_ended_stages += 1
        self._observer.on_note(f"{stage.name} over: {why}")

    def _used_up(self, stage: Stage) -> str:
        if stage.share < 1:
            return f"their {stage.share:.0%} of the time for searching are used"
        budget = f"the budget of {self._settings.budget_s:.0f} s"
        if self._search_s < self._remaining_s:
            return f"the rest of {budget} is kept for measuring the best again"
        return f"{budget} is used, with no time left to measure the best again"

    def _time_left(self, stage: Stage) -> TimeLeft:
        return TimeLeft(
            search_s=self._stage_s(stage),
            large_gain_s=self._large_gain_s if stage is self._stages[-1] else None,
            total_s=self._remaining_s,
            ending_fits=self._ending.fits(self.history, self._remaining_s),
        )

    @property
    def _remaining_s(self) -> float:
        """Seconds left for trials of any kind but trainings to a target."""
        return self._whole_remaining_s - self._settings.quality_s

    @property
    def _whole_remaining_s(self) -> float:
        """Seconds left for trials, what is kept for trainings to a target included."""
        return self._budget.remaining_s - self._settings.teardown_s

    @property
    def _search_s(self) -> float:
        """Seconds left for search trials, less the reserve for the ending."""
        if self.history.baseline is None:
            return self._remaining_s
        return self._remaining_s - self._ending.reserve_s(self.history, self._remaining_s)

    @property
    def _large_gain_s(self) -> float:
        """Seconds left for a search trial with a large expected gain.

        Only the time to measure the leader again and check it is reserved.
        """
        return self._remaining_s - self._ending.leader_ending_s(self.history, self._remaining_s)

    @property
    def _until_search_ends(self) -> tuple[float, Cause]:
        """Seconds after which a running search trial is ended, and the cause that it ends with."""
        search_s = max(self._search_s, self._large_gain_s)
        ends_before = search_s < self._remaining_s
        return max(0.0, search_s), Cause.SEARCH_ENDED if ends_before else Cause.BUDGET_ENDED

    def _stage_s(self, stage: Stage) -> float:
        """Return the seconds left for a stage: its share of the search, less what it has used."""
        if stage is self._stages[-1]:
            return self._search_s
        used_s = wall_clock_s(self._history_of(stage), self._ending.hardware)
        return stage.share * (self._search_s + used_s) - used_s


def _num_ended_stages(stages: tuple[Stage, ...], journal: Journal) -> int:
    """Return how many stages are over: all before the latest that ran more than a baseline."""
    begun = {trial.num_ranks for trial in journal.done if trial.purpose is not Purpose.BASELINE}
    later = [n for n, stage in enumerate(stages) if stage.space.num_ranks in begun]
    return max(later, default=0)


def _not_tried(unaffordable: Sequence[Unaffordable], budget_s: float) -> str:
    """Return which plans were not tried for lack of time, and the budget that has time for them.

    That is rounded up to a minute. Each plan would be measured again if it was the best.
    """
    if not unaffordable:
        return ""
    shown = unaffordable[:_MAX_NOT_TRIED]
    words = "; ".join(plan.words for plan in shown)
    more = "; ..." if len(unaffordable) > len(shown) else ""
    enough_s = budget_s + sum(plan.trial_s for plan in shown) + max(p.trial_s for p in shown)
    return (
        f"; {NOT_TRIED}{words}{more}; --budget {math.ceil(enough_s / 60)}m has the time for these"
    )
