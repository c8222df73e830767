"""What a plan gave, and its speed-up over the baseline: the numbers of winners and plan files."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFigures:
    """What a plan gave. Unknown is None, never zero.

    Attributes:
        throughput: samples per second over all ranks.
        memory_bytes: peak of the worst rank.
        train_s: seconds for the samples to train on, where the user named a number of them.
        start_s: of these until the second step, with nothing compiled before.
    """

    throughput: float | None = None
    memory_bytes: int | None = None
    train_s: float | None = None
    start_s: float | None = None

    def to_dict(self, prefix: str = "") -> dict[str, float | None]:
        """Return plain values, the names with a prefix; `from_dict` reads them back."""
        return {f"{prefix}{name}": value for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], prefix: str = "") -> "PlanFigures":
        """Build from what `to_dict` gave; other values are ignored."""
        return cls(**{field.name: values[f"{prefix}{field.name}"] for field in fields(cls)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A speed-up over the baseline.

    Attributes:
        ratio: of the throughputs.
        low, high: its 95 % interval over fresh processes; None where one process each was
            measured.
    """

    ratio: float
    low: float | None = None
    high: float | None = None


def speedup_to_dict(speedup: Interval | None) -> dict[str, float | None]:
    """Return plain values, all None for an unknown speed-up; `speedup_from_dict` reads them."""
    known = (None, None, None) if speedup is None else (speedup.ratio, speedup.low, speedup.high)
    return dict(zip(("speedup", "speedup_low", "speedup_high"), known, strict=True))


def speedup_from_dict(values: Mapping[str, Any]) -> Interval | None:
    """Build from what `speedup_to_dict` gave; other values are ignored."""
    if values["speedup"] is None:
        return None
    return Interval(
        ratio=values["speedup"], low=values["speedup_low"], high=values["speedup_high"]
    )
