"""What keeps a proposal from being run, whoever proposed it."""

import enum
from dataclasses import dataclass

from autotune.agent.forecast.durations import bare_ending_s, expected_s
from autotune.agent.forecast.memory import cannot_fit
from autotune.agent.forecast.prospects import cannot_win
from autotune.agent.forecast.soundness import chance_to_run
from autotune.agent.history import History
from autotune.agent.settings import SearchSettings
from autotune.search_space.hardware import Hardware
from autotune.search_space.plan import Plan

_WORTH_A_TRIAL = 0.2  # probability that a plan runs at all
# Expected gain of the log value that the whole time left must be worth, were it spent on trials
# like this one. Of fourteen trials on unseen models that promised 1 % with a summed probability of
# 4, none gained; where a trial takes a hundredth of the time left, it may promise that little.
_WORTH_ALL_TIME = 0.05
# Expected gain of the log value from which a trial may cost the baseline its second measurement.
_BOLD = 0.05


class Objection(enum.Enum):
    """Why a plan is not run now."""

    TRIED = "it was tried"
    FAILURE = "what failed before would fail again"
    MEMORY = "it cannot fit in memory"
    NUMERICS = "a check showed that it, or one like it, trains another model"
    OBJECTIVE = "it cannot be better than the best one"
    TIME = "the time left cannot pay for it"
    WORTH = "it promises too little for the part of the time left that it takes"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLeft:
    """Seconds left.

    Attributes:
        search_s: for search trials, with the leader's ending kept.
        total_s: for everything that is still to run.
        bold_s: for a search trial that promises much: of the leader's ending only what an answer
            needs is kept. None: as `search_s`.
        ending_fits: whether a plan as long as the baseline can be measured again and checked.
    """

    search_s: float
    total_s: float
    bold_s: float | None = None
    ending_fits: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """The rules that every search trial must pass."""

    settings: SearchSettings
    hardware: Hardware

    def objection(
        self,
        plan: Plan,
        history: History,
        left: TimeLeft,
        least_s: float = 0.0,
        gain: float | None = None,
    ) -> Objection | None:
        """Return why a plan may not run now, None where it may.

        Args:
            plan: proposed.
            history: what is known.
            left: the time left.
            least_s: what its trial takes at the least.
            gain: the gain of the log value that is expected of it; None: nobody looked.
        """
        trial_s = max(least_s, expected_s(plan, history, self.hardware))
        known = self._known_objection(plan, history)
        if known is None and gain is not None and not _is_worth(gain, trial_s, left):
            return Objection.WORTH
        is_bold = (gain or 0.0) >= _BOLD and left.bold_s is not None
        allowed_s = left.bold_s if is_bold else left.search_s
        fits = trial_s <= (allowed_s or 0.0) and self._ending_fits(plan, history, left, trial_s)
        return known or (None if fits else Objection.TIME)

    def _known_objection(self, plan: Plan, history: History) -> Objection | None:
        """Return what the trials so far say against the plan."""
        if plan in history.tried:
            return Objection.TRIED
        if chance_to_run(plan, history) < _WORTH_A_TRIAL:
            return Objection.FAILURE
        if cannot_fit(plan, history):
            return Objection.MEMORY
        if history.verdicts.rule_out(plan):
            return Objection.NUMERICS
        has_baseline = history.baseline is not None
        is_behind = has_baseline and cannot_win(plan, history, self.hardware)
        return Objection.OBJECTIVE if is_behind else None

    def _ending_fits(self, plan: Plan, history: History, left: TimeLeft, trial_s: float) -> bool:
        """Whether the plan can be measured again after its trial, while any plan could."""
        if not left.ending_fits or history.baseline is None:
            return True
        return trial_s + bare_ending_s(plan, history, self.hardware) <= left.total_s


def _is_worth(gain: float, trial_s: float, left: TimeLeft) -> bool:
    return gain >= _WORTH_ALL_TIME * trial_s / max(left.search_s, trial_s)
