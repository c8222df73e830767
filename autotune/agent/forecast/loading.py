"""How long the training loop will wait for data under a plan, estimated from measured plans.

Without workers the loop loads each batch itself, so the times of loading and computing add up.
Workers load while the loop computes, so it waits only if they are slower. On a CPU, workers and
the step compete for the cores.
"""

import math
import statistics
from dataclasses import dataclass

from autotune.agent.done import Done
from autotune.agent.history import History
from autotune.search_space.knobs import CATALOGUE
from autotune.search_space.plan import Plan

DATA_WAIT = 0.02  # share of the time spent waiting for data above which loader knobs are tried
_LEAST_BUSY_SHARE = (
    1e-3  # least share of its time that a loop computes or a loader keeps a core busy
)
_HANDING_OVER_S = 3e-4  # the loop's time to receive a batch from a worker process
# Seconds to load a batch of any size; and their largest share of the time that loading takes.
_FIXED_S, _MOST_FIXED_SHARE = 1e-4, 0.8
# How sharply the longer of loading and computing sets the time on a GPU, the p of a p-norm: a
# ResNet-50 on an H200 that waited for 16 workers a fifth of its time at 2140 samples/s ran at 2690
# in bf16, where this expects 2580.
_SHARPNESS = 3.0
# Part of the longest wait for as many workers that a loop must wait to tell how fast they are: of
# a ResNet-50 on an H200, a loop that waited 13 % of its time promised twice what 16 workers gave
# to one that waited longer.
_TELLING_PART = 0.5
# The knobs that set up the loader.
_LOADER_KNOBS = ("batch_size", *(knob.name for knob in CATALOGUE if knob.feeds_device))
# Standard deviation of the log loading time: with a number of workers that was not measured, with
# one that was, and further for each doubling to the nearest batch measured with it.
_STD_UNKNOWN_WORKERS, _STD_KNOWN_WORKERS, _STD_OF_DOUBLING = 0.25, 0.02, 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """What was measured of the loader.

    Attributes:
        sample_s: seconds to load a sample with one process on each rank, by number of workers and
            batch, counting the samples of all ranks. It has workers only if the loop waited for
            them.
        measured: the loader's settings in the plans behind `sample_s`.
        workers_of_rank: says how many workers load at the same time.
        num_ranks: ranks, each of which takes a batch in every step.
    """

    sample_s: dict[tuple[int, int], float]
    measured: frozenset[Plan]
    workers_of_rank: "Workers"
    num_ranks: int

    def step_s(self, plan: Plan, compute_s: float, slower: float = 1.0) -> float:
        """Return the seconds per sample of the training loop, loading included.

        Args:
            plan: says how many workers there are, and the batch.
            compute_s: seconds per sample without waiting for data.
            slower: factor of the expected loading time.
        """
        workers, batch = int(plan.get("workers", 0)), int(plan["batch_size"])
        loader_s = self._loader_s(workers, batch) * slower
        if not workers:
            return compute_s + loader_s
        taken_s = self.workers_of_rank.lacking_core_share(plan) * compute_s
        computing_s = compute_s + _HANDING_OVER_S / (batch * self.num_ranks)
        return _loop_s(computing_s, loader_s + taken_s, self.workers_of_rank)

    def doubt(self, plan: Plan) -> float:
        """Return the standard deviation of the log loading time, 0 if it was measured."""
        workers = int(plan.get("workers", 0))
        if _loader_settings(plan) in self.measured:
            return 0.0
        known, batch = self._batches(workers), int(plan["batch_size"])
        if not known:
            return _STD_UNKNOWN_WORKERS
        low, high = _around(batch, known)
        if low == high != batch:
            # The fixed and the per-sample time of a batch cannot be told apart by one batch.
            return _STD_UNKNOWN_WORKERS
        low_s, high_s = self.sample_s[workers, low], self.sample_s[workers, high]
        # The batch that loads best may be anywhere between two.
        between = abs(high_s - low_s) / ((high_s + low_s) or 1.0)
        doublings = min(abs(math.log2(other / batch)) for other in (low, high))
        return min(
            _STD_UNKNOWN_WORKERS, _STD_KNOWN_WORKERS + _STD_OF_DOUBLING * doublings + between
        )

    def _batches(self, workers: int) -> list[int]:
        return [batch for count, batch in self.sample_s if count == workers]

    def _loader_s(self, workers: int, batch: int) -> float:
        # If so many workers were not measured, the slowest process of other numbers counts.
        counts = {workers} if self._batches(workers) else {count for count, _ in self.sample_s}
        each_s = [self._one_process_s(count, batch) for count in counts]
        return max(each_s, default=0.0) / self.workers_of_rank.mean_loading(workers, batch)

    def _one_process_s(self, workers: int, batch: int) -> float:
        """Return the seconds per sample of one process, interpolated between measured batches."""
        low, high = _around(batch, self._batches(workers))
        if low != high:
            share = math.log(batch / low) / math.log(high / low)
            low_s, high_s = self.sample_s[workers, low], self.sample_s[workers, high]
            return low_s + share * (high_s - low_s)
        batch_s = self.sample_s[workers, low] * low * self.num_ranks
        fixed_s = min(_FIXED_S, _MOST_FIXED_SHARE * batch_s)
        return ((batch_s - fixed_s) / low + fixed_s / batch) / self.num_ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """The worker processes of a rank's loader, and the cores that they share with the step.

    Attributes:
        cores: cores that workers share with the step on a CPU; None on a GPU.
        samples: samples of an epoch on each rank; None for an endless dataset.
        busy: share of its time that a loading process keeps a core busy, not waiting for storage.
    """

    cores: int | None
    samples: int | None
    busy: float

    def mean_loading(self, workers: int, batch: int) -> float:
        """Return the mean number of workers that load at the same time.

        On a GPU the mean is over an epoch, at whose end some workers have no batch left; on a CPU
        the number of cores limits it.
        """
        if not workers:
            return 1.0
        if self.cores is not None:
            return min(workers, self.cores / max(self.busy, _LEAST_BUSY_SHARE))
        if self.samples is None:
            return workers
        batches = max(1, self.samples // batch)
        return batches / math.ceil(batches / workers)

    def lacking_core_share(self, plan: Plan) -> float:
        """Return the share of the cores that workers lack while the step computes on a CPU."""
        threads, workers = int(plan.get("threads", 1)), int(plan.get("workers", 0))
        if self.cores is None or threads + workers * self.busy <= self.cores:
            return 0.0
        return min(1.0, threads / self.cores)


def _around(batch: int, known: list[int]) -> tuple[int, int]:
    """Return the nearest known batches below and above; outside their range the last one twice."""
    low = max((other for other in known if other <= batch), default=min(known))
    return low, min((other for other in known if other >= batch), default=max(known))


def loading_of(history: History) -> Loading:
    """Return what the measured plans say about the loader."""
    workers_of_rank = _workers_of_rank(history)
    known: dict[tuple[int, int], list[float]] = {}
    measured: set[Plan] = set()
    for trial in _telling(history):
        workers, batch = int(trial.plan.get("workers", 0)), int(trial.plan["batch_size"])
        one_process_s = _loader_s(trial, workers, workers_of_rank) * workers_of_rank.mean_loading(
            workers, batch
        )
        known.setdefault((workers, batch), []).append(one_process_s)
        measured.add(_loader_settings(trial.plan))
    return Loading(
        sample_s={setup: statistics.median(seconds) for setup, seconds in known.items()},
        measured=frozenset(measured),
        workers_of_rank=workers_of_rank,
        num_ranks=history.space.num_ranks,
    )


def _telling(history: History) -> list[Done]:
    """Return the trials that tell how fast a loader is.

    Those with workers do if their loop waited for them, and not far less than others with as many:
    a loop that hardly waits only shows that its loader is not much slower.
    """
    trials = [trial for trial in history.search if trial.is_measured]
    most: dict[int, float] = {}
    for trial in trials:
        workers = int(trial.plan.get("workers", 0))
        most[workers] = max(most.get(workers, 0.0), wait_share(trial))
    return [trial for trial in trials if _tells(trial, most[int(trial.plan.get("workers", 0))])]


def _tells(trial: Done, most: float) -> bool:
    if not int(trial.plan.get("workers", 0)):
        return True
    return waits_for_data(trial) and wait_share(trial) >= _TELLING_PART * most


def _workers_of_rank(history: History) -> Workers:
    site, facts = history.space.site, history.space.facts
    cores = site.cores_per_rank if site.hardware.device_kind == "cpu" else None
    samples = facts.dataset_len and facts.dataset_len // history.space.num_ranks
    return Workers(cores=cores, samples=samples, busy=facts.loader_busy_share)


def _loader_settings(plan: Plan) -> Plan:
    return Plan.of({name: plan[name] for name in _LOADER_KNOBS if name in plan})


def waits_for_data(trial: Done) -> bool:
    """Whether the trial's loop waited for data long enough to make the loader worth a trial."""
    return wait_share(trial) > DATA_WAIT


def wait_share(trial: Done) -> float:
    """Return the share of the time that the trial's loop waited for its loader."""
    measurement = trial.result.measurement
    return measurement.data_wait_share if measurement else 0.0


def compute_s(trial: Done) -> float:
    """Return the seconds per sample that are not spent waiting for data."""
    return computing_share(trial) / trial.throughput


def computing_share(trial: Done) -> float:
    """Return the share of the time in which the loop did not wait for data, 0.001 at least."""
    return max(_LEAST_BUSY_SHARE, 1.0 - wait_share(trial))


def _loader_s(trial: Done, workers: int, workers_of_rank: Workers) -> float:
    """Return the seconds per sample that the trial's loader would take alone.

    A loop that waits for its workers all the time is as slow as they are. On a CPU they have only
    the cores that it leaves.
    """
    if not workers:
        return wait_share(trial) / trial.throughput
    total_s, computing_s = 1.0 / trial.throughput, compute_s(trial)
    if workers_of_rank.cores is not None:
        return total_s - workers_of_rank.lacking_core_share(trial.plan) * computing_s
    least_s = _LEAST_BUSY_SHARE * total_s
    rest = max(total_s**_SHARPNESS - computing_s**_SHARPNESS, least_s**_SHARPNESS)
    return float(rest ** (1 / _SHARPNESS))


def _loop_s(computing_s: float, loading_s: float, workers_of_rank: Workers) -> float:
    """Return the seconds per sample of a loop that computes while its workers load.

    On a CPU the longer time counts. On a GPU both do, the longer one more, as batches come in
    bursts.
    """
    if workers_of_rank.cores is not None:
        return max(computing_s, loading_s)
    return float((computing_s**_SHARPNESS + loading_s**_SHARPNESS) ** (1 / _SHARPNESS))
