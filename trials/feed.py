"""Reads batches from a loader without end, and times the waits."""

import itertools
import time
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from autotune.errors import WorkloadError
from autotune.trials.applying.ahead import CopiedAhead

# A drain that takes longer than this stops: by then batches come at the loader's own speed.
_MAX_DRAIN_S = 2.0


class Feed:
    """Batches without end, epoch after epoch, with the time spent waiting for them.

    Attributes:
        wait_s: seconds spent in `next(loader)` so far, epoch boundaries included.
    """

    def __init__(self, loader: DataLoader[Any] | CopiedAhead) -> None:
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
        """Take up to `count` batches, at least one, until the time is up; return how many."""
        start = time.perf_counter()
        for taken in range(1, count + 1):
            self.next()
            if time.perf_counter() - start > _MAX_DRAIN_S:
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
