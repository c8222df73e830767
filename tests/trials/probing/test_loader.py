"""What the probe finds out about datasets and loaders."""

import io
import mmap

import pytest
import torch
from torch.utils.data import Subset, TensorDataset, get_worker_info

from autotune.errors import PlanError
from autotune.search_space.space import Narrowing, build_space
from autotune.trials.probing.loader import open_file, repeats_in_workers
from autotune.trials.probing.probe import probe
from autotune.trials.workload import load_workload
from tests.search_space.machines import CPU_MACHINE
from tests.trials.streams import STREAM

ORDERS = {
    "whole": ("yield from range(64)", True),
    "shared out": ("yield from range(worker.id if worker else 0, 64, 2 if worker else 1)", False),
    "shuffled": ("yield from torch.randperm(64).tolist()", True),
    "shuffled, large": ("yield from random.sample(range(10_000), 10_000)", True),
    "random": ("yield from torch.randn(64)", False),
    "of its own": ("yield from (random.Random().random() for _ in range(64))", False),
    "held": ("yield from map(Held, torch.arange(64.0))", True),
    "failing": ("raise OSError if worker else ValueError", False),
}


@pytest.mark.parametrize("order", ORDERS)
def test_a_stream_that_workers_would_repeat_is_noticed(order, write_workload):
    """Each worker of such a stream reads all of it; throughput would count every sample twice."""
    code, repeats = ORDERS[order]
    workload = load_workload(write_workload(STREAM.format(order=code)))
    assert repeats_in_workers(workload.build_dataset(), 0) is repeats
    assert get_worker_info() is None


def test_the_probe_tells_of_it(write_workload):
    """A list is shared out by its sampler."""
    whole = write_workload(STREAM.format(order="yield from ((torch.ones(16), 1),) * 64"))
    assert probe(whole, CPU_MACHINE, 0).repeats_in_workers
    assert not probe(write_workload(), CPU_MACHINE, 0).repeats_in_workers


OWN_BATCHES = """
BATCH_SIZE = 16

class Fixed(torch.utils.data.Sampler):
    def __init__(self, dataset, size):
        self.dataset, self.size = dataset, size

    def __len__(self):
        return len(self.dataset) // self.size

    def __iter__(self):
        for k in range(len(self)):
            yield list(range(k * self.size, (k + 1) * self.size))

def build_dataloader(dataset, batch_size, sampler, drop_last, **kwargs):
    batches = Fixed(dataset, {size})
    return torch.utils.data.DataLoader(dataset, batch_sampler=batches, **kwargs)
"""


@pytest.mark.parametrize(("size", "fixed"), [("16", True), ("batch_size", False)])
def test_batches_of_a_loaders_own_are_counted_as_what_they_are(size, fixed, write_workload):
    """Of those that stay as they are, whatever one asks for, a larger size would be a lie."""
    facts = probe(write_workload(OWN_BATCHES.replace("{size}", size)), CPU_MACHINE, 0)
    assert facts.fixed_batches is fixed
    space = build_space(facts, CPU_MACHINE)
    assert (space.by_name["batch_size"].values == (16,)) is fixed
    if fixed:
        assert "set BATCH_SIZE to what it holds" in facts.remarks[0]
        with pytest.raises(PlanError, match="makes its own batches"):
            build_space(facts, CPU_MACHINE, Narrowing(fix=(("batch_size", "32"),)))


def test_a_file_that_a_dataset_holds_open_is_found_wherever_it_holds_it(tmp_path):
    """Forked workers share its position; one in memory is everybody's own."""
    (path := tmp_path / "samples").write_bytes(b"samples")
    with path.open("rb") as file, path.open("ab") as log:
        for held, found in [(file, "shards"), ([log, file], "shards"), ({"one": file}, "shards")]:
            inner = TensorDataset(torch.zeros(3))
            inner.shards = held
            assert open_file(Subset(inner, [0])) == found
        for harmless in (log, path, io.BytesIO(b"samples"), mmap.mmap(-1, 8)):
            inner.shards = harmless
            assert open_file(Subset(inner, [0])) is None
    inner.shards = file
    assert open_file(inner) is None  # closed


def test_a_loader_that_waits_for_storage_is_seen_to(write_workload):
    """Its process is hardly busy meanwhile."""
    slow = """
    class Slow(Rows):
        def __getitem__(self, index):
            time.sleep(0.01)
            return super().__getitem__(index)
    def build_dataset(): return Slow()
    """
    assert probe(write_workload(slow), CPU_MACHINE, 0).loader_busy_share < 0.2
