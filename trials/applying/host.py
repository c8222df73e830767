"""The family `host`: the threads that torch computes with on the CPU."""

import contextlib
from collections.abc import Iterator

import torch

from autotune.search_space.plan import Plan
from autotune.trials.applying.settings import Setting


def process_settings(plan: Plan) -> list[Setting]:
    """Return the setting of the number of threads, where the plan names one."""
    return [_num_threads(int(plan["threads"]))] if "threads" in plan else []


@contextlib.contextmanager
def _num_threads(threads: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
