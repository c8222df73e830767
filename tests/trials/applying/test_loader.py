"""Whose samples a batch holds: no sample twice, and as many as throughput counts."""

import collections
import io
import mmap
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import Subset, TensorDataset, get_worker_info

from autotune.errors import PlanError
from autotune.search_space.plan import Plan
from autotune.search_space.space import Narrowing, build_space
from autotune.trials.applying.apply import build_step
from autotune.trials.applying.loader import build_loader
from autotune.trials.probing.loader import open_file, repeats_in_workers
from autotune.trials.probing.probe import probe
from autotune.trials.result import Outcome
from autotune.trials.workload import load_workload
from tests.search_space.machines import CPU_MACHINE
from tests.trials.two_ranks import met, on_two_ranks

PLAN = Plan.of({"batch_size": 4})
STREAM = """
import os, random
from dataclasses import dataclass
from torch.utils.data import IterableDataset, get_worker_info

@dataclass
class Held:
    tensor: torch.Tensor

class Lines(IterableDataset):
    def __iter__(self):
        worker = get_worker_info()
        {order}

def build_dataset():
    return Lines()
"""
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


COLLATE = """
def collate_fn(samples):
    return [sample.tensor for sample in samples]
"""
RANK_STREAM = STREAM.format(order="yield from range({first}, 16, {step})")


def _samples(place, paths):
    ranks = met(place)
    loaders = [build_loader(load_workload(path), PLAN, 0, ranks) for path in paths]
    return [[int(number) for batch in loader for number in batch] for loader in loaders]


def test_ranks_share_a_stream_unless_it_shares_itself_out(write_workload):
    """One that looks at its rank would be cut twice, and half of it never be trained on."""
    own = RANK_STREAM.format(first='int(os.environ["RANK"])', step=2)
    noisy = STREAM.format(
        order="yield from (k + 0.9 * random.Random().random() for k in range(16))"
    )
    held = STREAM.format(order="yield from map(Held, torch.arange(16))") + COLLATE
    whole = RANK_STREAM.format(first=0, step=1)
    paths = [write_workload(source) for source in (own, whole, noisy, held)]
    first, second = on_two_ranks(_samples, paths)
    for one, two in zip(first, second, strict=True):
        assert sorted(one + two) == list(range(16))
    assert first == [list(range(0, 16, 2)), *[[0, 1, 2, 3, 8, 9, 10, 11]] * 3]


def _samples_trained_on(place, path, values):
    """As a step under the plan reads them: by then each rank draws its own dropout."""
    ranks = met(place)
    plan = Plan.of({"batch_size": 4, **values})
    with build_step(load_workload(path), plan, torch.device("cpu"), 0, ranks) as step:
        return [int(number) for batch in step.loader for number in batch]


SHUFFLED = {"torch": "torch.randperm(64).tolist()", "python": "random.sample(range(64), 64)"}


@pytest.mark.parametrize("values", [{}, {"workers": 1}], ids=["alone", "worker"])
@pytest.mark.parametrize("numbers", SHUFFLED)
def test_ranks_share_one_order_of_a_stream_that_shuffles(numbers, values, write_workload):
    """Each sample is read by one of them, once in an epoch."""
    path = write_workload(STREAM.format(order=f"yield from {SHUFFLED[numbers]}"))
    one, two = on_two_ranks(_samples_trained_on, path, values)
    assert sorted(one + two) == list(range(64))


LOADERS = {
    "drop_last": "drop_last=False",
    "batch_size": "batch_size=1, drop_last=False, sampler=None, "
    "batch_sampler=torch.utils.data.BatchSampler(range(64), 2, drop_last=True)",
}


@pytest.mark.parametrize("name", LOADERS)
def test_a_loader_whose_batches_count_otherwise_is_refused(name, write_workload, run_plan):
    """Throughput counts `batch_size` samples a step."""
    path = write_workload(
        f"""
        def build_dataloader(dataset, **kwargs):
            own = dict({LOADERS[name]})
            return torch.utils.data.DataLoader(dataset, **(kwargs | own))
        """
    )
    result = run_plan(path)
    assert (result.outcome, result.user_error) == (Outcome.CRASH, True)
    assert f"asked for {name}=" in (result.error or "")


BATCHES = {
    "the dataset makes them": """
        class Batches(torch.utils.data.IterableDataset):
            def __init__(self, rows, size):
                self.batches = torch.utils.data.DataLoader(rows, batch_size=size)
            def __iter__(self):
                return iter(self.batches)

        def build_dataloader(dataset, **kwargs):
            batches = Batches(dataset, kwargs["batch_size"])
            return torch.utils.data.DataLoader(batches, batch_size=None)
        """,
    "a sampler of batches": """
        def build_dataloader(dataset, **kwargs):
            size = kwargs["batch_size"]
            batches = torch.utils.data.BatchSampler(kwargs["sampler"], size, drop_last=True)
            return torch.utils.data.DataLoader(dataset, batch_sampler=batches)
        """,
}


@pytest.mark.parametrize("case", BATCHES)
def test_batches_may_be_made_in_other_ways(case, write_workload, run_plan):
    """As long as nothing says that they are of another size."""
    assert run_plan(write_workload(BATCHES[case])).outcome is Outcome.OK


def _refusal(place, path):
    with pytest.raises(Exception, match="asked for sampler=") as caught:
        build_loader(load_workload(path), PLAN, 0, met(place))
    return str(caught.value)


def test_a_sampler_that_is_the_same_on_all_ranks_is_refused(write_workload):
    """Both would train on the same samples and count them twice."""
    path = write_workload(
        """
        def build_dataloader(dataset, **kwargs):
            kwargs["sampler"] = torch.utils.data.SequentialSampler(dataset)
            return torch.utils.data.DataLoader(dataset, **kwargs)
        """
    )
    assert all("pass **kwargs on" in message for message in on_two_ranks(_refusal, path))


class Pair(NamedTuple):
    left: Any
    right: Any


def test_batches_of_many_kinds_are_moved(write_workload):
    """Each stays what it is: what moves itself, named tuples, dicts of a class with a default."""
    step = build_step(load_workload(write_workload()), PLAN, torch.device("meta"), seed=0)
    packed = step.move(pack_sequence([torch.ones(3), torch.ones(2)]))
    assert packed.data.is_meta
    named = step.move(Pair(torch.ones(1), [torch.ones(1), "word"]))
    assert named.left.is_meta
    assert named.right[1] == "word"
    by_name = step.move(collections.defaultdict(list, x=torch.ones(1)))
    assert by_name["x"].is_meta
    assert by_name["y"] == []


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
