"""What a run looks for: the fastest plan, the one that is through soonest, or the smallest.

An objective gives plans a value to maximise. Its ratios say how much better a plan is, so that the
thresholds of search and confirmation mean the same for each objective; 0 may not win.
"""

import enum
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, Self

from autotune.clock import in_words

_GIB = 2**30
_NOISE = 0.98  # of the baseline's value; noise may hide a small gain, the confirmation decides
_CLEARLY_LESS = 1.02  # peaks of one plan differ by so much between processes on a CPU
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput(Objective):
    """The most samples per second, however long the start-up takes."""

    name: ClassVar[ObjectiveName] = ObjectiveName.THROUGHPUT
    praise: ClassVar[str] = "fast"

    @property
    def words(self) -> str:
        """What is looked for, in words."""
        return "the most samples per second"

    def value(self, own: Figures, baseline: Figures) -> float:
        """Return samples per second."""
        return own.throughput

    def weigh(self, expected: Expected, baseline: Figures) -> Weighed:
        """Return the expected throughput."""
        return Weighed(log=expected.speed.log, spread=expected.speed.spread)

    def is_better(self, own: Figures, baseline: Figures, least_speedup: float) -> bool:
        """Whether the whole interval of the speed-up is above 1."""
        return least_speedup > 1.0

    def interesting_above(self, best: Figures, baseline: Figures, part: float) -> float:
        """Return a part of the best throughput."""
        return part * best.throughput

    def outcome(self, own: Figures, baseline: Figures) -> str | None:
        """Return None: the speed-up says it."""
        return None

    def why_kept(self, fastest: Figures, baseline: Figures) -> str:
        """Return that nothing was faster."""
        return "no plan that may win was faster than your configuration"

    def options(self) -> dict[str, Any]:
        """Return nothing."""
        return {}


FASTEST = Throughput()


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeToTrain(Objective):
    """The least time for a number of samples, from building the model to the last of them.

    Attributes:
        samples: to train on, over all ranks.
    """

    samples: float
    name: ClassVar[ObjectiveName] = ObjectiveName.TIME_TO_TRAIN
    weighs_start: ClassVar[bool] = True
    less_of: ClassVar[str] = " of the time"
    praise: ClassVar[str] = "quick to train"

    @property
    def words(self) -> str:
        """What is looked for, in words."""
        return f"the least time to train on {self._samples}, start-up and compilation included"

    @property
    def _samples(self) -> str:
        return f"{count_in_words(self.samples)} samples"

    def train_s(self, own: Figures) -> float:
        """Return start-up and steps in seconds."""
        return own.start_s + self.samples / own.throughput

    def value(self, own: Figures, baseline: Figures) -> float:
        """Return how often the training would be done in a second."""
        return 1.0 / self.train_s(own) if own.throughput else 0.0

    def weigh(self, expected: Expected, baseline: Figures) -> Weighed:
        """Return the expected value; a fast plan gains less, the more of its time is start-up."""
        steps_s = self.samples * math.exp(-expected.speed.log)
        total_s = expected.start_s + steps_s
        shares = (
            expected.speed.spread * steps_s / total_s,
            expected.start_spread * expected.start_s / total_s,
        )
        return Weighed(log=-math.log(total_s), spread=max(math.hypot(*shares), 1e-3))

    def is_better(self, own: Figures, baseline: Figures, least_speedup: float) -> bool:
        """Whether it is through sooner even at the low end of the speed-up's interval."""
        at_least = replace(own, throughput=least_speedup * baseline.throughput)
        return self.train_s(at_least) < self.train_s(baseline)

    def interesting_above(self, best: Figures, baseline: Figures, part: float) -> float:
        """Return the throughput at which even a plan without any start-up would be too late."""
        return part * self.samples / self.train_s(best)

    def outcome(self, own: Figures, baseline: Figures) -> str | None:
        """Return both times, and how much of them is start-up."""
        ours, theirs = self.train_s(own), self.train_s(baseline)
        if own == baseline:
            started = in_words(own.start_s)
            return f"{in_words(theirs)} for {self._samples}, {started} of it start-up"
        starts = f"{in_words(own.start_s)} instead of {in_words(baseline.start_s)}"
        return (
            f"{in_words(ours)} instead of {in_words(theirs)} for {self._samples}; "
            f"of it start-up, with nothing compiled before: {starts}"
        )

    def why_kept(self, fastest: Figures, baseline: Figures) -> str:
        """Return that nothing was through sooner."""
        return (
            f"no plan that may win would train on {self._samples} in less time than your "
            "configuration, start-up and compilation included"
        )

    def _saving(self, own: Figures, without: Figures) -> float | None:
        return self.train_s(own) / self.train_s(without)

    def options(self) -> dict[str, Any]:
        """Return the samples."""
        return {"train_samples": round(self.samples)}

    def for_part(self, part: float) -> Self:
        """Return the samples that fall to a part of the devices."""
        return replace(self, samples=part * self.samples)


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
        return _GIB / own.memory_bytes

    def weigh(self, expected: Expected, baseline: Figures) -> Weighed:
        """Return the expected value, and the chance of being fast enough."""
        known = expected.log_memory is not None
        log_memory = expected.log_memory if expected.log_memory is not None else 0.0
        return Weighed(
            log=math.log(_GIB) - log_memory if known else 0.0,
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
            f"no plan that may win and gives {self._floor_words} or more needs less memory than "
            "your configuration"
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
        return Figures(throughput=max(1.0, self.min_throughput or 0.0), memory_bytes=_GIB)


def objective_from(values: Mapping[str, Any]) -> Objective:
    """Return the objective that `to_dict` described; runs of before there were any had one."""
    name = ObjectiveName(values.get("name", ObjectiveName.THROUGHPUT))
    if name is ObjectiveName.TIME_TO_TRAIN:
        return TimeToTrain(samples=values["train_samples"])
    if name is ObjectiveName.MEMORY:
        share = values.get("min_throughput_share")
        return LeastMemory(min_throughput=values.get("min_throughput"), min_share=share)
    return Throughput()


def count_in_words(count: float) -> str:
    """Return `10M`, `1.5B` or `20,000`: a large number as people say it."""
    for size, letter in ((1e9, "B"), (1e6, "M")):
        if count >= size:
            return f"{count / size:.6g}{letter}"
    return f"{count:,.0f}"


def _rate(figures: Figures) -> str:
    speed = figures.throughput
    return f"{speed:,.0f}" if speed >= 1000 else f"{speed:.4g}"


def _gib(figures: Figures) -> str:
    known = figures.memory_bytes
    return "unknown memory" if known is None else f"{known / _GIB:.2f} GiB"
