"""The speed-up of a plan over the baseline, with its 95 % interval over fresh processes."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Speedup:
    """A ratio of throughputs and its 95 % interval.

    Attributes:
        how: how the interval was obtained, in words.
    """

    ratio: float
    low: float
    high: float
    how: str

    @property
    def half_width(self) -> float:
        """Half the interval, relative."""
        return math.log(self.high / self.low) / 2


def pooled(
    throughputs: Mapping[str, Sequence[float]], winner: str, baseline: str
) -> Speedup | None:
    """Return the speed-up from repeats of several plans, None without two of any plan.

    The fastest of several looks faster than it is, so the interval holds for all of them
    together (Bonferroni): each has 95 % over the number of plans beside the baseline.

    The logarithms of all plans share one variance between processes (repeats of one plan vary
    by the same few percent, fast or slow), so the other finalists sharpen it. Welch's correction
    is not used: with two or three repeats each it would cost more degrees of freedom than the
    assumption costs truth.
    """
    logs = {name: [math.log(value) for value in values] for name, values in throughputs.items()}
    degrees = sum(len(values) - 1 for values in logs.values())
    if degrees == 0:
        return None
    squares = sum(statistics.variance(v) * (len(v) - 1) for v in logs.values() if len(v) > 1)
    spread = math.sqrt(squares / degrees)
    here, there = logs[winner], logs[baseline]
    error = spread * math.sqrt(1 / len(here) + 1 / len(there))
    ratio = statistics.fmean(here) - statistics.fmean(there)
    num_finalists = len(logs) - 1
    how = f"{len(there)} rounds of fresh processes, baseline and finalists in turn"
    if num_finalists > 1:
        how += f"; the interval allows for choosing among {num_finalists}"
    return around(ratio, student_t(degrees, num_finalists) * error, how)


def around(log_ratio: float, half_width: float, how: str) -> Speedup:
    """Return the speed-up with this logarithm and half width of its interval."""
    return Speedup(
        ratio=math.exp(log_ratio),
        low=math.exp(log_ratio - half_width),
        high=math.exp(log_ratio + half_width),
        how=how,
    )


def student_t(degrees: int, num_intervals: int = 1) -> float:
    """Return the factor that makes `num_intervals` intervals hold together with 95 %."""
    confidence = 1 - 0.05 / num_intervals
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, degrees) < confidence else (low, middle)
    return math.sqrt(degrees) * math.tan(low)


def _within(angle: float, degrees: int) -> float:
    """Return P(|T| < sqrt(degrees) tan(angle)), from Abramowitz & Stegun 26.7.3 and 26.7.4."""
    odd = degrees % 2
    term, total = (math.cos(angle), 0.0) if odd else (1.0, 0.0)
    for k in range(2 + odd, degrees + 1, 2):
        total += term
        term *= math.cos(angle) ** 2 * (k - 1) / k
    if odd:
        return 2 / math.pi * (angle + math.sin(angle) * total)
    return math.sin(angle) * total
