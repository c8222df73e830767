"""Exposed communication from the intervals of a trace."""

import pytest

from autotune.trials.measuring.communication import exposed_share

CASES = {
    "hidden": ([(1, 3)], [(0, 4)], 0.0),
    "bare": ([(0, 2)], [(2, 4)], 0.5),
    "half": ([(1, 3)], [(0, 2), (3, 4)], 0.25),
    "overlapping": ([(0, 2), (1, 3)], [(3, 6)], 0.5),
    "nested": ([(0, 4), (1, 2)], [(3, 8)], 0.375),
    "idle": ([(0, 1)], [(3, 4)], 0.25),
    "none": ([], [(0, 4)], 0.0),
}


@pytest.mark.parametrize("case", CASES)
def test_only_communication_without_computation_is_exposed(case):
    """Idle time is in the whole and in neither part."""
    communication, computation, share = CASES[case]
    assert exposed_share(communication, computation) == pytest.approx(share)


def test_the_order_of_the_trace_does_not_matter():
    """Kernels of several streams come interleaved."""
    assert exposed_share([(4, 6), (0, 1)], [(5, 7), (1, 4)]) == pytest.approx(2 / 7)


def test_an_empty_trace_is_unknown():
    """Not zero."""
    assert exposed_share([], []) is None
