"""Batches that are copied to the device while the step before computes."""

import contextlib

import pytest
import torch
from torch.utils.data import DataLoader

from autotune.search_space.plan import Plan
from autotune.trials.applying.ahead import CopiedAhead, CudaCopies
from autotune.trials.applying.loader import copies_ahead
from tests.trials.applying.steps import step_of

PLAN = Plan.of({"batch_size": 4, "pin_memory": True, "copy_ahead": "stream"})
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


class NotedCopies:
    """A queue for copies that notes what is asked of it."""

    def __init__(self):
        self.events = []

    @contextlib.contextmanager
    def after_steps(self):
        self.events.append("copy")
        yield

    def hand_over(self, batches):
        self.events += [f"wait for {batch}" for batch in batches]


def events_of(num_batches):
    copies = NotedCopies()
    loader = DataLoader(range(num_batches), batch_size=None)
    for batch in CopiedAhead(loader, lambda batch: batch, copies):
        copies.events.append(f"step {batch}")
    return copies.events


def test_a_batch_is_copied_before_the_step_on_the_one_before():
    """A step waits for its own batch, and not for the copy that runs beside it."""
    assert events_of(3) == [
        *("copy", "wait for 0", "copy", "step 0"),
        *("wait for 1", "copy", "step 1"),
        *("wait for 2", "step 2"),
    ]
    assert events_of(1) == ["copy", "wait for 0", "step 0"]
    assert events_of(0) == []


def test_each_epoch_gives_all_batches():
    """The loader can be read again, and has the attributes of the one that it reads."""
    loader = CopiedAhead(DataLoader(range(5), batch_size=2), lambda batch: batch, NotedCopies())
    for _ in range(2):
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4]]
    assert (len(loader), loader.batch_size, loader.num_workers) == (3, 2, 0)


def test_only_a_gpu_has_batches_copied_ahead(write_workload):
    """From page-locked memory: other copies make the host wait. A plan may say so anywhere."""
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    assert copies_ahead(PLAN, cuda)
    assert not copies_ahead(PLAN, cpu)
    assert not copies_ahead(Plan.of({**PLAN.values, "pin_memory": False}), cuda)
    with step_of(write_workload(), PLAN.values) as step:
        assert isinstance(step.loader, DataLoader)


@needs_cuda
def test_copied_batches_hold_what_the_loader_gave():
    """Also when steps still read older batches while the next ones are copied."""
    device = torch.device("cuda")
    data = torch.arange(64 * 1024.0).view(64, 1024)
    loader = DataLoader(data, batch_size=4, pin_memory=True)

    def move(batch):
        return batch.to(device, non_blocking=True)

    sums = []
    for batch in CopiedAhead(loader, move, CudaCopies(device)):
        for _ in range(50):
            torch.mm(torch.ones(512, 512, device=device), torch.ones(512, 512, device=device))
        sums.append(batch.sum())
    assert torch.equal(torch.stack(sums).cpu(), data.view(16, -1).sum(1))
