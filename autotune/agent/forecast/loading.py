"""How long the loop will wait for data under a plan, learnt from those that were measured.

Without workers the loop loads each batch itself, so loading adds to computing. Workers load beside
it: then the loop waits only for what they cannot do in the time of computing. Where both share too
few cores, on a CPU, what the one saves the others get.
"""

import math
import statistics
from dataclasses import dataclass

from autotune.agent.done import Done
from autotune.agent.history import History
from autotune.search_space.knobs import CATALOGUE
from autotune.search_space.plan import Plan

DATA_WAIT = 0.02  # share of the time above which the loader is worth a trial
_LEAST_SHARE = 1e-3  # of the time that a loop must compute in
_HANDING_OVER_S = 3e-4  # what the loop itself needs to get a batch from a worker's process
# What a batch takes to load whatever its size, and the largest share of it: of a dataset that
# gives many samples at once, the size hardly counts.
_FIXED_S, _MOST_FIXED = 1e-4, 0.8
_SETUP = ("batch_size", *(knob.name for knob in CATALOGUE if knob.feeds_device))  # of a loader
# Deviation of the log loading time where nothing is known of so many workers, where it is, and for
# each doubling to a batch that they were measured with.
_UNKNOWN, _DOUBT, _DOUBT_ABOUT_DOUBLING = 0.25, 0.02, 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """Seconds per sample of one process that loads, or of one on each rank, all ranks' counted.

    Attributes:
        known_s: by the number of workers and the batch; with workers, where those were the limit.
        measured: how else the loader was set up in those plans.
        crew: how many of the workers load at once.
        num_ranks: each takes a batch of its own in a step.
    """

    known_s: dict[tuple[int, int], float]
    measured: frozenset[Plan]
    crew: "Crew"
    num_ranks: int

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
        taken_s = self.crew.share_taken(plan) * compute_s
        computing_s = compute_s + _HANDING_OVER_S / (batch * self.num_ranks)
        return _together_s(computing_s, loader_s + taken_s, self.crew)

    def doubt(self, plan: Plan) -> float:
        """Return how far loading may be off, in the logarithm: less where it was measured."""
        workers = int(plan.get("workers", 0))
        if _setup(plan) in self.measured:
            return 0.0
        known, batch = self._batches(workers), int(plan["batch_size"])
        if not known:
            return _UNKNOWN
        low, high = _around(batch, known)
        if low == high != batch:
            return _UNKNOWN  # what a batch costs beside its samples shows from two of them
        low_s, high_s = self.known_s[workers, low], self.known_s[workers, high]
        # The batch that loads best may be anywhere between two.
        between = abs(high_s - low_s) / ((high_s + low_s) or 1.0)
        doublings = min(abs(math.log2(other / batch)) for other in (low, high))
        return min(_UNKNOWN, _DOUBT + _DOUBT_ABOUT_DOUBLING * doublings + between)

    def _batches(self, workers: int) -> list[int]:
        return [batch for count, batch in self.known_s if count == workers]

    def _loader_s(self, workers: int, batch: int) -> float:
        # Each process loads as fast as the loop did, or as those that were measured.
        counts = {workers} if self._batches(workers) else {count for count, _ in self.known_s}
        each_s = [self._alone_s(count, batch) for count in counts]
        return max(each_s, default=0.0) / self.crew.at_once(workers, batch)

    def _alone_s(self, workers: int, batch: int) -> float:
        """Return it from the batches around that so many workers were measured with."""
        low, high = _around(batch, self._batches(workers))
        if low != high:
            share = math.log(batch / low) / math.log(high / low)
            low_s, high_s = self.known_s[workers, low], self.known_s[workers, high]
            return low_s + share * (high_s - low_s)
        batch_s = self.known_s[workers, low] * low * self.num_ranks
        fixed_s = min(_FIXED_S, _MOST_FIXED * batch_s)
        return ((batch_s - fixed_s) / low + fixed_s / batch) / self.num_ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Crew:
    """How many workers load at once.

    Attributes:
        cores: that the loop computes on, too; None where a device computes.
        samples: of an epoch on each rank, None where nothing ends.
        busy: part of the time that loading keeps a core busy; the rest it waits for storage.
    """

    cores: int | None
    samples: int | None
    busy: float

    def at_once(self, workers: int, batch: int) -> float:
        """Return it in the mean over an epoch, at whose end they wait for the next one.

        Beside a device, that is: the cores of a CPU have the step to compute meanwhile.
        """
        if not workers:
            return 1.0
        if self.cores is not None:
            return min(workers, self.cores / max(self.busy, _LEAST_SHARE))
        if self.samples is None:
            return workers
        batches = max(1, self.samples // batch)
        return batches / math.ceil(batches / workers)

    def share_taken(self, plan: Plan) -> float:
        """Return the share of the cores that computing takes from the workers meanwhile."""
        threads, workers = int(plan.get("threads", 1)), int(plan.get("workers", 0))
        if self.cores is None or threads + workers * self.busy <= self.cores:
            return 0.0
        return min(1.0, threads / self.cores)


def _around(batch: int, known: list[int]) -> tuple[int, int]:
    """Return the nearest known batches on both sides; beyond all of them, the last one twice."""
    low = max((other for other in known if other <= batch), default=min(known))
    return low, min((other for other in known if other >= batch), default=max(known))


def loading_of(history: History) -> Loading:
    """Return what the measured plans say about the loader."""
    crew = _crew(history)
    known: dict[tuple[int, int], list[float]] = {}
    measured: set[Plan] = set()
    for trial in (t for t in history.search if t.is_measured):
        workers, batch = int(trial.plan.get("workers", 0)), int(trial.plan["batch_size"])
        if not waits_for_data(trial) and workers:
            continue
        alone_s = _loader_s(trial, workers, crew) * crew.at_once(workers, batch)
        known.setdefault((workers, batch), []).append(alone_s)
        measured.add(_setup(trial.plan))
    return Loading(
        known_s={setup: statistics.median(seconds) for setup, seconds in known.items()},
        measured=frozenset(measured),
        crew=crew,
        num_ranks=history.space.num_ranks,
    )


def _crew(history: History) -> Crew:
    site, facts = history.space.site, history.space.facts
    cores = site.cores_per_rank if site.hardware.device_kind == "cpu" else None
    samples = facts.dataset_len and facts.dataset_len // history.space.num_ranks
    return Crew(cores=cores, samples=samples, busy=facts.loader_busy_share)


def _setup(plan: Plan) -> Plan:
    return Plan.of({name: plan[name] for name in _SETUP if name in plan})


def waits_for_data(trial: Done) -> bool:
    """Whether the trial's loop waited for its loader for so long that loading is worth a trial."""
    return wait_share(trial) > DATA_WAIT


def wait_share(trial: Done) -> float:
    """Return the share of the time that the trial's loop waited for its loader."""
    measurement = trial.result.measurement
    return measurement.data_wait_share if measurement else 0.0


def compute_s(trial: Done) -> float:
    """Return the seconds per sample in which the loop did not wait for data."""
    return computing_share(trial) / trial.throughput


def computing_share(trial: Done) -> float:
    """Return the share of the time in which the loop did not wait for data; never none."""
    return max(_LEAST_SHARE, 1.0 - wait_share(trial))


def _loader_s(trial: Done, workers: int, crew: Crew) -> float:
    """Return the seconds per sample that the trial's loader would take alone.

    A loop that waits for its workers all the time is as slow as they are. On a CPU they have only
    the cores that it leaves.
    """
    if not workers:
        return wait_share(trial) / trial.throughput
    total_s, computing_s = 1.0 / trial.throughput, compute_s(trial)
    if crew.cores is not None:
        return total_s - crew.share_taken(trial.plan) * computing_s
    return math.sqrt(max(total_s**2 - computing_s**2, (_LEAST_SHARE * total_s) ** 2))


def _together_s(computing_s: float, loading_s: float, crew: Crew) -> float:
    """Return the seconds per sample of a loop beside its workers.

    Beside a device both count, the longer one more, as batches come in bursts: a ResNet-50 on an
    H200 that waited for 16 workers a fifth of its time at 2140 samples/s ran at 2690 in bf16.
    """
    if crew.cores is not None:
        return max(computing_s, loading_s)
    return math.hypot(computing_s, loading_s)
