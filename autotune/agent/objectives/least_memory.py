"""The smallest plan that is fast enough."""

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

_CLEARLY_LESS = 1.02  # peaks of one plan differ by so much between processes on a CPU


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastMemory(Objective):
    """The smallest peak of memory among the plans that are fast enough.

    Attributes:
        min_throughput: samples per second over all ranks, or None.
        min_share: of the baseline's throughput instead, or None.
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
        """What is looked for, in words."""
        return f"the least memory at {self._floor_words} or more"

    @property
    def _floor_words(self) -> str:
        if self.min_share is not None:
            return f"{100 * self.min_share:.4g} % of the baseline's throughput"
        return f"{self.min_throughput:,.6g} samples/s"

    def floor(self, baseline: Figures) -> float:
        """Return the samples per second to be reached."""
        if self.min_share is not None:
            return self.min_share * baseline.throughput
        return self.min_throughput or 0.0

    def value(self, own: Figures, baseline: Figures) -> float:
        """Return how many of the plan would fit in a GiB, 0 for one that is too slow."""
        if not own.memory_bytes or own.throughput < self.floor(baseline):
            return 0.0
        return GIB / own.memory_bytes

    def weigh(self, expected: Expected, baseline: Figures) -> Weighed:
        """Return the expected value, and the chance of being fast enough."""
        known = expected.log_memory is not None
        log_memory = expected.log_memory if expected.log_memory is not None else 0.0
        return Weighed(
            log=math.log(GIB) - log_memory if known else 0.0,
            spread=expected.memory_spread,
            allowed=expected.speed.chance(self.floor(baseline)) if self.floor(baseline) else 1.0,
        )

    def is_better(self, own: Figures, baseline: Figures, least_speedup: float) -> bool:
        """Whether it is fast enough and clearly smaller than a baseline that is so, too."""
        ours, theirs = self.value(own, baseline), self.value(baseline, baseline)
        return ours > 0.0 and ours >= _CLEARLY_LESS * theirs

    def interesting_above(self, best: Figures, baseline: Figures, part: float) -> float:
        """Return a part of what is to be reached, of the best throughput where that is less."""
        return part * min(self.floor(baseline), best.throughput)

    def outcome(self, own: Figures, baseline: Figures) -> str | None:
        """Return both peaks, and what was asked for."""
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
        """Return whether nothing was fast enough, or nothing of that smaller."""
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
        """Return that the plan is too slow, None where it is not."""
        if own.throughput >= self.floor(baseline):
            return None
        return f"it gives {_rate(own)} samples/s, and {self._floor_words} was asked for"

    def _saving(self, own: Figures, without: Figures) -> float | None:
        if not own.memory_bytes or not without.memory_bytes:
            return None
        return own.memory_bytes / without.memory_bytes

    def options(self) -> dict[str, Any]:
        """Return the throughput to be reached, or its share of the baseline's."""
        if self.min_share is not None:
            return {"min_throughput_share": self.min_share}
        return {"min_throughput": self.min_throughput}

    def for_part(self, part: float) -> Self:
        """Return the throughput that a part of the devices must reach."""
        if self.min_throughput is None:
            return self
        return replace(self, min_throughput=part * self.min_throughput)

    def assumed(self) -> Figures:
        """Return a baseline that is just fast enough."""
        return Figures(throughput=max(1.0, self.min_throughput or 0.0), memory_bytes=GIB)


def _rate(figures: Figures) -> str:
    speed = figures.throughput
    return f"{speed:,.0f}" if speed >= 1000 else f"{speed:.4g}"


def _gib(figures: Figures) -> str:
    known = figures.memory_bytes
    return "unknown memory" if known is None else size_in_words(known)
