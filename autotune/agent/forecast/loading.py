"""How long the loop will wait for data under a plan, learnt from those that were measured.

Without workers the loop loads each batch itself, so loading adds to computing. Workers load beside
it: then the loop waits only for what they cannot do in the time of computing. Where both share too
few cores, on a CPU, what the one saves the others get.
"""

import math
import statistics
from dataclasses import dataclass

from autotune.agent.forecast.levers import wait_share, waits_for_data
from autotune.agent.history import Done, History
from autotune.search_space.plan import Plan

_LEAST_SHARE = 1e-3  # of the time that a loop must compute in
_HANDING_OVER_S = 3e-4  # what the loop itself needs to get a batch from a worker's process
# What a batch takes to load whatever its size, and the largest share of it: of a dataset that
# gives many samples at once, the size hardly counts.
_FIXED_S, _MOST_FIXED = 1e-4, 0.8
_SETUP = ("workers", "prefetch", "batch_size", "pin_memory", "threads")  # of a loader
# Deviation of the log loading time where nothing is known of so many workers, where it is, and for
# each doubling to a batch that they were measured with.
_UNKNOWN, _DOUBT, _DOUBT_ABOUT_DOUBLING = 0.25, 0.02, 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """Seconds per sample of the loader alone.

    Attributes:
        known_s: by the number of workers and the batch; with workers, where those were the limit.
        measured: how else the loader was set up in those plans.
        cores: that the loop computes on, too; None where a device computes.
    """

    known_s: dict[tuple[int, int], float]
    measured: frozenset[Plan] = frozenset()
    cores: int | None = None

    def step_s(self, plan: Plan, compute_s: float, slower: float = 1.0) -> float:
        """Return the seconds per sample of a loop that computes for `compute_s` of them.

        Args:
            plan: with its workers and batch.
            compute_s: without any waiting.
            slower: how many times as long loading takes as it should.
        """
        workers, batch = int(plan.get("workers", 0)), int(plan["batch_size"])
        loader_s = self._loader_s(workers, batch) * slower
        if not workers:
            return compute_s + loader_s
        taken_s = _share_taken(plan, self.cores) * compute_s
        return max(compute_s + _HANDING_OVER_S / batch, loader_s + taken_s)

    def doubt(self, plan: Plan) -> float:
        """Return how far loading may be off, in the logarithm: less where it was measured."""
        workers = int(plan.get("workers", 0))
        if _setup(plan) in self.measured:
            return 0.0
        known, batch = self._batches(workers), int(plan["batch_size"])
        doublings = min((abs(math.log2(other / batch)) for other in known), default=math.inf)
        return min(_UNKNOWN, _DOUBT + _DOUBT_ABOUT_DOUBLING * doublings)

    def _batches(self, workers: int) -> list[int]:
        return [batch for count, batch in self.known_s if count == workers]

    def _loader_s(self, workers: int, batch: int) -> float:
        if self._batches(workers):
            return self._of_nearest(workers, batch)
        # Each process loads as fast as the loop did, or as those that were measured.
        counts = {count for count, _ in self.known_s}
        each_s = [self._of_nearest(count, batch) * self._at_once(count) for count in counts]
        return max(each_s, default=0.0) / self._at_once(workers)

    def _of_nearest(self, workers: int, batch: int) -> float:
        """Return it from the nearest batch that so many workers were measured with."""
        known = min(self._batches(workers), key=lambda other: abs(math.log(other / batch)))
        batch_s = self.known_s[workers, known] * known
        fixed_s = min(_FIXED_S, _MOST_FIXED * batch_s)
        return (batch_s - fixed_s) / known + fixed_s / batch

    def _at_once(self, workers: int) -> int:
        return max(1, workers if self.cores is None else min(workers, self.cores))


def loading_of(history: History) -> Loading:
    """Return what the measured plans say about the loader."""
    site = history.space.site
    cores = site.cores_per_rank if site.hardware.device_kind == "cpu" else None
    known: dict[tuple[int, int], list[float]] = {}
    measured: set[Plan] = set()
    for trial in (t for t in history.search if t.throughput):
        workers, batch = int(trial.plan.get("workers", 0)), int(trial.plan["batch_size"])
        if not waits_for_data(trial) and workers:
            continue
        known.setdefault((workers, batch), []).append(_loader_s(trial, workers, cores))
        measured.add(_setup(trial.plan))
    return Loading(
        known_s={setup: statistics.median(seconds) for setup, seconds in known.items()},
        measured=frozenset(measured),
        cores=cores,
    )


def _setup(plan: Plan) -> Plan:
    return Plan.of({name: plan[name] for name in _SETUP if name in plan})


def compute_s(trial: Done) -> float:
    """Return the seconds per sample in which the loop did not wait for data."""
    return computing_share(trial) / trial.throughput


def computing_share(trial: Done) -> float:
    """Return the share of the time in which the loop did not wait for data; never none."""
    return max(_LEAST_SHARE, 1.0 - wait_share(trial))


def _loader_s(trial: Done, workers: int, cores: int | None) -> float:
    """A loop that waits for its workers is as slow as they are, with the cores that it leaves."""
    if not workers:
        return wait_share(trial) / trial.throughput
    return 1.0 / trial.throughput - _share_taken(trial.plan, cores) * compute_s(trial)


def _share_taken(plan: Plan, cores: int | None) -> float:
    """Return the share of the cores that computing takes from the workers while it goes on."""
    threads, workers = int(plan.get("threads", 1)), int(plan.get("workers", 0))
    if cores is None or threads + workers <= cores:
        return 0.0
    return min(1.0, threads / cores)
