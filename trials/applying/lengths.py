"""Samples of uneven length: how long each is, and batches of samples of similar length."""

import numbers
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import RandomSampler, Sampler

# Samples are sorted within groups of so many batches, and within a quarter of a small dataset, as
# by `LengthGroupedSampler` of transformers: enough for even batches, and other ones in each epoch.
_BATCHES_OF_GROUP, _LEAST_GROUPS = 50, 4
_READ_AT_ONCE = 256  # samples that are held at a time while the lengths of all are read


def sample_length(sample: Any) -> int:
    """Return how many numbers or characters a sample holds, in tensors, arrays, lists or texts."""
    if isinstance(sample, Tensor):
        return sample.numel()
    if isinstance(sample, str | bytes):
        return len(sample)
    if isinstance(sample, Mapping):
        return sum(map(sample_length, sample.values()))
    if isinstance(sample, list | tuple):
        return len(sample) if _holds_numbers(sample) else sum(map(sample_length, sample))
    size = getattr(sample, "size", 0)  # of an array of NumPy
    return size if isinstance(size, int) else 0


def _holds_numbers(entries: Sequence[Any]) -> bool:
    return bool(entries) and isinstance(entries[0], numbers.Number)


def told_lengths(dataset: Any) -> list[int] | None:
    """Return what the dataset's attribute `lengths` says of each sample, None without it.

    An attribute of that name that does not hold a number for each sample means something else.
    """
    told: Any = getattr(dataset, "lengths", None)
    try:
        lengths = [int(length) for length in told]
    except (TypeError, ValueError):
        return None
    return lengths if len(lengths) == len(dataset) else None


def read_samples(dataset: Any, indices: Sequence[int]) -> list[Any]:
    """Return samples as a DataLoader reads them: all at once where the dataset can do that."""
    read_all = getattr(dataset, "__getitems__", None)
    if read_all is not None:
        return list(read_all(list(indices)))
    return [dataset[index] for index in indices]


def lengths_of(dataset: Any) -> list[int]:
    """Return the length of each sample; all are read where the dataset has no `lengths`."""
    told = told_lengths(dataset)
    if told is not None:
        return told
    num_samples = len(dataset)
    return [
        sample_length(sample)
        for start in range(0, num_samples, _READ_AT_ONCE)
        for sample in read_samples(dataset, range(start, min(start + _READ_AT_ONCE, num_samples)))
    ]


class LengthOrder(Sampler[int]):
    """An order in which the samples of each batch have similar lengths.

    An epoch holds the same samples as the order that it is made from. They are sorted within
    groups of many batches, and the batches of a group are shuffled. Samples that fill no batch
    stay at the end, so that which ones are dropped is left to chance.

    Args:
        order: shuffles the samples anew in each epoch. Ranks whose orders begin alike stay alike.
        lengths: of all samples.
        batch_size: samples of a batch, over all ranks.
    """

    def __init__(self, order: RandomSampler, lengths: Sequence[int], batch_size: int) -> None:
        self._order = order
        self._lengths = lengths
        self._batch_size = batch_size

    def __iter__(self) -> Iterator[int]:
        """Yield the indices of the next epoch."""
        shuffled, size = list(self._order), self._batch_size
        num_full = len(shuffled) // size
        of_group = size * max(1, min(_BATCHES_OF_GROUP, num_full // _LEAST_GROUPS))
        for start in range(0, num_full * size, of_group):
            yield from self._by_length(shuffled[start : min(start + of_group, num_full * size)])
        yield from shuffled[num_full * size :]

    def __len__(self) -> int:
        """Return the number of samples of an epoch."""
        return len(self._order)

    def _by_length(self, group: list[int]) -> Iterator[int]:
        """Yield a group's samples, batch by batch; the batches are in a random order."""
        ordered, size = sorted(group, key=self._lengths.__getitem__), self._batch_size
        num_batches = len(ordered) // size
        for number in torch.randperm(num_batches, generator=self._order.generator).tolist():
            yield from ordered[number * size : (number + 1) * size]
