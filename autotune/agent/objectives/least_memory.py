"""The objective `memory`: the least memory at a given throughput."""

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from autotune.agent.objectives.objective import (
    Expected,
    Figures,
    Objective,
    ObjectiveName,
    Weighed,
)
from autotune.units import GIB, size_in_words

# Least ratio of the baseline's peak to a better plan's: on a CPU, peaks of one plan differ by so
# much between processes.
_CLEARLY_LESS = 1.02


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastMemory(Objective):
    """The smallest peak of memory among the plans that are fast enough.

    Attributes:
        min_throughput: least samples per second over all ranks, or None.
        min_share: least throughput as a share of the baseline's, or None; one of both is given.
    """

    min_throughput: float | None = None
    min_share: float | None = None
    name: ClassVar[ObjectiveName] = ObjectiveName.MEMORY
    weighs_memory: ClassVar[bool] = True
    worth_confirming: ClassVar[float] = _CLEARLY_LESS
    less_of: ClassVar[str] = " of the memory"
    praise: ClassVar[str] = "small"

    @property
    def words(self) -> str:
        """The objective in words."""
        return f"the least memory at {self._floor_words} or more"

    @property
    def _floor_words(self) -> str:
        if self.min_share is not None:
            return f"{100 * self.min_share:.4g} % of the baseline's throughput"
        return f"{self.min_throughput:,.6g} samples/s"

    def floor(self, baseline: Figures) -> float:
        """Return the least samples per second that a plan must have."""
        if self.min_share is not None:
            return self.min_share * baseline.throughput
        return self.min_throughput or 0.0

    def value(self, own: Figures, baseline: Figures) -> float:
        """Return the inverse of the plan's peak in GiB, 0 if the plan is too slow."""
        if not own.memory_bytes or own.throughput < self.floor(baseline):
            return 0.0
        return GIB / own.memory_bytes

    def weigh(self, expected: Expected, baseline: Figures) -> Weighed:
        """Return the forecast value, and the probability of being fast enough."""
        known = expected.memory_log_mean is not None
        memory_log_mean = expected.memory_log_mean if expected.memory_log_mean is not None else 0.0
        return Weighed(
            log_mean=math.log(GIB) - memory_log_mean if known else 0.0,
            log_std=expected.memory_log_std,
            allowed=expected.speed.chance(self.floor(baseline)) if self.floor(baseline) else 1.0,
        )

    def is_better(self, own: Figures, baseline: Figures, least_speedup: float) -> bool:
        """Whether the plan is fast enough and the baseline too slow or clearly larger."""
        ours, theirs = self.value(own, baseline), self.value(baseline, baseline)
        return ours > 0.0 and ours >= _CLEARLY_LESS * theirs

    def interesting_above(self, best: Figures, baseline: Figures, part: float) -> float:
        """Return a part of the least throughput allowed, or of the best one's if that is less."""
        return part * min(self.floor(baseline), best.throughput)

    def outcome(self, own: Figures, baseline: Figures) -> str | None:
        """Return both peaks and throughputs in words, and the least throughput allowed."""
        asked = f"{self._floor_words} was asked for"
        if own == baseline:
            short = " and is not reached" if self.falls_short(own, baseline) else ""
            return f"{_gib(own)} at {_rate(own)} samples/s; {asked}{short}"
        short = ", which it does not reach" if self.falls_short(baseline, baseline) else ""
        return (
            f"{_gib(own)} instead of {_gib(baseline)} at {_rate(own)} samples/s; "
            f"{asked} and the baseline gives {_rate(baseline)}{short}"
        )

    def why_kept(self, fastest: Figures, baseline: Figures) -> str:
        """Return that no plan was fast enough, or that none of those is clearly smaller."""
        if self.falls_short(fastest, baseline):
            return (
                f"no plan reaches {self._floor_words}: the fastest that was measured gives "
                f"{_rate(fastest)}; lower --min-throughput, or give a longer --budget"
            )
        return (
            f"no plan that may win and gives {self._floor_words} or more needs at least "
            f"{_CLEARLY_LESS - 1:.0%} less memory than your configuration"
        )

    def falls_short(self, own: Figures, baseline: Figures) -> str | None:
        """Return that the plan is too slow, in words, None if it is fast enough."""
        if own.throughput >= self.floor(baseline):
            return None
        return f"it gives {_rate(own)} samples/s, and {self._floor_words} was asked for"

    def options(self) -> dict[str, Any]:
        """Return the least throughput allowed, or its share of the baseline's."""
        if self.min_share is not None:
            return {"min_throughput_share": self.min_share}
        return {"min_throughput": self.min_throughput}

    def for_part(self, part: float) -> Self:
        """Return the objective with the throughput that a part of the devices must reach."""
        if self.min_throughput is None:
            return self
        return replace(self, min_throughput=part * self.min_throughput)

    def assumed(self) -> Figures:
        """Return figures of a baseline that is just fast enough."""
        return Figures(throughput=max(1.0, self.min_throughput or 0.0), memory_bytes=GIB)


def _rate(figures: Figures) -> str:
    speed = figures.throughput
    return f"{speed:,.0f}" if speed >= 1000 else f"{speed:.4g}"


def _gib(figures: Figures) -> str:
    known = figures.memory_bytes
    return "unknown memory" if known is None else size_in_words(known)
