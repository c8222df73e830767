"""Training until `evaluate(model)` reaches a target: what is asked, and the curve."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityRequest:
    """Train until `evaluate(model)` returns the target or more, or the time is up.

    Attributes:
        target: what `evaluate` is to return at least; higher is better.
        limit_s: wall clock in the trial's process, building and evaluation included.
        interval_s: seconds of training between two evaluations.
        max_train_s: seconds of training after which to end as well; None: any.
    """

    target: float
    limit_s: float
    interval_s: float
    max_train_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityPoint:
    """What `evaluate` returned at a moment of a training.

    Attributes:
        train_s: seconds of training until then, without evaluation and without the first steps,
            in which the compiler runs and CUDA graphs are recorded.
        samples: trained on until then.
        value: what `evaluate` returned.
    """

    train_s: float
    samples: int
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityCurve:
    """What `evaluate` returned during one training, which ended at the target or in time.

    Attributes:
        target: what it was to return at least.
        points: in the order of time, at least one.
    """

    target: float
    points: tuple[QualityPoint, ...]

    @property
    def reached_s(self) -> float | None:
        """Seconds of training until the target was reached, None where it was not."""
        reached = (point.train_s for point in self.points if point.value >= self.target)
        return next(reached, None)

    @property
    def train_s(self) -> float:
        """Seconds of training until the last point."""
        return self.points[-1].train_s

    def best_within(self, train_s: float) -> float:
        """Return the highest value of the first so many seconds of training."""
        values = (point.value for point in self.points if point.train_s <= train_s)
        return max(values, default=self.points[0].value)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values; `from_dict` reads them back."""
        return {
            "target": self.target,
            "reached_s": self.reached_s,
            "points": [asdict(point) for point in self.points],
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "QualityCurve":
        """Build from what `to_dict` gave."""
        points = tuple(QualityPoint(**point) for point in values["points"])
        return cls(target=values["target"], points=points)
