"""What the objective expects of plans that were not measured: their speed, start-up and memory."""

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

_KNOWN_START, _COMPILED_BEFORE, _GUESSED_START = 0.05, 0.2, 0.5  # deviation of its logarithm
_LEAST_START = 0.5  # of an expected first step; it will hardly be shorter
_MORE_LIKELY, _SURE = 0.5, 0.95  # to be allowed to win; more is not worth another setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospect:
    """What a plan may be worth.

    Attributes:
        speed: its throughput.
        worth: its value by the objective, if it may win.
        allowed: probability that it may.
    """

    speed: Outlook
    worth: Outlook
    allowed: float

    @property
    def throughput(self) -> float:
        """Samples per second."""
        return self.speed.throughput

    @property
    def log(self) -> float:
        """The logarithm of the value, less for a plan that may not be allowed to win."""
        return self.worth.log + math.log(min(max(self.allowed, 1e-9) / _SURE, 1.0))

    @property
    def value(self) -> float:
        """The value by the objective, 0 where the plan will rather not be allowed to win."""
        return math.exp(self.worth.log) if self.allowed > _MORE_LIKELY else 0.0

    def gain(self, over: float) -> float:
        """Return the expected gain of the log value; over 0, where nothing may win, a chance."""
        return self.allowed * (self.worth.gain(over) if over else 1.0)

    def chance(self, over: float) -> float:
        """Return the probability of a value above `over`."""
        return self.allowed * (self.worth.chance(over) if over else 1.0)


class Prospects:
    """A forecast as the objective sees it.

    Args:
        history: with a baseline that ran.
    """

    def __init__(self, history: History, hardware: Hardware) -> None:
        assert history.baseline is not None
        self._history, self._hardware = history, hardware
        self._forecast = Forecast(history, hardware)
        self._baseline = history.figures(history.baseline)

    def of(self, plans: Sequence[Plan], beside: Plan | None = None) -> list[Prospect]:
        """Return the prospect of each plan; `beside` as in `Forecast.of`."""
        speeds = self._forecast.of(plans, beside)
        return [self._weighed(plan, speed) for plan, speed in zip(plans, speeds, strict=True)]

    def _weighed(self, plan: Plan, speed: Outlook) -> Prospect:
        weighed = self._history.objective.weigh(self._expected(plan, speed), self._baseline)
        worth = Outlook(log=weighed.log, spread=weighed.spread)
        return Prospect(speed=speed, worth=worth, allowed=weighed.allowed)

    def _expected(self, plan: Plan, speed: Outlook) -> Expected:
        objective = self._history.objective
        if objective.weighs_start:
            start_s, start_spread = expected_start(plan, self._history, self._hardware)
            return Expected(speed=speed, start_s=start_s, start_spread=start_spread)
        if not objective.weighs_memory:
            return Expected(speed=speed)
        peak = expected_peak(plan, self._history, self._hardware)
        if peak is None:
            return Expected(speed=speed)
        return Expected(speed=speed, log_memory=peak[0], memory_spread=peak[1])


def expected_start(plan: Plan, history: History, hardware: Hardware) -> tuple[float, float]:
    """Return the expected start-up in seconds, and the deviation of its logarithm."""
    known_s = history.start_ups.of(plan)
    if known_s is not None:
        return known_s, _KNOWN_START
    first_step_s = expected_first_step_s(plan, history, hardware)
    compile_s = history.start_ups.compile_s(plan)
    start_s = history.start_ups.build_s() + max(first_step_s, compile_s or 0.0)
    if not is_compiled(plan):
        return start_s, _KNOWN_START
    is_known = compile_s is not None or compiler_is_known(plan, history)
    return start_s, _COMPILED_BEFORE if is_known else _GUESSED_START


def cannot_win(plan: Plan, history: History, hardware: Hardware) -> bool:
    """Whether the plan cannot be better than the best one, however fast it is.

    It needs no less memory where that is what counts, or its start-up alone takes longer than the
    whole training does with the best one.
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
