"""Names what limits a step, from where its time goes, and says what to do about it."""

from collections.abc import Iterator
from dataclasses import dataclass

from autotune.search_space.bound import Bound
from autotune.trials.profiling.breakdown import Breakdown

# Share of the measured matmul rate below which matrix products are not limited by arithmetic: they
# are so thin that reading their operands takes longer.
_THIN = 0.1
# Share of that rate above which the machine's speed must have changed between step and matmul.
_MAX_PLAUSIBLE = 1.1
# Microseconds of the host per operation above which something else than launching keeps it busy.
_SLOW_HOST_US = 200.0
_HALF_PRECISION = ("bf16", "fp16", "fp8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What is known of the trial besides its breakdown.

    Attributes:
        device_kind: `cpu` or `cuda`.
        precision: of the plan.
        step_s: length of a step.
        flops_per_step: of the model on one device; None: unknown.
        matmul_flops_per_s: the rate of the device in a large product; None: unknown.
        alloc_retries: times the allocator had to flush its cache; None on the CPU.
        num_host_syncs: places in the user's code that make the host wait for the device.
        has_conv2d: whether the model has convolutions that may be laid out differently.
    """

    device_kind: str
    precision: str
    step_s: float
    flops_per_step: float | None = None
    matmul_flops_per_s: float | None = None
    alloc_retries: int | None = None
    num_host_syncs: int = 0
    has_conv2d: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The bound with its evidence and what to do, in words."""

    bound: Bound
    evidence: tuple[str, ...]
    advice: tuple[str, ...]


def judge(breakdown: Breakdown, known: Circumstances) -> Verdict:
    """Return what limits the step: memory if the allocator retried, else the largest cause."""
    bound = _bound(breakdown, known)
    return Verdict(
        bound=bound,
        evidence=tuple(_evidence(bound, breakdown, known)),
        advice=tuple(_advice(bound, known)),
    )


def efficiency(breakdown: Breakdown, known: Circumstances) -> float | None:
    """Return the rate of the matrix products in the step over that of a large one."""
    if not known.flops_per_step or not known.matmul_flops_per_s or not breakdown.arithmetic_s:
        return None
    return known.flops_per_step / breakdown.arithmetic_s / known.matmul_flops_per_s


def _bound(breakdown: Breakdown, known: Circumstances) -> Bound:
    if known.alloc_retries:
        return Bound.CAPACITY
    largest = max(breakdown.causes, key=lambda cause: breakdown.causes[cause])
    if largest is Bound.ARITHMETIC and _is_thin(breakdown, known):
        return Bound.MEMORY_BANDWIDTH
    return largest


def _is_thin(breakdown: Breakdown, known: Circumstances) -> bool:
    reached = efficiency(breakdown, known)
    return reached is not None and reached < _THIN


def _evidence(bound: Bound, breakdown: Breakdown, known: Circumstances) -> Iterator[str]:
    if bound is Bound.CAPACITY:
        yield (
            f"the allocator ran out of device memory {known.alloc_retries} times while the step "
            "was measured, and had to give its cache back"
        )
    yield "of a step: " + ", ".join(
        f"{_CAUSE_WORDS[known.device_kind][cause]} {share:.0%}"
        for cause, share in sorted(breakdown.causes.items(), key=lambda item: -item[1])
        if share >= 0.005
    )
    yield _operations(breakdown, known)
    reached = efficiency(breakdown, known)
    if reached is not None and bound in (Bound.ARITHMETIC, Bound.MEMORY_BANDWIDTH):
        yield _efficiency_in_words(reached)
    if bound is Bound.LAUNCHES:
        yield from _host_evidence(breakdown, known)


def _efficiency_in_words(reached: float) -> str:
    if reached > _MAX_PLAUSIBLE:
        return (
            "its matrix products were faster than a large one, measured a moment later: the speed "
            "of this machine varies"
        )
    thin = ", too thin to be limited by arithmetic" if reached < _THIN else ""
    return f"its matrix products reach {reached:.0%} of the rate of a large one{thin}"


def _operations(breakdown: Breakdown, known: Circumstances) -> str:
    what = "kernels and copies" if known.device_kind == "cuda" else "operators"
    return (
        f"{breakdown.ops_per_step:.0f} {what} per step of {1e3 * known.step_s:.3g} ms, "
        f"{breakdown.mean_op_us:.3g} us each in the mean"
    )


def _host_evidence(breakdown: Breakdown, known: Circumstances) -> Iterator[str]:
    idle_us = 1e6 * known.step_s * breakdown.causes[Bound.LAUNCHES] / breakdown.ops_per_step
    if idle_us > _SLOW_HOST_US:
        yield (
            f"{idle_us:.0f} us of the host for each of them is more than starting it takes: look "
            "for slow Python in the step"
        )
    if known.num_host_syncs and known.device_kind == "cuda":
        yield f"{known.num_host_syncs} host synchronisations keep launches from running ahead"


def _advice(bound: Bound, known: Circumstances) -> Iterator[str]:
    if bound is Bound.ARITHMETIC and known.precision not in _HALF_PRECISION:
        yield "precision: matrix products in fewer bits (tf32, bf16)"
    if bound is Bound.LAUNCHES and known.num_host_syncs and known.device_kind == "cuda":
        yield "your code: remove the host synchronisations found below"
    if bound is Bound.MEMORY_BANDWIDTH and known.has_conv2d:
        yield "memory_format: channels_last for convolutions"
    yield from _ADVICE[bound]
    if known.device_kind == "cuda":
        yield from _ADVICE_FOR_GPUS.get(bound, ())
    elif bound is not Bound.DATA:
        yield "threads: fewer, where operators are short or other processes use the cores"


_ADVICE: dict[Bound, tuple[str, ...]] = {
    Bound.DATA: (
        "workers: processes that load while the step computes",
        "prefetch: a longer queue, where loading is uneven",
        "your code: cheaper work in the dataset",
    ),
    Bound.LAUNCHES: (
        "compile_mode: fewer operations",
        "optimizer_impl: fused, one kernel for all parameters",
        "batch_size: more work for each operation",
    ),
    Bound.ARITHMETIC: (
        "batch_size: larger only while throughput grows",
        "otherwise the model itself: fewer or smaller matrix products",
    ),
    Bound.MEMORY_BANDWIDTH: (
        "compile_mode: fused, what lies between matrix products reads and writes once",
        "optimizer_impl: fused",
        "precision: half the bytes",
        "batch_size: larger, where weights are read for few samples",
    ),
    Bound.COMMUNICATION: (
        "bucket_mb: fewer and larger messages",
        "comm_hook: gradients in half the bytes",
        "sharding: ddp communicates least, where the model fits",
        "accumulation: fewer exchanges for each sample",
    ),
    Bound.CAPACITY: (
        "activation_checkpointing: compute activations again instead of holding them",
        "batch_size: smaller",
        "sharding: each rank holds a part of the state",
    ),
}

_CAUSE_WORDS = {
    "cuda": {
        Bound.DATA: "waiting for batches and copying them",
        Bound.LAUNCHES: "an idle device",
        Bound.COMMUNICATION: "communication that nothing hides",
        Bound.ARITHMETIC: "matrix products, convolutions and attention",
        Bound.MEMORY_BANDWIDTH: "other kernels",
    },
    "cpu": {
        Bound.DATA: "waiting for batches",
        Bound.LAUNCHES: "Python and operators shorter than 20 us",
        Bound.COMMUNICATION: "communication that nothing hides",
        Bound.ARITHMETIC: "matrix products, convolutions and attention",
        Bound.MEMORY_BANDWIDTH: "other operators",
    },
}
_ADVICE_FOR_GPUS: dict[Bound, tuple[str, ...]] = {
    Bound.DATA: ("pin_memory: copies that overlap with the step",),
    Bound.LAUNCHES: (
        "compile_mode: reduce-overhead records CUDA graphs",
        "cuda_graph: one launch for a whole step, if it changes no state in Python (--allow step)",
    ),
    Bound.ARITHMETIC: ("compile_mode: max-autotune tries other kernels for the same products",),
}
