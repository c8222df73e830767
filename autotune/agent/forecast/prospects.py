"""Forecasts of a plan's value by the objective, from its speed, start-up and memory."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.agent.forecast.durations import compiler_is_known, expected_first_step_s
from autotune.agent.forecast.memory import expected_peak, needs_no_less
from autotune.agent.forecast.speed import Forecast, Outlook
from autotune.agent.history import History
from autotune.agent.objectives.objective import Expected
from autotune.search_space.hardware import Hardware
from autotune.search_space.knobs import is_compiled
from autotune.search_space.plan import Plan

# Standard deviation of the log of a start-up: measured or without compiling, of a compile mode and
# scope that was measured, and of one that was not.
_KNOWN_START_STD, _KNOWN_COMPILER_STD, _GUESSED_START_STD = 0.05, 0.2, 0.5
_LEAST_START = 0.5  # shortest start-up to be reckoned with, as a part of the expected one
_LIKELY_ALLOWED = 0.5  # probability of being allowed to win above which a forecast value counts
_SURELY_ALLOWED = 0.95  # probability of being allowed to win above which more is no advantage


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospect:
    """A plan's forecast: its throughput, its value, and whether it may win.

    Attributes:
        speed: forecast of its throughput.
        worth: forecast of its value by the objective, if it may win.
        allowed: probability that it may win, such as that it is fast enough.
    """

    speed: Outlook
    worth: Outlook
    allowed: float

    @property
    def throughput(self) -> float:
        """The expected samples per second."""
        return self.speed.throughput

    @property
    def log_mean(self) -> float:
        """The expected log value, lowered if the plan is not sure to be allowed to win."""
        return self.worth.log_mean + math.log(min(max(self.allowed, 1e-9) / _SURELY_ALLOWED, 1.0))

    @property
    def value(self) -> float:
        """The expected value by the objective, 0 if the plan is unlikely to be allowed to win."""
        return math.exp(self.worth.log_mean) if self.allowed > _LIKELY_ALLOWED else 0.0

    def gain(self, over: float) -> float:
        """Return the expected improvement of the log value over that of `over`.

        If `over` is 0, as no measured plan may win, return the probability that this one may.
        """
        return self.allowed * (self.worth.gain(over) if over else 1.0)

    def chance(self, over: float) -> float:
        """Return the probability of a value above `over`."""
        return self.allowed * (self.worth.chance(over) if over else 1.0)


class Prospects:
    """Forecasts of the value of plans by the objective of a run.

    Args:
        history: with a baseline that ran.
        hardware: the machine that trials run on.
    """

    def __init__(self, history: History, hardware: Hardware) -> None:
        assert history.baseline is not None
        self._history, self._hardware = history, hardware
        self._forecast = Forecast(history, hardware)
        self._baseline = history.figures(history.baseline)

    def of(self, plans: Sequence[Plan], beside: Plan | None = None) -> list[Prospect]:
        """Return the forecast of each plan; `beside` is as in `Forecast.of`."""
        speeds = self._forecast.of(plans, beside)
        return [self._weighed(plan, speed) for plan, speed in zip(plans, speeds, strict=True)]

    def _weighed(self, plan: Plan, speed: Outlook) -> Prospect:
        weighed = self._history.objective.weigh(self._expected(plan, speed), self._baseline)
        worth = Outlook(log_mean=weighed.log_mean, log_std=weighed.log_std)
        return Prospect(speed=speed, worth=worth, allowed=weighed.allowed)

    def _expected(self, plan: Plan, speed: Outlook) -> Expected:
        objective = self._history.objective
        if objective.weighs_start:
            start_s, start_log_std = expected_start(plan, self._history, self._hardware)
            return Expected(speed=speed, start_s=start_s, start_log_std=start_log_std)
        if not objective.weighs_memory:
            return Expected(speed=speed)
        peak = expected_peak(plan, self._history, self._hardware)
        if peak is None:
            return Expected(speed=speed)
        return Expected(speed=speed, memory_log_mean=peak[0], memory_log_std=peak[1])


def expected_start(plan: Plan, history: History, hardware: Hardware) -> tuple[float, float]:
    """Return the expected start-up in seconds, and the standard deviation of its log."""
    known_s = history.start_ups.of(plan)
    if known_s is not None:
        return known_s, _KNOWN_START_STD
    first_step_s = expected_first_step_s(plan, history, hardware)
    compile_s = history.start_ups.compile_s(plan)
    start_s = history.start_ups.build_s() + max(first_step_s, compile_s or 0.0)
    if not is_compiled(plan):
        return start_s, _KNOWN_START_STD
    is_known = compile_s is not None or compiler_is_known(plan, history)
    return start_s, _KNOWN_COMPILER_STD if is_known else _GUESSED_START_STD


def cannot_win(plan: Plan, history: History, hardware: Hardware) -> bool:
    """Whether the plan cannot be better than the best one, however fast it is.

    If memory is the objective, that is a plan which needs no less of it than the best one; if time
    to train is, one whose start-up alone takes longer than the best one's whole training.
    """
    objective, best = history.objective, history.best
    if history.value(best) <= 0.0:
        return False
    if objective.weighs_memory:
        return needs_no_less(plan, best.plan, history)
    train_s = objective.train_s(history.figures(best))
    if train_s is None:
        return False
    return _LEAST_START * expected_start(plan, history, hardware)[0] > train_s
