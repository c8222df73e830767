"""Runs one rank of a trial in its own process, from the request to the result."""

import abc
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.errors import WorkloadError
from autotune.search_space.plan import Plan
from autotune.trials.applying.apply import build_step
from autotune.trials.applying.kernels import save_kernels, use_empty_cache_beside
from autotune.trials.diagnosis import Diagnosis, DiagnosisRequest, undiagnosed
from autotune.trials.failure import failed
from autotune.trials.measuring.meter import Meter
from autotune.trials.measuring.quality import train_to_target
from autotune.trials.process_group import (
    ALONE,
    device_of,
    end_process_group,
    join,
    limit_device_memory,
)
from autotune.trials.profiling.diagnose import Subject, diagnose
from autotune.trials.quality import QualityRequest
from autotune.trials.request import TrialRequest
from autotune.trials.result import Kept, Outcome, Phase, TrialResult
from autotune.trials.workload import Workload, load_workload

if TYPE_CHECKING:
    import torch


def run_trial(request: TrialRequest) -> Iterator[Phase | Kept | TrialResult]:
    """Yield each phase as it begins, then exactly one result; nothing is raised.

    The caller enforces the deadlines, and adds the end of the log and the time outside of phases.
    Before a diagnosis, which may fail or hang, the result without it is yielded as `Kept`.
    """
    path = Path(request.workload_path)
    trial = _trial_of(request)
    phase = Phase.START
    try:
        for phase, work in trial.phases():
            yield phase
            trial.timed(phase, work)
        result = trial.result()
        if request.diagnosis is not None and trial.is_above(request.diagnosis.above):
            yield Kept(result=result)
            yield Phase.DIAGNOSE
            result = replace(result, diagnosis=trial.diagnosis(request.diagnosis))
    except (Exception, SystemExit) as error:  # noqa: BLE001  it is the result
        yield failed(error, phase, path)
        return
    yield result
    end_process_group(trial.ranks)


def _trial_of(request: TrialRequest) -> "_Trial":
    if request.compare_with is not None:
        return _Comparison(request, request.compare_with)
    if request.quality is not None:
        return _Training(request, request.quality)
    return _Measurement(request)


class _Trial(abc.ABC):
    """One process of a trial: goes through its phases, times each, and returns a result."""

    def __init__(self, request: TrialRequest) -> None:
        self.request = request
        self.phases_s: dict[Phase, float] = {}
        self.ranks = ALONE
        self.workload: Workload
        self.device: torch.device

    def phases(self) -> list[tuple[Phase, Callable[[], None]]]:
        """Return the phases in order, with the work of each."""
        if self.request.place.world_size == 1:
            return self.own_phases()
        return [(Phase.RENDEZVOUS, self.join), *self.own_phases()]

    @abc.abstractmethod
    def own_phases(self) -> list[tuple[Phase, Callable[[], None]]]:
        """Return the phases after the ranks have joined."""

    @abc.abstractmethod
    def result(self) -> TrialResult:
        """Return the result, after the last phase."""

    def is_above(self, throughput: float) -> bool:
        """Whether so many samples per second were measured; true where none are."""
        return True

    def diagnosis(self, request: DiagnosisRequest) -> Diagnosis:
        """Return the diagnosis, after the result; nothing is raised."""
        return undiagnosed("nothing was measured")

    def timed(self, phase: Phase, work: Callable[[], None]) -> None:
        """Run the work of a phase and note its seconds."""
        start = time.perf_counter()
        work()
        self.phases_s[phase] = time.perf_counter() - start

    def join(self) -> None:
        """Join the other ranks.

        The timeout of collectives is longer than any deadline, so that it is the driver that
        ends a phase that hangs.
        """
        deadlines = self.request.deadlines
        self.ranks = join(
            self.request.place,
            self.request.device_kind,
            within_s=deadlines.rendezvous_s,
            collectives_s=2 * max(asdict(deadlines).values()),
        )

    def prepare(self) -> None:
        """Change to the user's directory, select the device, load the workload."""
        request = self.request
        os.chdir(request.working_dir)
        self.device = device_of(request.place, request.device_kind)
        if request.device_kind == "cuda" and request.memory_limit_bytes is not None:
            limit_device_memory(self.device, request.memory_limit_bytes)
        self.workload = load_workload(Path(request.workload_path), request.arguments)


class _Measurement(_Trial):
    """A trial that measures a plan."""

    def own_phases(self) -> list[tuple[Phase, Callable[[], None]]]:
        return [
            (Phase.BUILD, self._build),
            (Phase.FIRST_STEP, self._first_step),
            (Phase.WARM_UP, self._warm_up),
            (Phase.MEASURE, self._measure),
        ]

    def result(self) -> TrialResult:
        if self.request.kernels_path is not None:
            save_kernels(Path(self.request.kernels_path), self.device)
        self._measurement = self._meter.summary(
            self._windows,
            self.phases_s,
            raced=self._raced,
            exposed_comm_share=self._exposed_comm_share,
        )
        return TrialResult(outcome=Outcome.OK, measurement=self._measurement, phase=Phase.MEASURE)

    def is_above(self, throughput: float) -> bool:
        return self._measurement.throughput >= throughput

    def diagnosis(self, request: DiagnosisRequest) -> Diagnosis:
        subject = Subject(
            step=self._step,
            feed=self._meter.feed,
            workload=self.workload,
            measurement=self._measurement,
            ranks=self.ranks,
        )
        return diagnose(subject, request)

    def _build(self) -> None:
        self.prepare()
        request = self.request
        if request.kernels_path is not None:
            use_empty_cache_beside(Path(request.kernels_path))
        self._step = build_step(self.workload, request.plan, self.device, request.seed, self.ranks)
        self._meter = Meter(self._step, self.workload, request.protocol, self.ranks)

    def _first_step(self) -> None:
        self._meter.first_step()
        if self.request.uneven_batches:
            self._meter.longest_step()

    def _warm_up(self) -> None:
        self._meter.warm_up()

    def _measure(self) -> None:
        self._windows, self._raced = self._meter.windows(self.request.interesting_above)
        self._exposed_comm_share = self._meter.exposed_communication()


class _Training(_Measurement):
    """A trial that trains a plan until `evaluate` reaches a target."""

    def __init__(self, request: TrialRequest, quality: QualityRequest) -> None:
        super().__init__(request)
        self._quality = quality
        self._until = time.perf_counter() + quality.limit_s

    def own_phases(self) -> list[tuple[Phase, Callable[[], None]]]:
        return [
            (Phase.BUILD, self._build),
            (Phase.FIRST_STEP, self._first_step),
            (Phase.MEASURE, self._train),
        ]

    def result(self) -> TrialResult:
        return TrialResult(outcome=Outcome.OK, quality=self._curve, phase=Phase.MEASURE)

    def _train(self) -> None:
        evaluate, path = self.workload.evaluate, self.workload.path
        if evaluate is None:
            raise WorkloadError(f"{path.name} defines no evaluate(model)")
        self._curve = train_to_target(
            self._step, self._meter.feed, evaluate, self._quality, until=self._until, path=path
        )


class _Comparison(_Trial):
    """A trial that compares a plan with a reference: the numerics check."""

    def __init__(self, request: TrialRequest, reference: Plan) -> None:
        super().__init__(request)
        self._reference = reference

    def own_phases(self) -> list[tuple[Phase, Callable[[], None]]]:
        return [(Phase.BUILD, self.prepare), (Phase.COMPARE, self._compare)]

    def result(self) -> TrialResult:
        return TrialResult(outcome=Outcome.OK, numerics=self._report, phase=Phase.COMPARE)

    def _compare(self) -> None:
        # Seconds of imports that other trials need not wait for.
        from autotune.trials.numerics.check import compare  # noqa: PLC0415

        request = self.request
        self._report = compare(
            self.workload, request.plan, self._reference, self.device, request.seed, self.ranks
        )
