"""The longest batch: of uneven batches it takes the most memory, and may come late in training."""

import itertools
import time
from dataclasses import dataclass
from typing import Any

from torch.utils.data import IterableDataset

from autotune.trials.applying.lengths import read_samples, sample_length, told_lengths
from autotune.trials.feed import Feed
from autotune.trials.shapes import num_elements

NUM_SAMPLES = 512
"""Samples, evenly over the dataset, among which the longest are looked for."""

_READ_S = 1.0  # seconds after which no further sample is read
_NUM_BATCHES = 16  # of a loader that makes its batches by itself, of which the largest is taken


@dataclass(frozen=True, slots=True)
class LongestBatch:
    """The largest batch that was found.

    Attributes:
        batch: on the CPU, or as the loader gives it.
        num_samples: among which its samples are the longest.
    """

    batch: Any
    num_samples: int


def longest_batch(feed: Feed, batch_size: int) -> LongestBatch:
    """Return a batch of the longest samples of a part of the dataset.

    A dataset with the attribute `lengths` is not searched: it tells the longest of all. Of a
    stream, and of a dataset that makes batches, the largest of the loader's next batches is taken.

    Args:
        feed: whose loader's dataset is read, and whose batches are taken otherwise.
        batch_size: samples of the batch.
    """
    loader = feed.loader
    dataset = getattr(loader, "dataset", None)
    is_map = dataset is not None and not isinstance(dataset, IterableDataset)
    if not is_map or getattr(loader, "batch_sampler", None) is None:
        batches = (feed.next() for _ in range(_NUM_BATCHES))
        return LongestBatch(max(batches, key=num_elements), _NUM_BATCHES * batch_size)
    told = told_lengths(dataset)
    if told is not None:
        longest = sorted(range(len(told)), key=told.__getitem__)[-batch_size:]
        return LongestBatch(loader.collate_fn(read_samples(dataset, longest)), len(told))
    samples = _read(dataset, max(NUM_SAMPLES, batch_size))
    ordered = sorted(samples, key=sample_length, reverse=True)
    filled = list(itertools.islice(itertools.cycle(ordered), batch_size))
    return LongestBatch(loader.collate_fn(filled), len(samples))


def _read(dataset: Any, at_most: int) -> list[Any]:
    """Return samples evenly over the dataset, as many as are read in time."""
    num_samples, start = len(dataset), time.perf_counter()
    samples = list[Any]()
    for number in range(min(at_most, num_samples)):
        samples += read_samples(dataset, [number * num_samples // min(at_most, num_samples)])
        if time.perf_counter() - start > _READ_S:
            break
    return samples
