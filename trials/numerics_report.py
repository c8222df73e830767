"""What a numerics check found: how far a plan's steps are from those of eager fp32."""

import enum
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any


class Part(enum.Enum):
    """What of a training step is compared."""

    LOSS = "loss"
    GRADIENTS = "gradients"
    WEIGHTS = "weights"
    BUFFERS = "buffers"
    OPTIMIZER = "optimizer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """How far one part of a plan's steps is from eager fp32.

    Attributes:
        part: of the step.
        what: was compared, in words.
        seen: the relative difference; infinite where a number is not finite.
        allowed: the largest one with which the plan passes.
        by_itself: how far eager fp32 is from itself when its weights are moved by as much as the
            plan's number format rounds; None where that was not looked at.
    """

    part: Part
    what: str
    seen: float
    allowed: float
    by_itself: float | None = None

    @property
    def passed(self) -> bool:
        """Whether the plan is as near as it must be."""
        return math.isfinite(self.seen) and self.seen <= self.allowed

    @property
    def excess(self) -> float:
        """How many times as far as allowed it is."""
        if not math.isfinite(self.seen):
            return math.inf
        if self.allowed:
            return self.seen / self.allowed
        return math.inf if self.seen else 0.0

    def in_words(self, number_format: str) -> str:
        """Return how far it is, and what that is held against."""
        if self.part is Part.OPTIMIZER:
            return self.what
        where = "eager fp32" + ("" if self.by_itself is None else " at the same weights")
        if not math.isfinite(self.seen):
            return f"{self.what} not finite, or not zero where that of {where} is zero"
        far = "within {} of" if self.passed else "{} away from"
        limit = f"up to {_percent(self.allowed)} passes"
        if self.by_itself is not None:
            limit += (
                f"; rounding eager fp32 to {number_format} moves it {_percent(self.by_itself)}"
            )
        return f"{self.what} {far.format(_percent(self.seen))} {where} ({limit})"

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Deviation":
        """Build from plain values, where a number that is not finite is None."""
        limits = {name: _number(values[name]) for name in ("seen", "allowed")}
        return cls(**{**values, **limits, "part": Part(values["part"])})


def _number(value: float | None) -> float:
    return math.inf if value is None else value


def _percent(part: float) -> str:
    if not math.isfinite(part):
        return "any amount"
    if 0 < part < 0.0001:
        return "less than 0.01%"
    return f"{part:.1%}" if part >= 0.01 else f"{part:.2%}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NumericsReport:
    """Single steps of a plan beside those of eager fp32 on the same batches and weights.

    Attributes:
        reference_losses, plan_losses: one per compared step.
        deviations: of all that was judged, at most two of each part: of all tensors together, and
            of the single one that is farthest. None where nothing could be compared.
        format: the number format that rounds most in the plan, such as `bf16`.
        unchecked: why nothing could be compared; empty where it was.
        seconds: that the comparison took.
    """

    reference_losses: tuple[float, ...] = ()
    plan_losses: tuple[float, ...] = ()
    deviations: tuple[Deviation, ...] = ()
    format: str = "fp32"
    unchecked: str = ""
    seconds: float | None = None

    @property
    def passed(self) -> bool:
        """Whether nothing that was compared is farther from the reference than allowed."""
        return all(deviation.passed for deviation in self.deviations)

    @property
    def worst(self) -> Deviation | None:
        """What is farthest beside what is allowed."""
        return max(self.deviations, key=lambda deviation: deviation.excess, default=None)

    @property
    def summary(self) -> str:
        """How near the plan is, or by what it fails, in one line for the user."""
        told = self.of(Part.GRADIENTS) or self.of(Part.LOSS) if self.passed else self.worst
        if self.unchecked or told is None:
            return f"not checked: {self.unchecked}"
        return told.in_words(self.format)

    def of(self, part: Part) -> Deviation | None:
        """Return the first deviation of a part: that of all its tensors, where it was judged."""
        return next((found for found in self.deviations if found.part is part), None)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; `from_dict` reads them back."""
        found = [{**asdict(found), "part": found.part.value} for found in self.deviations]
        return {**asdict(self), "deviations": found}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "NumericsReport":
        """Build from plain values, also from those of reports that compared two trainings."""
        losses: dict[str, Any] = {
            name: tuple(_losses(values[name])) for name in ("reference_losses", "plan_losses")
        }
        if "deviations" not in values:
            return cls(**losses, deviations=(_along_trainings(values),))
        found = tuple(map(Deviation.from_dict, values["deviations"]))
        return cls(**{**values, **losses, "deviations": found})


def _along_trainings(values: dict[str, Any]) -> Deviation:
    """Return what older reports hold: the largest difference of losses along two trainings."""
    return Deviation(
        part=Part.LOSS,
        what="losses of a short training",
        seen=_number(values["worst"]),
        allowed=values["tolerance"],
    )


def _losses(values: Iterable[float | None]) -> Iterable[float]:
    return (math.nan if value is None else value for value in values)
