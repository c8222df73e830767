"""Builds the user's loader as a plan says, and reads from it for ever, timing the waits."""

import contextlib
import io
import itertools
import pickle
import tarfile
import time
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, Sampler
from torch.utils.data._utils import worker as worker_module

from autotune.errors import WorkloadError
from autotune.search_space.plan import Plan
from autotune.trials.process_group import ALONE, Ranks
from autotune.trials.request import RankPlace
from autotune.trials.seeding import seed_all
from autotune.trials.workload import DEFAULT_BATCH_SIZE, Workload

T = TypeVar("T")

# Longer than this without the queue's worth of batches, and they come at the loader's own speed.
_DRAIN_CAP_S = 2.0
_UNKNOWN = -1.0
_OF_BATCHES = ("batch_size", "drop_last")
_OF_LOADING = ("num_workers", "pin_memory", "prefetch_factor")
# How far to look into a stream for samples that two workers would both read. Of a thousand samples
# of a million, shuffled by two, some are the same.
_LOOK_S, _LOOK_SAMPLES = 0.5, 4096
_LOOK_FILES = 100  # entries of a container that may hold open files


def build_loader(
    workload: Workload, plan: Plan, seed: int, ranks: Ranks = ALONE
) -> DataLoader[Any]:
    """Return the loader of one rank's share of the workload's dataset under `plan`.

    Incomplete batches are dropped, so that every batch counts `batch_size` samples. The batches
    of all ranks together are those of one device with a batch of `batch_size` times their number.
    All ranks must call it.

    Raises:
        WorkloadError: for an empty dataset, one smaller than the batch, or a `build_dataloader`
            that goes its own way.
    """
    dataset, place = workload.build_dataset(), ranks.place
    num_samples = dataset_len(dataset)
    batch_size = int(plan.get("batch_size", DEFAULT_BATCH_SIZE))
    if num_samples is not None:
        _check_size(workload, num_samples, batch_size, place.world_size)
    workers = int(plan.get("workers", 0))
    options: dict[str, Any] = {
        "batch_size": batch_size,
        "num_workers": workers,
        "pin_memory": bool(plan.get("pin_memory", False)),
        "drop_last": True,
        "collate_fn": workload.collate_fn,
        "sampler": _sampler(dataset, seed, batch_size, place),
    }
    if workers:
        options |= {"prefetch_factor": int(plan.get("prefetch", 2)), "persistent_workers": True}
    if (
        place.world_size > 1
        and isinstance(dataset, IterableDataset)
        and not _shares_itself_out(dataset, ranks)
    ):
        dataset = RankStream(dataset, batch_size, place)
    if workload.build_dataloader is None:
        return DataLoader(dataset, **options)
    return _checked(workload.build_dataloader(dataset, **options), workload, options)


def dataset_len(dataset: Any) -> int | None:
    """Return the number of samples, None for an iterable dataset."""
    return None if isinstance(dataset, IterableDataset) else len(dataset)


def repeats_in_workers(stream: Any, seed: int) -> bool:
    """Whether two workers of a dataset would give samples twice: each reads the whole of a stream.

    Each worker is played in this process for a moment, as nothing may go wrong that only trials
    with workers should tell. What raises, or is in another random order each time, is unknown.
    """
    if not isinstance(stream, IterableDataset):
        return False
    try:
        first, second = (_first_samples(stream, worker, seed) for worker in range(2))
    except Exception:  # noqa: BLE001  the user's code, which a trial will show
        return False
    return bool(first & second - {_UNKNOWN})


def _first_samples(stream: IterableDataset[Any], worker: int, seed: int) -> set[float]:
    """Return the fingerprints of what one of two workers reads first, with a seed of its own."""
    own = worker_module.WorkerInfo(id=worker, num_workers=2, seed=seed + worker, dataset=stream)
    seed_all(seed + worker)
    until, found = time.perf_counter() + _LOOK_S, set[float]()
    with _as_worker(own):
        for sample in itertools.islice(stream, _LOOK_SAMPLES):
            found.add(_fingerprint(sample))
            if time.perf_counter() > until:
                break
    return found


@contextlib.contextmanager
def _as_worker(info: Any) -> Iterator[None]:
    """Let `torch.utils.data.get_worker_info` tell of a worker that this process is not."""
    worker_module._worker_info = info  # noqa: SLF001  where torch's own workers put it
    try:
        yield
    finally:
        worker_module._worker_info = None  # noqa: SLF001


def _shares_itself_out(stream: IterableDataset[Any], ranks: Ranks) -> bool:
    """Whether each of several ranks reads other samples of a stream by itself.

    One that gives another sample each time that it is begun may do so on all ranks alike.
    """
    one, again = next(iter(stream), None), next(iter(stream), None)
    is_steady = float(_fingerprint(one) == _fingerprint(again))
    everyones = ranks.gather(_fingerprint(one), is_steady)
    return all(steady for _, steady in everyones) and len({first for first, _ in everyones}) > 1


class _Pickler(pickle.Pickler):
    """Puts a tensor's values in its place: how tensors are pickled depends on where they lie."""

    def persistent_id(self, obj: Any) -> Any:
        if not isinstance(obj, Tensor):
            return None
        return obj.detach().cpu().flatten().view(torch.uint8).numpy().tobytes()


def _fingerprint(sample: Any) -> float:
    """Return a number for what a sample holds, the same in all processes, or `_UNKNOWN`."""
    file = io.BytesIO()
    try:
        _Pickler(file).dump(sample)
    except (pickle.PicklingError, AttributeError, TypeError, RuntimeError):
        return _UNKNOWN
    return float(zlib.crc32(file.getvalue()))


def _sampler(dataset: Any, seed: int, batch_size: int, place: RankPlace) -> Sampler[int] | None:
    if isinstance(dataset, IterableDataset):
        return None
    order = RandomSampler(dataset, generator=torch.Generator().manual_seed(seed))
    return order if place.world_size == 1 else RankSampler(order, batch_size, place)


def _check_size(workload: Workload, num_samples: int, batch_size: int, num_ranks: int) -> None:
    name, needed = workload.path.name, batch_size * num_ranks
    if num_samples == 0:
        raise WorkloadError(f"{name}: the dataset is empty: len(build_dataset()) is 0")
    if num_samples < needed:
        of_ranks = "" if num_ranks == 1 else f" on each of {num_ranks} ranks"
        raise WorkloadError(
            f"{name}: the dataset has {num_samples} samples, fewer than one batch of "
            f"{batch_size}{of_ranks}; set BATCH_SIZE = {num_samples // num_ranks} or less"
        )


def _share(samples: Iterable[T], batch_size: int, place: RankPlace) -> Iterator[T]:
    """Yield the rank's batch out of each whole global batch."""
    iterator = iter(samples)
    first = place.rank * batch_size
    while len(batch := list(itertools.islice(iterator, batch_size * place.world_size))) == (
        batch_size * place.world_size
    ):
        yield from batch[first : first + batch_size]


class RankSampler(Sampler[int]):
    """One rank's share of an order that all ranks know: batch by batch, in the order's sequence.

    torch's DistributedSampler deals single samples out instead, which mixes other samples into
    the global batches than one device would train on.
    """

    def __init__(self, order: RandomSampler, batch_size: int, place: RankPlace) -> None:
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
    """One rank's share of a stream, which each rank reads whole."""

    def __init__(self, stream: IterableDataset[Any], batch_size: int, place: RankPlace) -> None:
        self._stream = stream
        self._batch_size = batch_size
        self._place = place

    def __iter__(self) -> Iterator[Any]:
        """Yield the samples of one pass over the stream."""
        return _share(self._stream, self._batch_size, self._place)


def _checked(loader: Any, workload: Workload, options: dict[str, Any]) -> DataLoader[Any]:
    """Check that each batch counts what throughput takes it for, on each rank another one.

    And that it is loaded as the plan says. A dataset may make the batches itself, and whatever
    iterates like a loader will do: of these no attribute tells.
    """
    if not isinstance(loader, DataLoader):
        return loader  # type: ignore[no-any-return]
    batches = loader.batch_sampler
    given = {name: getattr(batches, name) for name in _OF_BATCHES if hasattr(batches, name)}
    given |= {name: getattr(loader, name) for name in _OF_LOADING if name in options}
    if batches is not None and isinstance(options["sampler"], RankSampler):
        given["sampler"] = loader.sampler
    for name, value in given.items():
        if value != options[name]:
            raise WorkloadError(
                f"{workload.path.name}: build_dataloader was asked for {name}="
                f"{_told(options[name])} and made {_told(value)}; pass **kwargs on to DataLoader"
            )
    return loader


def _told(option: Any) -> str:
    """Return the option in words: a sampler by its class."""
    return type(option).__name__ if isinstance(option, Sampler) else str(option)


def open_file(dataset: Any) -> str | None:
    """Return the attribute of a dataset that holds an open file to read from, or None.

    Forked workers share its position: one reads where another has just gone to.
    """
    for name, value in getattr(dataset, "__dict__", {}).items():
        if isinstance(value, Dataset) and (inside := open_file(value)) is not None:
            return inside
        entries = value.values() if isinstance(value, dict) else value
        several = isinstance(value, list | tuple | dict)
        held = itertools.islice(entries, _LOOK_FILES) if several else [value]
        if any(map(_is_open_file, held)):
            return str(name)
    return None


def _is_open_file(value: Any) -> bool:
    if isinstance(value, zipfile.ZipFile | tarfile.TarFile):
        return True
    if not isinstance(value, io.IOBase) or value.closed or not value.readable():
        return False
    try:
        value.fileno()
    except OSError:  # it is in memory
        return False
    return True


def fixed_batches(workload: Workload, plan: Plan, seed: int, loader: Any, batch: Any) -> bool:
    """Whether the workload's loader gives batches of one size, whatever it is asked for.

    Where an attribute tells the size, it was checked. Else a batch of twice as many samples must
    show their number in the shape of a tensor or the length of a list.

    Args:
        workload: with the loader.
        plan: its batch is doubled.
        seed: of the order of the samples.
        loader: under the plan.
        batch: of that loader.
    """
    batches = loader.batch_sampler if isinstance(loader, DataLoader) else None
    if hasattr(batches, "batch_size"):
        return False
    doubled = 2 * int(plan["batch_size"])
    try:
        larger = build_loader(workload, Plan.of({**plan.values, "batch_size": doubled}), seed)
        sizes = set(_sizes(next(iter(larger))))
    except Exception:  # noqa: BLE001  a dataset may be too small, and trials show the rest
        return False
    return doubled not in sizes or sizes == set(_sizes(batch))


def _sizes(batch: Any) -> Iterator[int]:
    """Yield the sizes of all dimensions of tensors and the lengths of lists in the batch."""
    if isinstance(batch, Tensor):
        yield from batch.shape
    elif isinstance(batch, dict):
        for value in batch.values():
            yield from _sizes(value)
    elif isinstance(batch, list | tuple):
        yield len(batch)
        for value in batch:
            yield from _sizes(value)
    elif hasattr(batch, "__dict__"):
        yield from _sizes(vars(batch))


class Feed:
    """Batches without end, epoch after epoch, with the time spent waiting for them.

    Attributes:
        wait_s: seconds spent in `next(loader)` so far, epoch boundaries included.
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader = loader
        self.wait_s = 0.0
        self._batches = self._endless()

    def next(self) -> Any:
        """Return the next batch."""
        start = time.perf_counter()
        batch = next(self._batches)
        self.wait_s += time.perf_counter() - start
        return batch

    def drain(self) -> float | None:
        """Empty the queue that filled while nobody was reading, and time the loader alone.

        Without this, windows measure that queue instead of the loader: 16 workers with a
        prefetch of 8 hide 128 batches. The batches are thrown away, which costs no step.

        Returns:
            Seconds per batch of the loader alone; None when it has no queue.
        """
        workers = int(getattr(self.loader, "num_workers", 0) or 0)
        if not workers:
            return None
        depth = workers * int(getattr(self.loader, "prefetch_factor", None) or 2)
        self._discard(depth)
        start, count = time.perf_counter(), self._discard(max(4, 2 * workers))
        return (time.perf_counter() - start) / count

    def _discard(self, count: int) -> int:
        """Take up to `count` batches, at least one, until the cap; return how many."""
        start = time.perf_counter()
        for taken in range(1, count + 1):
            self.next()
            if time.perf_counter() - start > _DRAIN_CAP_S:
                return taken
        return count

    def _endless(self) -> Iterator[Any]:
        for epoch in itertools.count():
            empty = True
            for batch in self.loader:
                empty = False
                yield batch
            if empty and epoch:
                raise WorkloadError(
                    "the loader gave no batch when it was read once more, as each epoch does; a "
                    "generator or a stream of a file ends for good: begin it anew in __iter__"
                )
            if empty:
                size = getattr(self.loader, "batch_size", None)
                raise WorkloadError(
                    "the loader gave no batch" + (f" of {size} samples" if size else "") + "; "
                    "incomplete ones are dropped, so each process that loads needs as many"
                )
