"""Whether batches of samples of similar length would hold less padding, and how much less."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler

from autotune.search_space.facts import WorkloadFacts
from autotune.trials.applying.lengths import (
    LengthOrder,
    read_samples,
    sample_length,
    told_lengths,
)
from autotune.trials.failure import one_line
from autotune.trials.shapes import num_elements

_NUM_SAMPLES, _READ_S = 2048, 0.5  # most samples that are read for their lengths, and seconds
_AGAIN = 16  # samples that are read twice, to see whether their lengths stay
_MOST_READ_S = 10.0  # most seconds in which all samples may be read before a training begins


def with_length_facts(facts: WorkloadFacts, loader: Any, seed: int) -> WorkloadFacts:
    """Return the facts with those of samples of uneven length, if batches are uneven.

    Samples of the loader's dataset are read, and some of them are collated.

    Args:
        facts: with the batch size, and whether batches are uneven.
        loader: as the workload builds it for that batch size.
        seed: of the order in which the gain is computed.
    """
    if not facts.uneven_batches:
        return facts
    try:
        gain = _gain(loader, facts.batch_size, seed)
    except _NoLengthsError as error:
        return replace(facts, length_problem=str(error))
    except Exception as error:  # noqa: BLE001  the user's code, called in an unusual way
        return replace(facts, length_problem=f"reading samples raised {one_line(error)}")
    return replace(facts, length_gain=gain)


class _NoLengthsError(Exception):
    """Why samples cannot be put into batches by their lengths, in words."""


def _gain(loader: Any, batch_size: int, seed: int) -> float:
    if not isinstance(loader, DataLoader) or loader.batch_sampler is None:
        raise _NoLengthsError("the loader makes its batches by itself")
    if isinstance(loader.dataset, IterableDataset):
        raise _NoLengthsError("the dataset is iterable, so its order is its own")
    # The order that autotune gives to a loader has a generator of its own.
    if getattr(getattr(loader.batch_sampler, "sampler", None), "generator", None) is None:
        raise _NoLengthsError("build_dataloader does not use the sampler that it is given")
    lengths = _some_lengths(loader.dataset)
    if len(set(lengths.values())) == 1:
        raise _NoLengthsError("the samples themselves do not differ in length")
    _check_padding(loader, lengths)
    return padding_saved(list(lengths.values()), batch_size, seed)


def _some_lengths(dataset: Any) -> dict[int, int]:
    """Return the lengths of all samples, or of as many as can be read in a moment, by index."""
    if (told := told_lengths(dataset)) is not None:
        return dict(enumerate(told))
    num_samples, start, lengths = len(dataset), time.perf_counter(), dict[int, int]()
    for index in range(0, num_samples, max(1, num_samples // _NUM_SAMPLES)):
        lengths[index] = sample_length(*read_samples(dataset, [index]))
        if time.perf_counter() - start > _READ_S and len(lengths) >= _AGAIN:
            break
    all_s = (time.perf_counter() - start) / len(lengths) * num_samples
    _check_steady(dataset, lengths)
    if all_s > _MOST_READ_S:
        raise _NoLengthsError(
            f"reading the length of each of {num_samples} samples takes about {all_s:.0f} s; give "
            "the dataset an attribute `lengths` with a number for each sample"
        )
    return lengths


def _check_steady(dataset: Any, lengths: Mapping[int, int]) -> None:
    first = list(lengths)[:_AGAIN]
    again = map(sample_length, read_samples(dataset, first))
    if any(lengths[index] != length for index, length in zip(first, again, strict=True)):
        raise _NoLengthsError("a sample has another length each time that it is read")


def _check_padding(loader: DataLoader[Any], lengths: Mapping[int, int]) -> None:
    """Check that a batch of short samples and a long one is as large as one of long samples."""
    ends = [min(lengths, key=lengths.__getitem__), max(lengths, key=lengths.__getitem__)]
    short, long = read_samples(loader.dataset, ends)
    of_short, mixed, of_long = (
        num_elements(loader.collate_fn(samples))
        for samples in ([short] * 4, [short] * 3 + [long], [long] * 4)
    )
    if of_short == of_long or 2 * mixed < of_short + of_long:
        raise _NoLengthsError("batches do not pad short samples to the length of long ones")


def padding_saved(lengths: Sequence[int], batch_size: int, seed: int) -> float:
    """Return how many times as much shuffled batches hold, with their padding, as grouped ones."""
    shuffled = RandomSampler(lengths, generator=torch.Generator().manual_seed(seed))
    grouped = LengthOrder(shuffled, lengths, batch_size)
    sizes = (_padded([lengths[i] for i in order], batch_size) for order in (shuffled, grouped))
    of_shuffled, of_grouped = sizes
    return of_shuffled / of_grouped if of_grouped else 1.0


def _padded(lengths: Sequence[int], batch_size: int) -> int:
    """Return the length of all full batches, each sample padded to the longest of its batch."""
    full = range(0, len(lengths) // batch_size * batch_size, batch_size)
    return sum(batch_size * max(lengths[start : start + batch_size]) for start in full)
