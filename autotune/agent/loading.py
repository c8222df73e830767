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


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """Seconds per sample of the loader alone.

    Attributes:
        in_loop_s: without workers.
        with_workers_s: by the number of workers, where those were the limit.
    """

    in_loop_s: float
    with_workers_s: dict[int, float]

    def wait_s(self, plan: Plan, compute_s: float) -> float:
        """Return the seconds per sample that a loop which computes for `compute_s` waits."""
        workers = int(plan.get("workers", 0))
        if not workers:
            return self.in_loop_s
        return max(0.0, self._loader_s(workers) - compute_s)

    def is_known(self, plan: Plan) -> bool:
        """Whether as many workers were measured at their limit."""
        workers = int(plan.get("workers", 0))
        return not workers or workers in self.with_workers_s

    def _loader_s(self, workers: int) -> float:
        if workers in self.with_workers_s:
            return self.with_workers_s[workers]
        # Each process loads as fast as the loop did, or as those that were measured.
        each_s = [seconds * count for count, seconds in self.with_workers_s.items()]
        return max([self.in_loop_s, *each_s]) / workers


def loading_of(history: History) -> Loading:
    """Return what the measured plans say about the loader."""
    by_workers: dict[int, list[float]] = {}
    for trial in (t for t in history.search if t.throughput):
        workers = int(trial.plan.get("workers", 0))
        if waits_for_data(trial) or not workers:
            by_workers.setdefault(workers, []).append(_loader_s(trial, workers))
    in_loop_s = by_workers.pop(0, [0.0])
    return Loading(
        in_loop_s=statistics.median(in_loop_s),
        with_workers_s={count: statistics.median(s) for count, s in by_workers.items()},
    )


def compute_s(trial: Done) -> float:
    """Return the seconds per sample in which the loop did not wait for data; never none."""
    return max(_LEAST_SHARE, 1.0 - wait_share(trial)) / trial.throughput


def _loader_s(trial: Done, workers: int) -> float:
    """A loop that waits for its workers is as slow as they are."""
    return (1.0 if workers else wait_share(trial)) / trial.throughput
