"""Models this small gain nothing from threads, and lose much to them on a machine that is busy."""

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """Compute in one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
