"""Which points of a trend a new one is compared with, and how many drops in a row there were."""

import itertools
from collections.abc import Sequence

from autotune.storage.trends import TrendPoint

STRIKES = 3
"""Drops in a row with which a check fails: single ones lie."""
_LATEST = 10  # points that a new one is compared with, as machines and libraries drift


def reference_points(points: Sequence[TrendPoint]) -> list[TrendPoint]:
    """Return the points that a new one is compared with: the latest that were no drops."""
    return [point for point in points if not point.is_drop][-_LATEST:]


def drops_before(points: Sequence[TrendPoint]) -> int:
    """Return how many drops in a row end the series."""
    return sum(1 for _ in itertools.takewhile(lambda point: point.is_drop, reversed(points)))
