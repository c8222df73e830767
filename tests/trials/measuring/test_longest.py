"""The longest batch: its memory is in a trial's peak before anything is measured."""

import pytest

from autotune.search_space.plan import Plan
from autotune.trials.applying.loader import build_loader
from autotune.trials.feed import Feed
from autotune.trials.measuring.longest import longest_batch
from autotune.trials.result import Outcome, Phase
from autotune.trials.workload import load_workload
from tests.trials.padded_texts import PADDED_TEXTS

PLAN = Plan.of({"batch_size": 4})
MANY = PADDED_TEXTS.replace("range(64)", "range(5_000)").replace("% 31", "% 4_999")


def longest_of(path):
    feed = Feed(build_loader(load_workload(path), PLAN, 0))
    longest = longest_batch(feed, 4)
    return tuple(longest.batch["words"].shape), longest.num_samples


def test_the_longest_samples_are_a_batch(write_workload):
    """Of a small dataset all are looked at."""
    assert longest_of(write_workload(base=PADDED_TEXTS)) == ((4, 31), 64)


def test_of_many_samples_some_are_looked_at(write_workload):
    """Evenly over the dataset, whose order may be by length."""
    (size, length), num_samples = longest_of(write_workload(base=MANY))
    assert (size, num_samples) == (4, 512)
    assert length > 4_900


def test_a_dataset_that_tells_its_lengths_gives_the_longest_of_all(write_workload):
    """Without a search."""
    path = write_workload("Texts.lengths = LENGTHS", base=MANY)
    assert longest_of(path) == ((4, 4_999), 5_000)


def test_a_slow_dataset_is_not_searched_for_long(write_workload):
    """The longest of what was read fill the batch."""
    slow = MANY.replace("return torch.full", "time.sleep(0.6); return torch.full")
    (size, _), num_samples = longest_of(write_workload(base="import time" + slow))
    assert size == 4
    assert num_samples < 4


@pytest.mark.parametrize(
    "extra",
    [
        """
        class Stream(torch.utils.data.IterableDataset):
            def __iter__(self):
                return (Texts()[index] for index in range(64))
        def build_dataset():
            return Stream()
        """,
        """
        def build_dataloader(dataset, sampler, **kwargs):
            batches = [collate_fn([dataset[i] for i in range(k, k + 4)]) for k in range(0, 64, 4)]
            return batches
        """,
    ],
    ids=["a stream", "batches of its own"],
)
def test_of_batches_that_cannot_be_formed_the_largest_is_taken(extra, write_workload):
    """Of those that come next."""
    (size, length), num_samples = longest_of(write_workload(extra, base=PADDED_TEXTS))
    assert (size, num_samples) == (4, 64)
    assert length > 25


NO_ROOM = """
def compute_loss(model, batch):
    if batch["words"].shape[1] == 31:
        raise torch.OutOfMemoryError("Tried to allocate 3 GiB")
    return model(batch["words"])
"""


def test_a_plan_that_cannot_hold_the_longest_batch_is_out_of_memory(write_workload, run_plan):
    """Before the warm-up, although no other batch would have failed in the trial."""
    path = write_workload(NO_ROOM, base=PADDED_TEXTS.replace("% 31", "% 31 if index else 31"))
    result = run_plan(path, uneven_batches=True)
    assert (result.outcome, result.phase) == (Outcome.OOM, Phase.FIRST_STEP)


def test_a_trial_says_that_it_trained_on_the_longest_batch(write_workload, run_plan):
    """And among how many samples that was; even batches have none that is longest."""
    path = write_workload(base=PADDED_TEXTS)
    for uneven, expected in ((True, 64), (False, None)):
        result = run_plan(path, {"accumulation": 2}, uneven_batches=uneven)
        assert result.measurement, result.error
        assert result.measurement.longest_batch_of == expected
