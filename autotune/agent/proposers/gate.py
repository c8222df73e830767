"""What keeps a proposal from being run, whoever proposed it."""

import enum
from dataclasses import dataclass

from autotune.agent.forecast.durations import (
    compiler_is_known,
    expected_first_step_s,
    expected_s,
    least_ending_s,
)
from autotune.agent.forecast.memory import cannot_fit
from autotune.agent.forecast.prospects import cannot_win
from autotune.agent.forecast.soundness import chance_to_run
from autotune.agent.history import History
from autotune.agent.settings import SearchSettings
from autotune.search_space.hardware import Hardware
from autotune.search_space.knobs import is_compiled
from autotune.search_space.plan import Plan

_WORTH_A_TRIAL = 0.2  # probability that a plan runs at all


class Objection(enum.Enum):
    """Why a plan is not run now."""

    TRIED = "it was tried"
    FAILURE = "what failed before would fail again"
    MEMORY = "it cannot fit in memory"
    OBJECTIVE = "it cannot be better than the best one"
    TIME = "the time left cannot pay for it"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLeft:
    """Seconds left.

    Attributes:
        search_s: for search trials.
        total_s: for everything that is still to run.
        ending_fits: whether confirming and checking can be paid at all.
    """

    search_s: float
    total_s: float
    ending_fits: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """The rules that every search trial must pass."""

    settings: SearchSettings
    hardware: Hardware

    def objection(
        self, plan: Plan, history: History, left: TimeLeft, least_s: float = 0.0
    ) -> Objection | None:
        """Return why `plan`, whose trial takes `least_s` or more, may not run now, or None."""
        if plan in history.tried:
            return Objection.TRIED
        if chance_to_run(plan, history) < _WORTH_A_TRIAL:
            return Objection.FAILURE
        if cannot_fit(plan, history):
            return Objection.MEMORY
        if history.baseline is not None and cannot_win(plan, history, self.hardware):
            return Objection.OBJECTIVE
        return Objection.TIME if self._too_slow(plan, history, left, least_s) else None

    def _too_slow(self, plan: Plan, history: History, left: TimeLeft, least_s: float) -> bool:
        trial_s = max(least_s, expected_s(plan, history, self.hardware))
        if trial_s > left.search_s:
            return True
        # Of plans that can be confirmed and checked, one that cannot be is of no use.
        ending_s = least_ending_s(plan, history, self.hardware) if left.ending_fits else 0.0
        if trial_s + ending_s > left.total_s:
            return True
        if not is_compiled(plan) or compiler_is_known(plan, history):
            return False
        first_step_s = expected_first_step_s(plan, history, self.hardware)
        return self.settings.compile_patience * first_step_s > left.search_s
