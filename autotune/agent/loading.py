"""How long the loop will wait for data under a plan, learnt from those that were measured.

Without workers the loop loads each batch itself, so loading adds to computing. Workers load beside
it: then the loop waits only for what they cannot do in the time of computing.
"""

import statistics
from dataclasses import dataclass

from autotune.agent.history import Done, History
from autotune.agent.levers import wait_share, waits_for_data
from autotune.search_space.plan import Plan

_LEAST_SHARE = 1e-3  # of the time that a loop must compute in
_HANDING_OVER_S = 3e-4  # what the loop itself needs to get a batch from a worker's process
_SETUP = ("workers", "prefetch", "batch_size", "pin_memory", "threads")  # of a loader
_DOUBT, _UNKNOWN = 0.02, 0.25  # deviation of the log loading time, measured and not


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """Seconds per sample of the loader alone.

    Attributes:
        in_loop_s: without workers.
        with_workers_s: by the number of workers, where those were the limit.
        measured: how else the loader was set up in those plans.
    """

    in_loop_s: float
    with_workers_s: dict[int, float]
    measured: frozenset[Plan] = frozenset()

    def step_s(self, plan: Plan, compute_s: float, slower: float = 1.0) -> float:
        """Return the seconds per sample of a loop that computes for `compute_s` of them.

        Args:
            plan: with its workers and batch.
            compute_s: without any waiting.
            slower: how many times as long loading takes as it should.
        """
        workers = int(plan.get("workers", 0))
        if not workers:
            return compute_s + self.in_loop_s * slower
        handing_over_s = _HANDING_OVER_S / int(plan["batch_size"])
        return max(compute_s + handing_over_s, self._loader_s(workers) * slower)

    def doubt(self, plan: Plan) -> float:
        """Return how far loading may be off, in the logarithm: less where it was measured."""
        workers = int(plan.get("workers", 0))
        if _setup(plan) in self.measured:
            return 0.0
        return _DOUBT if not workers or workers in self.with_workers_s else _UNKNOWN

    def _loader_s(self, workers: int) -> float:
        if workers in self.with_workers_s:
            return self.with_workers_s[workers]
        # Each process loads as fast as the loop did, or as those that were measured.
        each_s = [seconds * count for count, seconds in self.with_workers_s.items()]
        return max([self.in_loop_s, *each_s]) / workers


def loading_of(history: History) -> Loading:
    """Return what the measured plans say about the loader."""
    by_workers: dict[int, list[float]] = {}
    measured: set[Plan] = set()
    for trial in (t for t in history.search if t.throughput):
        workers = int(trial.plan.get("workers", 0))
        if waits_for_data(trial) or not workers:
            by_workers.setdefault(workers, []).append(_loader_s(trial, workers))
            measured.add(_setup(trial.plan))
    in_loop_s = by_workers.pop(0, [0.0])
    return Loading(
        in_loop_s=statistics.median(in_loop_s),
        with_workers_s={count: statistics.median(s) for count, s in by_workers.items()},
        measured=frozenset(measured),
    )


def _setup(plan: Plan) -> Plan:
    return Plan.of({name: plan[name] for name in _SETUP if name in plan})


def compute_s(trial: Done) -> float:
    """Return the seconds per sample in which the loop did not wait for data."""
    return computing_share(trial) / trial.throughput


def computing_share(trial: Done) -> float:
    """Return the share of the time in which the loop did not wait for data; never none."""
    return max(_LEAST_SHARE, 1.0 - wait_share(trial))


def _loader_s(trial: Done, workers: int) -> float:
    """A loop that waits for its workers is as slow as they are."""
    return (1.0 if workers else wait_share(trial)) / trial.throughput
