"""The interface of objectives: what they see of plans, and what is asked of them.

An objective gives plans a value to maximise. Its ratios say how much better a plan is, so that the
thresholds of search and confirmation mean the same for each objective; 0 may not win.
"""

import enum
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

_NOISE = 0.98  # of the baseline's value; noise may hide a small gain, the confirmation decides
_MEMORY_DOUBT = 0.5  # deviation of the logarithm of a peak that nothing tells


class ObjectiveName(enum.StrEnum):
    """The words of `--objective`."""

    THROUGHPUT = "throughput"
    TIME_TO_TRAIN = "time-to-train"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What objectives weigh of a plan.

    Attributes:
        throughput: samples per second over all ranks.
        start_s: building and the first step, nothing of it compiled before.
        memory_bytes: peak of the worst rank, None where unknown.
    """

    throughput: float
    start_s: float = 0.0
    memory_bytes: int | None = None


class Speed(Protocol):
    """An expected throughput: its logarithm, the deviation of that, and chances."""

    @property
    def log(self) -> float:
        """Of samples per second."""

    @property
    def spread(self) -> float:
        """Standard deviation of the logarithm."""

    def chance(self, over: float) -> float:
        """Return the probability of a throughput above `over`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What is expected of a plan.

    Attributes:
        speed: its throughput.
        start_s: see `Figures`; with the deviation of its logarithm.
        log_memory: logarithm of the peak in bytes, None where nothing tells; with its deviation.
    """

    speed: Speed
    start_s: float = 0.0
    start_spread: float = 0.0
    log_memory: float | None = None
    memory_spread: float = _MEMORY_DOUBT


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighed:
    """What is expected of a plan's value.

    Attributes:
        log: logarithm of the value, if the plan may win; with its standard deviation.
        allowed: probability that it may.
    """

    log: float
    spread: float
    allowed: float = 1.0


class Objective(ABC):
    """What makes one plan better than another.

    Attributes:
        name: as `--objective` has it.
        weighs_start: start-up counts.
        weighs_memory: memory counts, so that checkpointing may be worth its time by itself.
        worth_confirming: value over the baseline's from which a plan is worth confirming.
        less_of: what a gain saves, in words; empty for speed.
        praise: what a good plan is.
    """

    name: ClassVar[ObjectiveName]
    weighs_start: ClassVar[bool] = False
    weighs_memory: ClassVar[bool] = False
    worth_confirming: ClassVar[float] = _NOISE
    less_of: ClassVar[str] = ""
    praise: ClassVar[str]

    @property
    @abstractmethod
    def words(self) -> str:
        """What is looked for, in words."""

    @abstractmethod
    def value(self, own: Figures, baseline: Figures) -> float:
        """Return how good a plan is beside the run's baseline; 0 when it may not win."""

    @abstractmethod
    def weigh(self, expected: Expected, baseline: Figures) -> Weighed:
        """Return the value to expect of a plan that was not measured."""

    @abstractmethod
    def is_better(self, own: Figures, baseline: Figures, least_speedup: float) -> bool:
        """Whether a confirmed plan is better than the baseline.

        Args:
            own: confirmed.
            baseline: confirmed in turn with it.
            least_speedup: the low end of the speed-up's interval.
        """

    @abstractmethod
    def interesting_above(self, best: Figures, baseline: Figures, part: float) -> float:
        """Return the throughput below which no plan comes to `part` of the best one's value."""

    @abstractmethod
    def outcome(self, own: Figures, baseline: Figures) -> str | None:
        """Return what a winner gives instead of the baseline, in words; None: its speed-up."""

    def effect(self, own: Figures, without: Figures) -> str:
        """Return what a plan gives beside one without a setting of it, in words."""
        speed = f"{own.throughput / without.throughput - 1:+.1%}"
        ratio = self._saving(own, without)
        return speed if ratio is None else f"{ratio - 1:+.1%}{self.less_of}, {speed} speed"

    def promise(self, ratio: float) -> str:
        """Return in words what a plan of so many times the best value would give."""
        return f"{1 / ratio - 1 if self.less_of else ratio - 1:+.0%}{self.less_of} expected"

    def _saving(self, own: Figures, without: Figures) -> float | None:
        """Return what of `less_of` a plan takes, over what another one does; None: no matter."""
        return None

    @abstractmethod
    def why_kept(self, fastest: Figures, baseline: Figures) -> str:
        """Return why no plan was found better than the baseline; `fastest` was measured."""

    @abstractmethod
    def options(self) -> dict[str, Any]:
        """Return what was asked for beside the name, as plain JSON values."""

    def falls_short(self, own: Figures, baseline: Figures) -> str | None:
        """Return why a confirmed plan may not win, None where it may."""
        return None

    def train_s(self, own: Figures) -> float | None:
        """Return the seconds that the training to be done takes, None where none was named."""
        return None

    def for_part(self, part: float) -> Self:
        """Return what to ask of a part of the devices."""
        return self

    def assumed(self) -> Figures:
        """Return figures of a baseline that was not measured: for previews."""
        return Figures(throughput=1.0)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values; `objective_from` reads them back."""
        return {"name": self.name.value, **self.options()}
