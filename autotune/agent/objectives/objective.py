"""The interface of objectives, and the figures of a plan that they depend on.

An objective gives each plan a value to maximise. The ratio of two values says how much better
a plan is, so the thresholds of search and confirmation mean the same for each objective. The value
is 0 for a plan that may not win.
"""

import enum
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self

# Least value of a plan to confirm, as a part of the baseline's: noise may hide a small gain.
_NOISE = 0.98
_MEMORY_DOUBT = 0.5  # standard deviation of the log of a peak without any measurement


class ObjectiveName(enum.StrEnum):
    """The values of `--objective`."""

    THROUGHPUT = "throughput"
    TIME_TO_TRAIN = "time-to-train"
    MEMORY = "memory"
    TIME_TO_QUALITY = "time-to-quality"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The measured figures of a plan that an objective depends on.

    Attributes:
        throughput: samples per second over all ranks.
        start_s: seconds of building and of the first step, with an empty compiler cache.
        memory_bytes: peak of the worst rank, None where unknown.
    """

    throughput: float
    start_s: float = 0.0
    memory_bytes: int | None = None


class Speed(Protocol):
    """A forecast throughput, whose log is normally distributed."""

    @property
    def log_mean(self) -> float:
        """Mean of the log of the samples per second."""

    @property
    def log_std(self) -> float:
        """Standard deviation of that log."""

    def chance(self, over: float) -> float:
        """Return the probability of a throughput above `over`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The forecast figures of a plan.

    Attributes:
        speed: forecast throughput.
        start_s: expected start-up, see `Figures`.
        start_log_std: standard deviation of its log.
        memory_log_mean: mean of the log of the peak in bytes, None if unknown.
        memory_log_std: standard deviation of that log.
    """

    speed: Speed
    start_s: float = 0.0
    start_log_std: float = 0.0
    memory_log_mean: float | None = None
    memory_log_std: float = _MEMORY_DOUBT


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighed:
    """The forecast value of a plan.

    Attributes:
        log_mean: mean of the log of the value, if the plan may win.
        log_std: standard deviation of that log.
        allowed: probability that the plan may win.
    """

    log_mean: float
    log_std: float
    allowed: float = 1.0


class Objective(ABC):
    """The objective of a run: gives each plan a value to maximise.

    Attributes:
        name: the value of `--objective`.
        weighs_start: whether the value depends on start-up.
        weighs_memory: whether it depends on memory, so that checkpointing alone may improve it.
        worth_confirming: value over the baseline's from which a plan is worth confirming.
        less_of: what a gain saves, in words such as ` of the time`; empty for throughput.
        praise: adjective for a plan with a high value, such as `fast`.
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
        """The objective in words."""

    @abstractmethod
    def value(self, own: Figures, baseline: Figures) -> float:
        """Return the value of a plan, given the run's baseline; 0 when it may not win."""

    @abstractmethod
    def weigh(self, expected: Expected, baseline: Figures) -> Weighed:
        """Return the forecast value of a plan from its forecast figures."""

    @abstractmethod
    def is_better(self, own: Figures, baseline: Figures, least_speedup: float) -> bool:
        """Whether a confirmed plan is better than the baseline.

        Args:
            own: the plan's figures in the confirmation.
            baseline: the baseline's figures there.
            least_speedup: the low end of the speed-up's interval.
        """

    @abstractmethod
    def interesting_above(self, best: Figures, baseline: Figures, part: float) -> float:
        """Return the throughput below which no plan has `part` of the best one's value."""

    @abstractmethod
    def outcome(self, own: Figures, baseline: Figures) -> str | None:
        """Return in words what a winner gives and the baseline did; None: the speed-up."""

    def promise(self, ratio: float) -> str:
        """Return in words the expected gain of a plan with `ratio` times the best value."""
        return f"{1 / ratio - 1 if self.less_of else ratio - 1:+.0%}{self.less_of} expected"

    @abstractmethod
    def why_kept(self, fastest: Figures, baseline: Figures) -> str:
        """Return why the baseline is kept, in words; `fastest` are the fastest plan's figures."""

    @abstractmethod
    def options(self) -> dict[str, Any]:
        """Return the options of the objective, such as the number of samples, as JSON values."""

    def falls_short(self, own: Figures, baseline: Figures) -> str | None:
        """Return why a confirmed plan may not win, None where it may."""
        return None

    def train_s(self, own: Figures) -> float | None:
        """Return the seconds of training on the objective's samples, None if it names none."""
        return None

    def for_part(self, part: float) -> Self:
        """Return the objective for trials on a part of the devices, such as 0.25 of them."""
        return self

    def assumed(self) -> Figures:
        """Return made-up figures of a baseline for `--dry-run`, which measures nothing."""
        return Figures(throughput=1.0)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values; `objective_from` reads them back."""
        return {"name": self.name.value, **self.options()}
