"""Where the level of measurements changes."""

import random

from autotune.dashboard.changes import level_starts


def noisy(*levels, noise=0.01):
    """Return eight values around each level."""
    rng = random.Random(0)
    return [level * (1 + rng.gauss(0, noise)) for level in levels for _ in range(8)]


def test_a_new_level_is_found_where_it_begins():
    """Up or down, several of them."""
    assert level_starts(noisy(1000, 900)) == [8]
    assert level_starts(noisy(1000, 900, 1200)) == [8, 16]


def test_noise_is_no_new_level():
    """However large it is; few points tell nothing."""
    assert level_starts(noisy(1000, 1000, 1000)) == []
    assert level_starts(noisy(1000, 1000, 1000, noise=0.1)) == []
    assert level_starts([1000.0, 500.0]) == []


def test_a_single_outlier_is_no_new_level():
    """Single figures lie."""
    values = noisy(1000, 1000)
    values[5] = 700.0
    assert level_starts(values) == []
