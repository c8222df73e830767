"""Batches of samples of similar length: the same samples, with less padding."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler

import autotune
from autotune.errors import PlanError
from autotune.search_space.plan import Plan
from autotune.trials.applying.lengths import LengthOrder, lengths_of, sample_length
from autotune.trials.applying.loader import build_loader
from autotune.trials.probing.lengths import padding_saved
from autotune.trials.workload import load_workload
from tests.trials.padded_texts import PADDED_TEXTS
from tests.trials.two_ranks import met, on_two_ranks

PLAN = Plan.of({"batch_size": 4, "length_bucketing": True})
NUM_SAMPLES = 1001


def random_lengths(number=NUM_SAMPLES):
    return torch.randint(1, 500, (number,), generator=torch.Generator().manual_seed(1)).tolist()


def order_of(lengths, batch_size=8, seed=0):
    shuffled = RandomSampler(lengths, generator=torch.Generator().manual_seed(seed))
    return LengthOrder(shuffled, lengths, batch_size)


def spread(order, lengths, batch_size=8):
    """Return the mean difference between the longest and the shortest sample of a batch."""
    batches = torch.tensor([lengths[index] for index in order][: NUM_SAMPLES // 8 * 8])
    batches = batches.view(-1, batch_size)
    return (batches.amax(1) - batches.amin(1)).float().mean().item()


def test_an_epoch_holds_each_sample_once():
    """As without grouping, and in another order in each epoch."""
    order = order_of(random_lengths())
    first, second = list(order), list(order)
    assert sorted(first) == sorted(second) == list(range(NUM_SAMPLES))
    assert len(order) == NUM_SAMPLES
    assert first != second


def test_samples_of_a_batch_have_similar_lengths():
    """In a shuffled order they differ by most of the range of lengths."""
    lengths = random_lengths()
    grouped, shuffled = order_of(lengths), RandomSampler(lengths)
    assert spread(grouped, lengths) < spread(shuffled, lengths) / 4


def test_long_batches_come_among_short_ones():
    """So that a stretch of steps is not slower than the next."""
    lengths = random_lengths()
    means = (
        torch.tensor([lengths[i] for i in order_of(lengths)][:1000]).view(-1, 8).float().mean(1)
    )
    assert (means.diff() > 0).any()
    assert (means.diff() < 0).any()
    assert means[:20].std() > means.std() / 2


def test_which_samples_fill_no_batch_is_left_to_chance():
    """They are those that a shuffled order drops, not always the longest."""
    lengths = random_lengths()
    shuffled = RandomSampler(lengths, generator=torch.Generator().manual_seed(0))
    assert list(order_of(lengths))[-1] == list(shuffled)[-1]


SAMPLES = {
    "a tensor": (torch.zeros(3, 4), 12),
    "a tensor with a label": ((torch.zeros(3), 1), 3),
    "words": ({"input_ids": [1, 2, 3], "attention_mask": [1, 1, 1]}, 6),
    "an array": (np.zeros((2, 5)), 10),
    "a text": (["some", "words"], 9),
    "a number": (7, 0),
}


@pytest.mark.parametrize("kind", SAMPLES)
def test_a_sample_is_as_long_as_what_it_holds(kind):
    """In numbers or characters, whatever kind of sample it is."""
    sample, length = SAMPLES[kind]
    assert sample_length(sample) == length


def test_a_dataset_may_tell_its_lengths(write_workload):
    """No sample is read then; an attribute that means something else is not used."""
    dataset = load_workload(write_workload(base=PADDED_TEXTS)).build_dataset()
    read = lengths_of(dataset)
    assert sorted(set(read)) == list(range(1, 32))
    dataset.lengths = torch.arange(64)
    assert lengths_of(dataset) == list(range(64))
    for other in ([(1, 2)] * 64, [1, 2], 64, "words"):
        dataset.lengths = other
        assert lengths_of(dataset) == read


def test_the_loader_groups_where_the_plan_says_so(write_workload):
    """Its batches hold less padding."""
    workload = load_workload(write_workload(base=PADDED_TEXTS))
    sizes = [
        sum(batch["words"].numel() for batch in build_loader(workload, plan, 0))
        for plan in (PLAN, Plan.of({"batch_size": 4}))
    ]
    assert sizes[0] < 0.9 * sizes[1]


def _samples_read(place, path):
    loader = build_loader(load_workload(path), PLAN, 0, met(place))
    batches = [batch["words"] for batch in loader]
    return [words[:, 0].tolist() for words in batches], [words.shape[1] for words in batches]


def test_ranks_read_batches_of_similar_length(write_workload):
    """At the same time, so that none waits for the other, and no sample twice."""
    many = PADDED_TEXTS.replace("1 + index % 50", "1 + index").replace("64)]", "640)]")
    path = write_workload(base=many)
    (one, lengths), (two, others) = on_two_ranks(_samples_read, path)
    read = [index for batches in (one, two) for batch in batches for index in batch]
    assert sorted(read) == list(range(1, 641))
    assert max(abs(a - b) for a, b in zip(lengths, others, strict=True)) < 8


def test_less_padding_is_told_before_anything_is_tried():
    """Samples of one length have none, whatever batch they are in."""
    assert padding_saved(random_lengths(), 8, seed=0) > 1.5
    assert padding_saved([7] * 100, 8, seed=0) == 1.0


def test_a_loop_of_ones_own_is_given_such_batches(write_workload):
    """By `autotune.prepare`, where its loader shuffles; an order of its own is left alone."""
    workload = load_workload(write_workload(base=PADDED_TEXTS))
    dataset, model = workload.build_dataset(), workload.build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loaders = [
        DataLoader(dataset, 4, shuffle=shuffle, collate_fn=workload.collate_fn)
        for shuffle in (True, False)
    ]
    *_, loader = autotune.prepare(model, optimizer, loaders[0], plan=PLAN)
    assert isinstance(loader.sampler, LengthOrder)
    assert sum(len(batch["words"]) for batch in loader) == 64
    with pytest.raises(PlanError, match="give DataLoader shuffle=True"):
        autotune.prepare(model, optimizer, loaders[1], plan=PLAN)
