"""Computes the shares of a step's time from a trace and the measurement before it.

Tracing slows the host down, which notes each event, but not the kernels on a device. So on a
device the durations come from the trace, the length of a step and the waiting for data from the
measurement, and idle time is the difference. On the CPU everything is slower while it is traced,
so there all shares are of the traced time.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.search_space.bound import Bound
from autotune.trials.diagnosis import Shares
from autotune.trials.profiling.parts import Part
from autotune.trials.profiling.spans import covered, covered_beyond, own_durations
from autotune.trials.profiling.trace import Operation

# Below this an operator on the host is mostly its own dispatch: some microseconds are lookup,
# checks and autograd's bookkeeping, whatever the size of the tensors.
SHORT_OPERATOR_US = 20.0
_COMPUTED = (Part.FORWARD.value, Part.BACKWARD.value, Part.OPTIMIZER.value)
_COMMUNICATES = re.compile(r"nccl(Dev)?Kernel")
_ARITHMETIC_KERNEL = re.compile(
    r"(?<!fb)gemm|cutlass|xmma|nvjet|flash|fmha|attention|triton_tem|splitk|winograd"
    r"|dgrad|wgrad|fprop|convolve|conv\dd|conv_depthwise|cudnn.*conv|scudnn",
    re.IGNORECASE,
)
_ARITHMETIC_OPERATOR = re.compile(
    r"::(_?addmm(_activation)?|addbmm|mm|bmm|baddbmm|_scaled_mm|_grouped_mm)$"
    r"|convolution|conv\dd|scaled_dot_product|_linear_pointwise|rnn|lstm|gru"
)


# Events around operators: Dynamo's cache lookup, calls of compiled code, autograd's own loop.
_OVERHEAD = re.compile(
    r"^(TorchDynamo|Torch-Compiled Region|Pregraph|CompiledFunction|autograd::engine)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """What was measured of a step besides its trace.

    Attributes:
        traced: number of steps in the trace.
        step_s: length of a step, measured without the profiler.
        data_wait_share: of that in `next(loader)`, measured without the profiler.
    """

    traced: int
    step_s: float
    data_wait_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Where the time of a step goes.

    Attributes:
        shares: by part of the step.
        how: share -> how it was obtained.
        causes: shares of the same time by the bound that they belong to, none below 0.
        arithmetic_s: seconds per step in matrix products, convolutions and attention.
        ops_per_step: kernels on a device, operators without one.
        mean_op_us: their mean duration, without that of operators that they call.
    """

    shares: Shares
    how: dict[str, str]
    causes: dict[Bound, float]
    arithmetic_s: float
    ops_per_step: float
    mean_op_us: float


def on_device(operations: Sequence[Operation], steps: Steps) -> Breakdown | None:
    """Return the breakdown of steps on a GPU; None where the trace holds no kernel."""
    running = [op for op in operations if op.is_on_device]
    if not any(op.kind == "kernel" for op in running):
        return None
    busy = _in_steps(_by_part(running), steps)
    if not any(op.part in _COMPUTED for op in running):
        busy = {part: share for part, share in busy.items() if part not in _COMPUTED}
    idle = max(0.0, 1.0 - sum(busy.values()))
    data = min(idle, steps.data_wait_share)
    arithmetic, rest = _by_cause(running, steps)
    return Breakdown(
        shares=Shares(data=data, idle=idle - data, **busy),
        how={
            **dict.fromkeys(busy, f"device time of {steps.traced} traced steps, by their launch"),
            "data": "the loop's waiting in the windows, as far as the device was idle",
            "idle": "what the traced work leaves of the step time measured in the windows",
        },
        causes={
            Bound.DATA: data + busy["copy"],
            Bound.LAUNCHES: idle - data,
            Bound.COMMUNICATION: busy["communication"],
            Bound.ARITHMETIC: arithmetic,
            Bound.MEMORY_BANDWIDTH: rest,
        },
        arithmetic_s=arithmetic * steps.step_s,
        ops_per_step=len(running) / steps.traced,
        mean_op_us=sum(op.duration_us for op in running) / len(running),
    )


def on_host(operations: Sequence[Operation], steps: Steps) -> Breakdown | None:
    """Return the breakdown of steps on the CPU; None where the trace holds no operator."""
    own = _fastest_calls(operations, steps.traced)
    called = [(op, us) for op, us in own if op.kind == "operator"]
    if not called:
        return None
    long = [(op, us) for op, us in called if us >= SHORT_OPERATOR_US and _is_work(op)]
    arithmetic_us = sum(us for op, us in long if _ARITHMETIC_OPERATOR.search(op.name))
    long_us, whole_us = sum(us for _, us in long), sum(us for _, us in own)
    # Turns microseconds of the trace into shares of the step that does not wait for data.
    share = (1.0 - steps.data_wait_share) / whole_us
    return Breakdown(
        shares=Shares(
            data=steps.data_wait_share,
            **{part: share * sum(us for op, us in own if op.part == part) for part in _COMPUTED},
        ),
        how={
            "data": "the loop's waiting in the windows",
            **dict.fromkeys(_COMPUTED, f"the host's time in {steps.traced} traced steps"),
        },
        causes={
            Bound.DATA: steps.data_wait_share,
            Bound.LAUNCHES: share * (whole_us - long_us),
            Bound.ARITHMETIC: share * arithmetic_us,
            Bound.MEMORY_BANDWIDTH: share * (long_us - arithmetic_us),
        },
        arithmetic_s=1e-6 * arithmetic_us,
        ops_per_step=float(len(called)),
        mean_op_us=sum(us for _, us in called) / len(called),
    )


def communicates(op: Operation) -> bool:
    """Whether the operation is a kernel of NCCL."""
    return _COMMUNICATES.search(op.name) is not None


def _by_part(running: Sequence[Operation]) -> dict[str, float]:
    """Microseconds of the device by part; communication and copies count where they are alone."""
    groups = {name: [op.span for op in running if _place(op) == name] for name in _PLACES}
    return covered_beyond(groups)


_PLACES = (*_COMPUTED, "other", "communication", "copy")


def _place(op: Operation) -> str:
    if communicates(op):
        return "communication"
    if op.kind == "copy" and "HtoD" in op.name:
        return "copy"
    return op.part if op.part in _COMPUTED else "other"


def _by_cause(running: Sequence[Operation], steps: Steps) -> tuple[float, float]:
    """Shares of a step in arithmetic, and in what else the device does by itself."""
    own = [op for op in running if _place(op) not in ("communication", "copy")]
    arithmetic = [op.span for op in own if _ARITHMETIC_KERNEL.search(op.name)]
    us = covered(arithmetic), covered(op.span for op in own) - covered(arithmetic)
    shares = _in_steps(dict(zip(("arithmetic", "rest"), us, strict=True)), steps)
    return shares["arithmetic"], shares["rest"]


def _in_steps(us: Mapping[str, float], steps: Steps) -> dict[str, float]:
    """Microseconds of all traced steps as shares of a measured step, 1 together at most."""
    shares = {name: 1e-6 * value / steps.traced / steps.step_s for name, value in us.items()}
    too_much = max(1.0, sum(shares.values()))
    return {name: share / too_much for name, share in shares.items()}


def _is_work(op: Operation) -> bool:
    return _OVERHEAD.search(op.name) is None


def _fastest_calls(operations: Sequence[Operation], traced: int) -> list[tuple[Operation, float]]:
    """Return the host's operators and marked parts in a step, with the microseconds of each alone.

    Other work of the machine makes a call longer, but hardly the same call in each step: of each
    call the shortest duration counts. Where steps make different calls, the fastest step counts.
    """
    own = [_own_durations([op for op in operations if op.step == n]) for n in range(traced)]
    if len({tuple(op.name for op, _ in step) for step in own}) > 1:
        return min(own, key=lambda step: sum(us for _, us in step))
    return [(calls[0][0], min(us for _, us in calls)) for calls in zip(*own, strict=True)]


def _own_durations(step: Sequence[Operation]) -> list[tuple[Operation, float]]:
    """Return what the host runs in the computing parts of a step, without nested calls' time."""
    threads: defaultdict[int, list[Operation]] = defaultdict(list)
    for op in sorted(step, key=lambda op: op.start_us):
        if op.part in _COMPUTED and not op.is_on_device:
            threads[op.thread].append(op)
    return [
        pair
        for ops in threads.values()
        for pair in zip(ops, own_durations([op.span for op in ops]), strict=True)
    ]
