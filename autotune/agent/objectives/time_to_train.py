"""The objective `time-to-train`: the least time to train on a number of samples.

For few samples it is often reached by a plan that compiles nothing.
"""

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
from autotune.clock import in_words


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeToTrain(Objective):
    """The least time for a number of samples, from building the model to the last of them.

    Attributes:
        samples: number of samples to train on, over all ranks.
    """

    samples: float
    name: ClassVar[ObjectiveName] = ObjectiveName.TIME_TO_TRAIN
    weighs_start: ClassVar[bool] = True
    less_of: ClassVar[str] = " of the time"
    praise: ClassVar[str] = "quick to train"

    @property
    def words(self) -> str:
        """The objective in words."""
        return f"the least time to train on {self._samples}, start-up and compilation included"

    @property
    def _samples(self) -> str:
        return f"{count_in_words(self.samples)} samples"

    def train_s(self, own: Figures) -> float:
        """Return the seconds of start-up and of all steps."""
        return own.start_s + self.samples / own.throughput

    def value(self, own: Figures, baseline: Figures) -> float:
        """Return the inverse of the training's seconds."""
        return 1.0 / self.train_s(own) if own.throughput else 0.0

    def weigh(self, expected: Expected, baseline: Figures) -> Weighed:
        """Return the forecast value from the forecasts of throughput and start-up."""
        steps_s = self.samples * math.exp(-expected.speed.log_mean)
        total_s = expected.start_s + steps_s
        shares = (
            expected.speed.log_std * steps_s / total_s,
            expected.start_log_std * expected.start_s / total_s,
        )
        return Weighed(log_mean=-math.log(total_s), log_std=max(math.hypot(*shares), 1e-3))

    def is_better(self, own: Figures, baseline: Figures, least_speedup: float) -> bool:
        """Whether the training takes less time even at the low end of the speed-up's interval."""
        at_least = replace(own, throughput=least_speedup * baseline.throughput)
        return self.train_s(at_least) < self.train_s(baseline)

    def interesting_above(self, best: Figures, baseline: Figures, part: float) -> float:
        """Return the throughput below which a plan has too low a value even without start-up."""
        return part * self.samples / self.train_s(best)

    def outcome(self, own: Figures, baseline: Figures) -> str | None:
        """Return both training times in words, and how much of them is start-up."""
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
        """Return that no plan would train in less time."""
        return (
            f"no plan that may win would train on {self._samples} in less time than your "
            "configuration, start-up and compilation included"
        )

    def options(self) -> dict[str, Any]:
        """Return the number of samples."""
        return {"train_samples": round(self.samples)}

    def for_part(self, part: float) -> Self:
        """Return the objective with the samples that a part of the devices trains on."""
        return replace(self, samples=part * self.samples)


def count_in_words(count: float) -> str:
    """Return `10M`, `1.5B` or `20,000`: a large number as people say it."""
    for size, letter in ((1e9, "B"), (1e6, "M")):
        if count >= size:
            return f"{count / size:.6g}{letter}"
    return f"{count:,.0f}"
