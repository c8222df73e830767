"""Which samples each rank reads: its batch out of each global batch."""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from torch.utils.data import IterableDataset, RandomSampler, Sampler

from autotune.trials.applying.fingerprint import fingerprint
from autotune.trials.applying.lengths import LengthOrder
from autotune.trials.process_group import Ranks
from autotune.trials.request import RankPlace

T = TypeVar("T")


class RankSampler(Sampler[int]):
    """One rank's share of an order that all ranks know: batch by batch, in the order's sequence.

    torch's DistributedSampler deals out single samples instead, so that its global batches hold
    other samples than those that one device would train on.
    """

    def __init__(
        self, order: RandomSampler | LengthOrder, batch_size: int, place: RankPlace
    ) -> None:
        self._order = order
        self._batch_size = batch_size
        self._place = place

    def __iter__(self) -> Iterator[int]:
        """Yield the indices of the next epoch."""
        return _share(self._order, self._batch_size, self._place)

    def __len__(self) -> int:
        """Return the number of samples of this rank per epoch."""
        return len(self._order) // (self._batch_size * self._place.world_size) * self._batch_size


class RankStream(IterableDataset[Any]):
    """One rank's share of a stream that each rank reads whole."""

    def __init__(self, stream: IterableDataset[Any], batch_size: int, place: RankPlace) -> None:
        self._stream = stream
        self._batch_size = batch_size
        self._place = place

    def __iter__(self) -> Iterator[Any]:
        """Yield the samples of one pass over the stream."""
        return _share(self._stream, self._batch_size, self._place)


def _share(samples: Iterable[T], batch_size: int, place: RankPlace) -> Iterator[T]:
    """Yield the rank's batch out of each complete global batch."""
    iterator, global_size = iter(samples), batch_size * place.world_size
    first = place.rank * batch_size
    while len(batch := list(itertools.islice(iterator, global_size))) == global_size:
        yield from batch[first : first + batch_size]


def divides_itself(stream: IterableDataset[Any], ranks: Ranks) -> bool:
    """Whether the stream gives each rank other samples by itself.

    Told by the first sample on each rank. A stream whose first sample is another one each time
    may do that on all ranks alike, so of such a stream the answer is no.
    """
    one, again = next(iter(stream), None), next(iter(stream), None)
    is_steady = float(fingerprint(one) == fingerprint(again))
    everyones = ranks.gather(fingerprint(one), is_steady)
    return all(steady for _, steady in everyones) and len({first for first, _ in everyones}) > 1
