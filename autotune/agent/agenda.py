"""What a run does next: the stages of its search, then its ending, within the budget."""

import math
from dataclasses import replace

from autotune.agent.conclusion.confirm import Ending
from autotune.agent.done import lengths_s
from autotune.agent.forecast.durations import uncached_s, wall_clock_s
from autotune.agent.forecast.speed import Forecast
from autotune.agent.history import SEARCH, History
from autotune.agent.journal import Journal
from autotune.agent.observer import Observer
from autotune.agent.proposal import Proposal
from autotune.agent.proposers.gate import TimeLeft
from autotune.agent.settings import SearchSettings
from autotune.agent.stages import Stage
from autotune.agent.stopping import nothing_promising
from autotune.clock import Budget
from autotune.trials.cause import Cause
from autotune.trials.result import Purpose

_UNLUCKY = 1.645  # deviations below the mean; one plan of twenty is farther down
_SHORT_S = 20.0  # of a trial that is given up for being much longer than expected, at the least


class Agenda:
    """Chooses trials, one after the other.

    A killed run goes on where it was: what is next follows from the journal and the time left,
    the stage from the trials that there are.

    Args:
        stages: of the search, in their order; plans of the last one's space can win.
        observer: hears why each stage ended.
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
        self._settings, self._budget, self._observer = settings, budget, observer
        self._num_ranks = stages[-1].space.num_ranks
        self._num_over = _num_over(stages, journal)
        self._num_failed_checks = self.history.verdicts.num_failed
        self._why_over = ""

    @property
    def history(self) -> History:
        """What is known of the plans that can win."""
        return self._journal.history(self._num_ranks)

    def next(self, num_free: int) -> Proposal | None:
        """Return what to start now on the free devices, None while that waits or when all is done.

        Search trials run side by side, those of the ending alone.
        """
        while (stage := self._stage) is not None:
            if stage.space.num_ranks > num_free:
                return None
            proposal = stage.next(self._history_of(stage), self._left(stage))
            if proposal is not None:
                return replace(proposal, num_ranks=stage.space.num_ranks)
            if self._journal.running:
                return None
            self._end_stage(stage)
        if self._journal.running or self._end_s <= 0:
            return None
        if self.history.verdicts.num_failed > self._num_failed_checks:
            return self._search_on(num_free)
        proposal = self._ending.next(self.history, self._end_s)
        return proposal and replace(proposal, num_ranks=self._num_ranks)

    def _search_on(self, num_free: int) -> Proposal | None:
        """Search again, without what failed its numerics check since the search was over."""
        self._num_failed_checks = self.history.verdicts.num_failed
        self._num_over = len(self._stages) - 1
        self._observer.on_note("a numerics check failed: the search goes on without what failed")
        return self.next(num_free)

    def limit(self, proposal: Proposal) -> tuple[float, Cause]:
        """Return the seconds that a trial may take, which `next` has just proposed, and why."""
        history = self._journal.history(proposal.num_ranks)
        if proposal.purpose not in SEARCH:
            return max(0.0, self._end_s), Cause.BUDGET_ENDED
        if history.baseline is None:
            return self._until_search_ends
        # A stage's share decides what is begun in it, not when that ends.
        usual_s = uncached_s(proposal.plan, history, self._ending.hardware)
        patience_s = self._settings.overrun * max(usual_s, _SHORT_S)
        if patience_s < self._search_s:
            return patience_s, Cause.TOO_SLOW
        return self._until_search_ends

    def interesting_above(self, proposal: Proposal) -> float | None:
        """Return the throughput below which a trial cannot win and may stop, None: it may not."""
        if proposal.purpose is Purpose.BASELINE or proposal.purpose not in SEARCH:
            return None
        history = self._journal.history(proposal.num_ranks)
        best = history.best
        return history.objective.interesting_above(
            history.figures(best),
            history.figures(history.baseline or best),
            self._part_to_race(history),
        )

    def _part_to_race(self, history: History) -> float:
        """Return the part of the best that a plan must come to, unless luck may hide that it does.

        The best may have had a good process, and this one may be a bad one.
        """
        deviation = Forecast(history, self._ending.hardware).between_processes
        return min(self._settings.racing, math.exp(-_UNLUCKY * math.sqrt(2) * deviation))

    @property
    def why_over(self) -> str:
        """Why the last stage that ended did."""
        return self._why_over

    @property
    def _stage(self) -> Stage | None:
        """The stage that goes on; the baseline to compare with comes before them all."""
        to_come = self._stages[self._num_over :]
        if to_come and self.history.baseline is None:
            return to_come[-1]
        return to_come[0] if to_come else None

    def _history_of(self, stage: Stage) -> History:
        return self._journal.history(stage.space.num_ranks)

    def _end_stage(self, stage: Stage) -> None:
        history, left = self._history_of(stage), self._left(stage)
        is_out_of_time = left.search_s < max(lengths_s(history.search), default=0.0)
        unaffordable = stage.strategy.unaffordable(history)
        untried = "nothing was left that the time would pay for"
        nothing = untried if unaffordable else nothing_promising(history)
        otherwise = self._used_up(stage) if is_out_of_time else nothing
        why = stage.why_over(history, left) or otherwise
        self._why_over = why + _not_tried(unaffordable)
        self._num_over += 1
        self._observer.on_note(f"{stage.name} over: {self._why_over}")

    def _used_up(self, stage: Stage) -> str:
        if stage.share < 1:
            return f"their {stage.share:.0%} of the time for searching are used"
        used = f"the budget of {self._settings.budget_s:.0f} s is used"
        if self._search_s < self._end_s:
            return f"{used}, but for confirming"
        return f"{used} without time to confirm"

    def _left(self, stage: Stage) -> TimeLeft:
        return TimeLeft(
            search_s=self._stage_s(stage),
            large_gain_s=self._large_gain_s if stage is self._stages[-1] else None,
            total_s=self._end_s,
            ending_fits=self._ending.fits(self.history, self._end_s),
        )

    @property
    def _end_s(self) -> float:
        """Seconds left for trials of any kind."""
        return self._budget.remaining_s - self._settings.teardown_s

    @property
    def _search_s(self) -> float:
        """Seconds left for search trials, the reserve for the ending kept."""
        if self.history.baseline is None:
            return self._end_s
        return self._end_s - self._ending.reserve_s(self.history, self._end_s)

    @property
    def _large_gain_s(self) -> float:
        """Seconds left for a search trial that promises much: what an answer needs is kept."""
        return self._end_s - self._ending.bare_s(self.history, self._end_s)

    @property
    def _until_search_ends(self) -> tuple[float, Cause]:
        search_s = max(self._search_s, self._large_gain_s)
        ends_before = search_s < self._end_s
        return max(0.0, search_s), Cause.SEARCH_ENDED if ends_before else Cause.BUDGET_ENDED

    def _stage_s(self, stage: Stage) -> float:
        """Seconds left for a stage: its share of its own and the later ones', less those used."""
        if stage is self._stages[-1]:
            return self._search_s
        used_s = wall_clock_s(self._history_of(stage), self._ending.hardware)
        return stage.share * (self._search_s + used_s) - used_s


def _num_over(stages: tuple[Stage, ...], journal: Journal) -> int:
    """A stage is over once a later one has had a trial; baselines come before them all."""
    begun = {trial.num_ranks for trial in journal.done if trial.purpose is not Purpose.BASELINE}
    later = [n for n, stage in enumerate(stages) if stage.space.num_ranks in begun]
    return max(later, default=0)


def _not_tried(unaffordable: list[str]) -> str:
    if not unaffordable:
        return ""
    shown = "; ".join(unaffordable[:3]) + ("; ..." if len(unaffordable) > 3 else "")
    return f"; not tried for lack of time: {shown}"
