"""Makes the diagnosis of a trial after it was measured, before its process ends."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from autotune.search_space.knobs import is_compiled
from autotune.trials.applying.step import Step
from autotune.trials.diagnosis import Diagnosis, DiagnosisRequest, Finding, FindingKind
from autotune.trials.failure import one_line
from autotune.trials.feed import Feed
from autotune.trials.process_group import Ranks
from autotune.trials.profiling.breakdown import Breakdown
from autotune.trials.profiling.graph_breaks import graph_breaks, has_broken_graphs
from autotune.trials.profiling.measured import BRIEF, Measured
from autotune.trials.profiling.mixing import gradients_apart
from autotune.trials.profiling.rates import loader_samples_per_s, matmul_flops_per_s
from autotune.trials.profiling.stalls import why_waiting
from autotune.trials.profiling.threads import Stopwatch, num_looks, one_thread
from autotune.trials.profiling.traced import check_no_profiler, num_steps, trace_steps
from autotune.trials.profiling.watch import Watched, watch_step
from autotune.trials.result import Measurement
from autotune.trials.workload import Workload

T = TypeVar("T")

_MIN_WAIT_SHARE = 0.1  # of waiting for data from which it becomes a finding
# Shares that a step on the CPU does not have, and why.
_NOT_ON_CPU = {
    "communication": "it is traced on GPUs only",
    "copy": "batches are on the CPU already",
    "idle": "there is no device beside the CPU",
    "other": "on the CPU all time is counted to forward, backward or optimizer",
}
_RECORDED = dict.fromkeys(
    ("forward", "backward", "optimizer"), "a recorded step is one launch, all of it is in `other`"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A measured trial: its step, batches, workload, measurement and ranks."""

    step: Step
    feed: Feed
    workload: Workload
    measurement: Measurement
    ranks: Ranks

    @property
    def measured(self) -> Measured:
        """The step with its measurement."""
        return Measured(
            device=self.step.device,
            plan=self.step.plan,
            model=self.step.model,
            accumulation=self.step.accumulation,
            world_size=self.ranks.place.world_size,
            measurement=self.measurement,
        )

    @property
    def is_alone(self) -> bool:
        """Whether the trial has a single rank: with several, all would have to do the same."""
        return self.ranks.place.world_size == 1


def diagnose(subject: Subject, request: DiagnosisRequest) -> Diagnosis:
    """Return what limits the step. Nothing is raised: what fails is in `unknown`, with the error.

    With several ranks all of them must call it, and each diagnoses itself.
    """
    start = time.perf_counter()
    attempts, measured = _Attempts(start, request.within_s), subject.measured
    breakdown = attempts.get("bound", lambda: _broken_down(subject, request.trace_path))
    matmul = attempts.get(
        "matmul_flops_per_s", lambda: matmul_flops_per_s(measured.device, measured.precision)
    )
    speedup = attempts.get("one_thread_speedup", lambda: _with_one_thread(subject))
    watched, loader = None, None
    breaks: tuple[Finding, ...] = ()
    mixed: tuple[Finding, ...] = ()
    if request.brief:
        attempts.unknown["findings"] = BRIEF
    else:
        watched = _watched(subject, attempts)
        loader = attempts.get("loader_samples_per_s", lambda: _loader(subject))
        mixed = _batch_loss(subject, attempts)
        # Last, as the step cannot be trained with afterwards.
        breaks = _graph_breaks(subject, request, attempts)
    found = watched.findings if watched else ()
    syncs = [finding for finding in found if finding.kind is FindingKind.HOST_SYNC]
    flops = watched.flops / measured.batch_size if watched else request.flops_per_sample
    diagnosis = measured.diagnosis(breakdown, flops, matmul, len(syncs))
    return replace(
        diagnosis,
        how={**diagnosis.how, "flops_per_sample": _COUNTED} if watched else diagnosis.how,
        loader_samples_per_s=loader,
        one_thread_speedup=speedup,
        findings=(*breaks, *found, *_stalls(subject, loader), *mixed),
        unknown={**attempts.unknown, **_absent_shares(subject)},
        trace_path=request.trace_path if breakdown else None,
        took_s=time.perf_counter() - start,
    )


_COUNTED = (
    "matrix products, convolutions and attention of one batch, counted as torch runs them; "
    "backward twice the forward where activations are computed again"
)


class _Attempts:
    """Calls functions, and notes the error of each that fails, or that the time does not allow.

    Args:
        start: of the diagnosis, on `time.perf_counter()`.
        within_s: seconds from then on after which nothing is called any more.

    Attributes:
        unknown: what a failed function should have returned -> its error.
    """

    def __init__(self, start: float, within_s: float) -> None:
        self.unknown: dict[str, str] = {}
        self._ends_at, self._within_s = start + within_s, within_s

    def get(self, name: str, work: Callable[[], T]) -> T | None:
        """Return what `work` returns, None where it raises or comes too late."""
        if time.perf_counter() > self._ends_at:
            self.unknown[name] = f"the {self._within_s:.0f} s that a diagnosis may take were over"
            return None
        try:
            return work()
        except (Exception, SystemExit) as error:  # noqa: BLE001  noted, and shown to the user
            self.unknown[name] = one_line(error)
            return None


def _broken_down(subject: Subject, trace_path: str | None) -> Breakdown:
    check_no_profiler()
    traced = num_steps(subject.measured.step_s)
    operations = trace_steps(subject.step, subject.feed, traced, trace_path)
    return subject.measured.broken_down(operations, traced)


def _with_one_thread(subject: Subject) -> float | None:
    looks = num_looks(subject.measured) if subject.is_alone else 0
    if not looks:
        return None
    with one_thread():
        stopwatch = Stopwatch()
        for _ in range(looks):
            for _ in range(subject.step.accumulation):
                subject.step(subject.feed.next())
            stopwatch.step_ended()
    return stopwatch.speedup(subject.measured)


def _watched(subject: Subject, attempts: _Attempts) -> Watched | None:
    if not subject.is_alone:
        attempts.unknown["findings"] = "only looked for on one device"
        return None
    folder = subject.workload.path.parent
    return attempts.get("findings", lambda: watch_step(subject.step, subject.feed, folder))


def _loader(subject: Subject) -> float:
    return loader_samples_per_s(subject.feed, subject.measured.batch_size)


def _graph_breaks(
    subject: Subject, request: DiagnosisRequest, attempts: _Attempts
) -> tuple[Finding, ...]:
    if not subject.is_alone:
        return ()
    step, folder = subject.step, subject.workload.path.parent
    is_eager = not is_compiled(step.plan)
    if is_eager and not request.explain_graphs:
        attempts.unknown["graph_breaks"] = "the plan does not compile"
        return ()
    if not (is_eager or has_broken_graphs()):
        return ()
    found = attempts.get("graph_breaks", lambda: graph_breaks(step, subject.feed, folder))
    return found or ()


def _stalls(subject: Subject, loader: float | None) -> tuple[Finding, ...]:
    wait = subject.measurement.data_wait_share
    step = subject.measured.samples_per_s_without_waiting
    if wait < _MIN_WAIT_SHARE or loader is None or step is None:
        return ()
    workers = getattr(subject.feed.loader, "num_workers", None)
    why, advice = why_waiting(loader, step, loads_in_loop=workers == 0)
    what = f"the step waits for data {wait:.0%} of the time: {why}"
    return (Finding(kind=FindingKind.LOADER, what=what, advice=advice),)


def _batch_loss(subject: Subject, attempts: _Attempts) -> tuple[Finding, ...]:
    step = subject.step
    is_plain = not (is_compiled(step.plan) or step.is_recorded)
    if not (subject.is_alone and is_plain):
        return ()
    apart = attempts.get(
        "batch_loss", lambda: gradients_apart(step, step.move(subject.feed.next()))
    )
    if apart is None:
        return ()
    what = (
        f"the gradient of {subject.measured.batch_size} samples is {apart:.1%} of its length away "
        "from the mean of their halves': the loss depends on which samples are in a batch "
        "together, as with in-batch negatives or a mean over tokens"
    )
    advice = "mind that another batch_size trains another loss, accumulated or not"
    return (Finding(kind=FindingKind.BATCH_LOSS, what=what, advice=advice),)


def _absent_shares(subject: Subject) -> dict[str, str]:
    """Return the shares that such a step does not have, and why."""
    if subject.step.is_recorded:
        return _RECORDED
    return {} if subject.step.device.type == "cuda" else _NOT_ON_CPU
