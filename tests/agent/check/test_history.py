"""Which earlier points count, and how many drops in a row there were."""

from autotune.agent.check.history import drops_before, reference_points
from autotune.storage.testing import make_trend_point


def points(letters):
    """Return a point for each letter; d is a drop."""
    return [make_trend_point(float(n), is_drop=one == "d") for n, one in enumerate(letters, 1)]


def test_drops_are_no_reference():
    """Or else the third one in a row would be compared with the first two."""
    found = reference_points(points("..d.d"))
    assert [point.throughput for point in found] == [1.0, 2.0, 4.0]
    assert len(reference_points(points("." * 30))) == 10


def test_only_drops_at_the_end_are_in_a_row():
    """A point that is none begins anew."""
    assert drops_before(points("")) == 0
    assert drops_before(points("dd.")) == 0
    assert drops_before(points(".dd")) == 2
