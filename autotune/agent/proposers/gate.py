"""The rules that every search trial must pass, whichever proposer it comes from."""

import enum
from dataclasses import dataclass, replace

from autotune.agent.conclusion.confirm import remeasure_and_check_s
from autotune.agent.forecast.durations import confirmation_s, expected_s
from autotune.agent.forecast.memory import cannot_fit
from autotune.agent.forecast.prospects import cannot_win
from autotune.agent.forecast.soundness import chance_to_run
from autotune.agent.history import History
from autotune.search_space.hardware import Hardware
from autotune.search_space.plan import Plan

_LEAST_CHANCE_TO_RUN = 0.2  # least probability of running without an error for a plan to be tried
# Least expected gain of the log value for a trial that takes all of the time left for searching;
# a trial that takes a part of it needs that part of the gain. On unseen models, none of fourteen
# trials gained whose probabilities of a 1 % gain added up to 4.
_LEAST_GAIN_FOR_ALL_TIME = 0.05
# Expected gain of the log value from which a trial may use the time that is kept for measuring the
# baseline again.
_LARGE_GAIN = 0.05
# Expected gain of the log value from which a trial may also use the time for the plan's check: the
# user then reads that it was not checked.
_VERY_LARGE_GAIN = 0.2


class Objection(enum.Enum):
    """The reasons for which a plan is not run now."""

    TRIED = "it was tried"
    FAILURE = "its settings failed before"
    MEMORY = "it cannot fit in memory"
    NUMERICS = "it, or a plan of the same precision, failed its numerics check"
    OBJECTIVE = "it cannot be better than the best one"
    TIME = "the time left cannot pay for it"
    WORTH = "its expected gain is too small for the part of the time left that it takes"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLeft:
    """The seconds left for trials.

    Attributes:
        search_s: for search trials, without the time reserved to confirm the best plan.
        total_s: for search, confirmation and checks together.
        large_gain_s: for a search trial with a large expected gain: only the time to measure the
            best plan once more and to check it is reserved. None: as `search_s`.
        ending_fits: whether a plan as slow as the baseline could still be tried, measured again
            and checked.
    """

    search_s: float
    total_s: float
    large_gain_s: float | None = None
    ending_fits: bool = True

    def after(self, trial_s: float) -> "TimeLeft":
        """Return what is left after a search trial of so many seconds."""
        large_gain_s = None if self.large_gain_s is None else self.large_gain_s - trial_s
        return replace(
            self,
            search_s=self.search_s - trial_s,
            total_s=self.total_s - trial_s,
            large_gain_s=large_gain_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """The rules that every search trial must pass."""

    hardware: Hardware

    def objection(
        self,
        plan: Plan,
        history: History,
        left: TimeLeft,
        least_s: float = 0.0,
        gain: float | None = None,
    ) -> Objection | None:
        """Return why a plan may not run now, None if it may.

        Args:
            plan: the proposed plan.
            history: the trials so far.
            left: the time left.
            least_s: a lower bound of its trial's wall clock.
            gain: its expected gain of the log value; None: the proposer did not compute it.
        """
        trial_s = max(least_s, expected_s(plan, history, self.hardware))
        known = self._known_objection(plan, history)
        if known is None and gain is not None and not _is_worth_its_time(gain, trial_s, left):
            return Objection.WORTH
        is_large = (gain or 0.0) >= _LARGE_GAIN and left.large_gain_s is not None
        allowed_s = left.large_gain_s if is_large else left.search_s
        fits = trial_s <= (allowed_s or 0.0) and self._ending_fits(
            plan, history, left, trial_s, checked=(gain or 0.0) < _VERY_LARGE_GAIN
        )
        return known or (None if fits else Objection.TIME)

    def _known_objection(self, plan: Plan, history: History) -> Objection | None:
        """Return the objection that follows from the trials so far, None if there is none."""
        if plan in history.tried:
            return Objection.TRIED
        if chance_to_run(plan, history) < _LEAST_CHANCE_TO_RUN:
            return Objection.FAILURE
        if cannot_fit(plan, history):
            return Objection.MEMORY
        if history.verdicts.rule_out(plan):
            return Objection.NUMERICS
        has_baseline = history.baseline is not None
        is_behind = has_baseline and cannot_win(plan, history, self.hardware)
        return Objection.OBJECTIVE if is_behind else None

    def _ending_fits(
        self, plan: Plan, history: History, left: TimeLeft, trial_s: float, *, checked: bool
    ) -> bool:
        """Whether time is left to measure the plan again after its trial, and to check it.

        True as well when even a plan as slow as the baseline would have no time for that.
        """
        if not left.ending_fits or history.baseline is None:
            return True
        ending_s = remeasure_and_check_s if checked else confirmation_s
        return trial_s + ending_s(plan, history, self.hardware) <= left.total_s


def _is_worth_its_time(gain: float, trial_s: float, left: TimeLeft) -> bool:
    return gain >= _LEAST_GAIN_FOR_ALL_TIME * trial_s / max(left.total_s, trial_s)
