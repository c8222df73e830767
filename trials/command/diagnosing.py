"""Finds what limits a step of a command: a few of its steps under the profiler."""

import time
from collections.abc import Generator
from dataclasses import replace

from torch.profiler import record_function

from autotune.trials.command.training import Training
from autotune.trials.diagnosis import Diagnosis, DiagnosisRequest, undiagnosed
from autotune.trials.failure import one_line
from autotune.trials.profiling.measured import BRIEF, Measured
from autotune.trials.profiling.parts import TRACE_PREFIX, Part
from autotune.trials.profiling.rates import matmul_flops_per_s
from autotune.trials.profiling.threads import Stopwatch, num_looks, one_thread
from autotune.trials.profiling.trace import Operation
from autotune.trials.profiling.traced import activities, check_no_profiler, num_steps, tracing


def diagnosing(
    training: Training, measured: Measured, request: DiagnosisRequest
) -> Generator[None, None, Diagnosis]:
    """Trace the next steps and return what limits them. Nothing is raised."""
    began = time.perf_counter()
    try:
        traced = num_steps(measured.step_s)
        operations = yield from _traced(training, traced)
        matmul = matmul_flops_per_s(measured.device, measured.precision)
        breakdown = measured.broken_down(operations, traced)
        found = measured.diagnosis(breakdown, request.flops_per_sample, matmul)
        speedup = yield from _with_one_thread(training, measured)
        found = replace(found, unknown={"findings": BRIEF}, one_thread_speedup=speedup)
    except Exception as error:  # noqa: BLE001  told to the user, whose training was measured
        found = undiagnosed(one_line(error))
    return replace(found, took_s=time.perf_counter() - began)


def _with_one_thread(
    training: Training, measured: Measured
) -> Generator[None, None, float | None]:
    looks = num_looks(measured) if training.world_size == 1 else 0
    if not looks:
        return None
    with one_thread():
        stopwatch = Stopwatch()
        for _ in range(looks):
            yield
            stopwatch.step_ended()
    return stopwatch.speedup(measured)


def _traced(training: Training, steps: int) -> Generator[None, None, list[Operation]]:
    check_no_profiler()
    marks = _Marks()
    with tracing(activities(training.device.type)) as operations:
        training.marks = marks.begin
        try:
            for _ in range(steps):
                yield
            training.synchronize()
        finally:
            training.marks = None
            marks.begin(None)
    return operations


class _Marks:
    """Marks the part of the step that is under way in the trace."""

    def __init__(self) -> None:
        self._open: record_function | None = None

    def begin(self, part: Part | None) -> None:
        """End the mark that is open, and begin another; None: nothing of the step."""
        if self._open is not None:
            self._open.__exit__(None, None, None)
            self._open = None
        if part is not None:
            self._open = record_function(TRACE_PREFIX + part.value)
            self._open.__enter__()
