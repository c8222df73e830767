"""What plans of workloads gave at each commit, in each database."""

from autotune.storage.testing import make_trend_point


def test_points_come_back_in_their_order(store):
    """Each series has its own, with all that is known of them."""
    first = make_trend_point(100.0)
    later = make_trend_point(90.0, is_drop=True, commit_hash=None, throughput_low=None)
    other = make_trend_point(5.0, workload="other.py")
    for point in (first, later, other):
        store.trends.keep(point)
    assert store.trends.points(first.series) == [first, later]
    assert store.trends.points(other.series) == [other]


def test_series_with_the_newest_point_come_first(store):
    """Whoever opens the page sees what was measured last."""
    one, other = make_trend_point(1.0, workload="one.py"), make_trend_point(1.0, workload="b.py")
    for point in (one, other, one):
        store.trends.keep(point)
    assert store.trends.all_series() == [one.series, other.series]
