"""Makes the diagnosis of a trial after it was measured, before its process ends."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from torch import nn

from autotune.search_space.knobs import is_compiled
from autotune.trials.applying.step import Step
from autotune.trials.diagnosis import (
    Diagnosis,
    DiagnosisRequest,
    Finding,
    FindingKind,
    Shares,
)
from autotune.trials.failure import one_line
from autotune.trials.feed import Feed
from autotune.trials.process_group import Ranks
from autotune.trials.profiling.bound import Circumstances, Verdict, judge
from autotune.trials.profiling.breakdown import Breakdown, Steps, on_device, on_host
from autotune.trials.profiling.graph_breaks import graph_breaks, has_broken_graphs
from autotune.trials.profiling.habits import is_profiled
from autotune.trials.profiling.mixing import gradients_apart
from autotune.trials.profiling.rates import loader_samples_per_s, matmul_flops_per_s
from autotune.trials.profiling.stalls import why_waiting
from autotune.trials.profiling.traced import num_steps, trace_steps
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
    def step_s(self) -> float:
        """Seconds of a step."""
        return self.measurement.step_ms / 1e3

    @property
    def batch_size(self) -> int:
        """Samples of a rank in a batch."""
        return int(self.step.plan["batch_size"])

    @property
    def rank_samples_per_s(self) -> float:
        """Throughput of one rank."""
        return self.measurement.throughput / self.ranks.place.world_size

    @property
    def is_alone(self) -> bool:
        """Whether the trial has a single rank: with several, all would have to do the same."""
        return self.ranks.place.world_size == 1


def diagnose(subject: Subject, request: DiagnosisRequest) -> Diagnosis:
    """Return what limits the step. Nothing is raised: what fails is in `unknown`, with the error.

    With several ranks all of them must call it, and each diagnoses itself.
    """
    start = time.perf_counter()
    attempts = _Attempts()
    breakdown = attempts.get("bound", lambda: _broken_down(subject, request.trace_path))
    matmul = attempts.get("matmul_flops_per_s", lambda: _matmul(subject))
    watched, loader = None, None
    breaks: tuple[Finding, ...] = ()
    mixed: tuple[Finding, ...] = ()
    if request.brief:
        attempts.unknown["findings"] = "only what limits the step was looked at"
    else:
        watched = _watched(subject, attempts)
        loader = attempts.get("loader_samples_per_s", lambda: _loader(subject))
        mixed = _batch_loss(subject, attempts)
        # Last, as the step cannot be trained with afterwards.
        breaks = _graph_breaks(subject, request, attempts)
    flops = watched.flops / subject.batch_size if watched else request.flops_per_sample
    verdict = None if breakdown is None else _verdict(subject, breakdown, watched, flops, matmul)
    findings = (*breaks, *(watched.findings if watched else ()), *_stalls(subject, loader), *mixed)
    return Diagnosis(
        bound=verdict.bound if verdict else None,
        evidence=verdict.evidence if verdict else (),
        advice=verdict.advice if verdict else (),
        shares=breakdown.shares if breakdown else Shares(),
        causes=breakdown.causes if breakdown else {},
        how={
            **(breakdown.how if breakdown else {}),
            **_HOW,
            "flops_per_sample": _COUNTED if watched else _COUNTED_BEFORE,
        },
        flops_per_sample=flops,
        matmul_flops_per_s=matmul,
        mfu=model_flops_utilisation(subject, flops, matmul),
        loader_samples_per_s=loader,
        step_samples_per_s=_samples_per_s_without_waiting(subject),
        ops_per_step=breakdown.ops_per_step if breakdown else None,
        findings=findings,
        unknown={**attempts.unknown, **_absent_shares(subject)},
        trace_path=request.trace_path if breakdown else None,
        took_s=time.perf_counter() - start,
    )


_COUNTED = (
    "matrix products, convolutions and attention of one batch, counted as torch runs them; "
    "backward twice the forward where activations are computed again"
)
_COUNTED_BEFORE = "matrix products, convolutions and attention, counted by the probe"
_HOW = {
    "matmul_flops_per_s": "the best of some large square products in the plan's precision",
    "loader_samples_per_s": "read for a moment while nothing else runs",
}


class _Attempts:
    """Calls functions, and notes the error of each that fails.

    Attributes:
        unknown: what a failed function should have returned -> its error.
    """

    def __init__(self) -> None:
        self.unknown: dict[str, str] = {}

    def get(self, name: str, work: Callable[[], T]) -> T | None:
        """Return what `work` returns, None where it raises."""
        try:
            return work()
        except (Exception, SystemExit) as error:  # noqa: BLE001  noted, and shown to the user
            self.unknown[name] = one_line(error)
            return None


def _broken_down(subject: Subject, trace_path: str | None) -> Breakdown:
    if is_profiled():  # two at once end in a crash
        raise LookupError("a profiler of your own is on, and torch runs only one at a time")
    step, feed, traced = subject.step, subject.feed, num_steps(subject.step_s)
    steps = Steps(
        traced=traced,
        step_s=subject.step_s,
        data_wait_share=subject.measurement.data_wait_share,
    )
    break_down = on_device if step.device.type == "cuda" else on_host
    found = break_down(trace_steps(step, feed, traced, trace_path), steps)
    if found is None:
        raise LookupError("the profiler's trace holds nothing that ran")
    return found


def _watched(subject: Subject, attempts: _Attempts) -> Watched | None:
    if not subject.is_alone:
        attempts.unknown["findings"] = "only looked for on one device"
        return None
    folder = subject.workload.path.parent
    return attempts.get("findings", lambda: watch_step(subject.step, subject.feed, folder))


def _matmul(subject: Subject) -> float:
    precision = str(subject.step.plan.get("precision", "fp32"))
    return matmul_flops_per_s(subject.step.device, precision)


def _loader(subject: Subject) -> float:
    return loader_samples_per_s(subject.feed, subject.batch_size)


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


def model_flops_utilisation(
    subject: Subject, flops_per_sample: float | None, matmul_flops_per_s: float | None
) -> float | None:
    """Return the MFU of a trial (PaLM, https://arxiv.org/abs/2204.02311, appendix B).

    The rate of a large matrix product stands for the device's peak; None where a rate is unknown.
    """
    if flops_per_sample is None or not matmul_flops_per_s:
        return None
    return flops_per_sample * subject.rank_samples_per_s / matmul_flops_per_s


def _verdict(
    subject: Subject,
    breakdown: Breakdown,
    watched: Watched | None,
    flops: float | None,
    matmul: float | None,
) -> Verdict:
    step = subject.step
    syncs = [f for f in watched.findings if f.kind is FindingKind.HOST_SYNC] if watched else []
    known = Circumstances(
        device_kind=step.device.type,
        precision=str(step.plan.get("precision", "fp32")),
        step_s=subject.step_s,
        flops_per_step=flops * subject.batch_size * step.accumulation if flops else None,
        matmul_flops_per_s=matmul,
        alloc_retries=subject.measurement.alloc_retries,
        num_host_syncs=len(syncs),
        has_conv2d=any(isinstance(part, nn.Conv2d) for part in step.model.modules()),
    )
    return judge(breakdown, known)


def _samples_per_s_without_waiting(subject: Subject) -> float | None:
    computing = 1.0 - subject.measurement.data_wait_share
    return subject.rank_samples_per_s / computing if computing > 0 else None


def _stalls(subject: Subject, loader: float | None) -> tuple[Finding, ...]:
    wait, step = subject.measurement.data_wait_share, _samples_per_s_without_waiting(subject)
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
    batch = step.move(subject.feed.next())
    apart = attempts.get("batch_loss", lambda: gradients_apart(step, batch))
    if apart is None:
        return ()
    what = (
        f"the gradient of {subject.batch_size} samples is {apart:.1%} of its length away from the "
        "mean of their halves': the loss depends on which samples are in a batch together, as "
        "with in-batch negatives or a mean over tokens"
    )
    advice = "mind that another batch_size trains another loss, accumulated or not"
    return (Finding(kind=FindingKind.BATCH_LOSS, what=what, advice=advice),)


def _absent_shares(subject: Subject) -> dict[str, str]:
    """Return the shares that such a step does not have, and why."""
    if subject.step.is_recorded:
        return _RECORDED
    return {} if subject.step.device.type == "cuda" else _NOT_ON_CPU
