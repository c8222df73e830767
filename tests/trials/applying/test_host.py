"""What the host does with freed memory."""

import resource

import torch

from autotune.search_space.plan import Plan
from autotune.trials.applying.families import process_settings

LARGE = 16 * 2**20  # elements, 64 MiB: more than glibc ever keeps by itself


def faults():
    """Return how many fresh pages some large tensors take, after the first of them.

    Each of those may lie behind the last, when something small has taken a bit of its place.
    """
    for _ in range(8):
        torch.ones(LARGE)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        torch.ones(LARGE)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_kept_memory_needs_no_fresh_pages():
    """The pages of a freed tensor are those of the next one; without the setting none are."""
    fresh = faults()
    with process_settings(Plan.of({"malloc": "keep"})):
        kept = faults()
    assert fresh > 1000
    assert kept < fresh / 10
