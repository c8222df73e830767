"""The objective `throughput`: the most samples per second."""

from dataclasses import dataclass
from typing import Any, ClassVar

from autotune.agent.objectives.objective import (
    Expected,
    Figures,
    Objective,
    ObjectiveName,
    Weighed,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput(Objective):
    """The most samples per second, whatever the start-up takes."""

    name: ClassVar[ObjectiveName] = ObjectiveName.THROUGHPUT
    praise: ClassVar[str] = "fast"

    @property
    def words(self) -> str:
        """The objective in words."""
        return "the most samples per second"

    def value(self, own: Figures, baseline: Figures) -> float:
        """Return the samples per second."""
        return own.throughput

    def weigh(self, expected: Expected, baseline: Figures) -> Weighed:
        """Return the expected throughput."""
        return Weighed(log_mean=expected.speed.log_mean, log_std=expected.speed.log_std)

    def is_better(self, own: Figures, baseline: Figures, least_speedup: float) -> bool:
        """Whether the whole interval of the speed-up is above 1."""
        return least_speedup > 1.0

    def interesting_above(self, best: Figures, baseline: Figures, part: float) -> float:
        """Return a part of the best throughput."""
        return part * best.throughput

    def outcome(self, own: Figures, baseline: Figures) -> str | None:
        """Return None: the speed-up says what a winner gives."""
        return None

    def why_kept(self, fastest: Figures, baseline: Figures) -> str:
        """Return that no plan was faster."""
        return "no plan that may win was faster than your configuration"

    def options(self) -> dict[str, Any]:
        """Return no options."""
        return {}


FASTEST = Throughput()
