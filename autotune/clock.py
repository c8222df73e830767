"""Time as a parameter: the system's clock, a fake one for tests, and a budget on either."""

import time
from dataclasses import dataclass
from typing import Protocol


class Clock(Protocol):
    """A monotonic clock that can also wait."""

    def now(self) -> float:
        """Return seconds since an arbitrary start; never goes back."""

    def sleep(self, seconds: float) -> None:
        """Return after `seconds`, at once when it is not positive."""


class SystemClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        """Return `time.monotonic()`."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Block the calling thread for `seconds`."""
        if seconds > 0:
            time.sleep(seconds)


class FakeClock:
    """A clock that stands still until it is told to sleep: two hours pass in no time."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        """Return the fake time."""
        return self._now

    def sleep(self, seconds: float) -> None:
        """Advance the fake time by `seconds`."""
        self._now += max(0.0, seconds)


def in_words(seconds: float) -> str:
    """Return a duration as people read it: `8.2 s`, `2m 05s`, `1h 02m`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m {rest:02d}s" if minutes < 60 else f"{minutes // 60}h {minutes % 60:02d}m"


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """A wall-clock allowance of `total_s`, of which `used_before_s` went to an earlier session."""

    clock: Clock
    total_s: float
    started_at: float
    used_before_s: float = 0.0

    @property
    def used_s(self) -> float:
        """Seconds used so far, earlier sessions of the same run included."""
        return self.used_before_s + self.clock.now() - self.started_at

    @property
    def remaining_s(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self.total_s - self.used_s)
