"""What is found out about the workload's dataset and loader."""

import contextlib
import io
import itertools
import tarfile
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torch.utils.data._utils import worker as worker_module

from autotune.search_space.facts import WorkloadFacts
from autotune.search_space.plan import Plan
from autotune.trials.applying.fingerprint import UNKNOWN, fingerprint
from autotune.trials.applying.loader import build_loader
from autotune.trials.feed import Feed
from autotune.trials.seeding import seed_all
from autotune.trials.workload import Workload

_LOADER_S = 0.5  # for which the loader alone is timed
# How far to look into a stream for samples that two workers would both read. Of a thousand samples
# of a million, shuffled by two workers, some are the same.
_STREAM_S, _STREAM_SAMPLES = 0.5, 4096
_CONTAINER_ENTRIES = 100  # of a container in a dataset that are searched for open files


def with_dataset_facts(facts: WorkloadFacts, dataset: Any, seed: int) -> WorkloadFacts:
    """Return the facts with those of the dataset, samples of which are read."""
    return replace(
        facts,
        open_file=open_file(dataset),
        repeats_in_workers=repeats_in_workers(dataset, seed),
    )


def repeats_in_workers(dataset: Any, seed: int) -> bool:
    """Whether two workers would give the same samples, as each reads the whole of a stream.

    This process reads the stream as each of two workers would, for a moment. False where that
    raises, which a trial with workers will show, or where samples are others each time.
    """
    if not isinstance(dataset, IterableDataset):
        return False
    try:
        first, second = (_first_samples(dataset, worker, seed) for worker in range(2))
    except Exception:  # noqa: BLE001  the user's code, which a trial will show
        return False
    return bool(first & second - {UNKNOWN})


def _first_samples(stream: IterableDataset[Any], worker: int, seed: int) -> set[float]:
    """Return the fingerprints of what one of two workers reads first, with a seed of its own."""
    own = worker_module.WorkerInfo(id=worker, num_workers=2, seed=seed + worker, dataset=stream)
    seed_all(seed + worker)
    until, found = time.perf_counter() + _STREAM_S, set[float]()
    with _worker_info_set(own):
        for sample in itertools.islice(stream, _STREAM_SAMPLES):
            found.add(fingerprint(sample))
            if time.perf_counter() > until:
                break
    return found


@contextlib.contextmanager
def _worker_info_set(info: Any) -> Iterator[None]:
    """Let `torch.utils.data.get_worker_info` return `info`, although this is no worker."""
    worker_module._worker_info = info  # noqa: SLF001  where torch's own workers put it
    try:
        yield
    finally:
        worker_module._worker_info = None  # noqa: SLF001


def open_file(dataset: Any) -> str | None:
    """Return the attribute of a dataset that holds an open file to read from, or None.

    Forked workers share the position in such a file: one reads where another has just gone to.
    """
    for name, value in getattr(dataset, "__dict__", {}).items():
        if isinstance(value, Dataset) and (inside := open_file(value)) is not None:
            return inside
        entries = value.values() if isinstance(value, dict) else value
        is_container = isinstance(value, list | tuple | dict)
        held = itertools.islice(entries, _CONTAINER_ENTRIES) if is_container else [value]
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


def has_fixed_batches(workload: Workload, plan: Plan, seed: int, feed: Feed, batch: Any) -> bool:
    """Whether the loader gives batches of one size, whatever size it is asked for.

    False where the loader has an attribute for the size, which was checked when it was built.
    Otherwise a batch of twice as many samples must show their number in the shape of a tensor or
    the length of a list.

    Args:
        workload: with the loader.
        plan: whose batch size is doubled.
        seed: of the order of the samples.
        feed: of the loader under the plan.
        batch: of that loader.
    """
    loader: Any = feed.loader  # a `build_dataloader` may return anything that iterates
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


@dataclass(frozen=True, slots=True, kw_only=True)
class FewBatches:
    """Some batches of a loader, and how fast it gave them.

    Attributes:
        batches: in their order.
        samples_per_s: of the loader alone.
        busy_share: share of the time that a core was busy.
    """

    batches: list[Any]
    samples_per_s: float
    busy_share: float


def read_batches(feed: Feed, batch_size: int, number: int) -> FewBatches:
    """Read `number` batches, and further ones until the loader's speed is known."""
    start, computed = time.perf_counter(), time.process_time()
    batches: list[Any] = []
    count, took_s = 0, 0.0
    while count < number or took_s < _LOADER_S:
        batch = feed.next()
        count, took_s = count + 1, time.perf_counter() - start
        if count <= number:
            batches.append(batch)
    return FewBatches(
        batches=batches,
        samples_per_s=count * batch_size / took_s,
        busy_share=min(1.0, (time.process_time() - computed) / took_s),
    )
