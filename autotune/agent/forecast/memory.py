"""How much memory a plan will need, from peaks measured at other batch sizes."""

import math
import statistics
from collections.abc import Mapping

from autotune.agent.history import FOLLOWS_BATCH, Done, History, but_batch
from autotune.search_space.hardware import Hardware
from autotune.search_space.knobs import is_compiled
from autotune.search_space.plan import Plan, Value
from autotune.trials.result import Outcome

_NO_MEMORY = frozenset(
    {"workers", "prefetch", "pin_memory", "optimizer_impl", "threads", "bucket_mb", "static_graph"}
)
# Larger saves more; None is a plan without the knob. Modes that record CUDA graphs keep pools of
# their own, padded products are copies, FSDP keeps no buckets, and a hook makes a copy of each.
_SAVES_MEMORY: dict[str, dict[Value | None, int]] = {
    "activation_checkpointing": {"selective": 1, "every-4": 2, "every-2": 3, "full": 4},
    "precision": {"fp16": 1, "bf16": 1},
    "compile_mode": {"default": 1, "max-autotune-no-cudagraphs": 1},
    "shape_padding": {"measured": 1, None: 1},
    "gradient_as_bucket_view": {True: 1, None: 1},
    "comm_hook": {"none": 1, None: 1},
}
# The shardings that hold no more than this one, however large the optimizer's state is. hsdp
# shares everything among the ranks of one copy, zero1 only that state, but among all.
_HOLD_NO_MORE: dict[Value, frozenset[Value]] = {
    "ddp": frozenset({"ddp", "zero1", "fsdp_zero2", "fsdp_zero3", "hsdp"}),
    "zero1": frozenset({"zero1", "fsdp_zero2", "fsdp_zero3"}),
    "fsdp_zero2": frozenset({"fsdp_zero2", "fsdp_zero3"}),
    "fsdp_zero3": frozenset({"fsdp_zero3"}),
    "hsdp": frozenset({"hsdp", "fsdp_zero3"}),
}
# Weights, gradients and the two moments of Adam in fp32.
_BYTES_PER_PARAMETER = 16
# What is kept for the backward pass, over what the first value keeps. Like the figures of `levers`
# these order proposals, and measurements correct them.
_KEPT: dict[str, dict[Value, float]] = {
    "activation_checkpointing": {"selective": 0.8, "every-4": 0.85, "every-2": 0.65, "full": 0.35},
    "precision": {"bf16": 0.65, "fp16": 0.65},
    "compile_mode": {"default": 0.85, "max-autotune-no-cudagraphs": 0.85},
}
# What each rank holds of weights, gradients and the optimizer's state: a part whatever the number
# of ranks, the rest shared out.
_HELD_BY_ALL: dict[Value, float] = {"zero1": 0.5, "fsdp_zero2": 0.25, "hsdp": 0.25}
_SHARDED = frozenset({"zero1", "fsdp_zero2", "fsdp_zero3", "hsdp"})
# Without a device the peak is the process's: torch is in it, and the compiler where it is used.
_TORCH_BYTES, _COMPILER_BYTES = 350 * 2**20, 50 * 2**20
_MEASURED, _ON_A_LINE = 0.01, 0.03  # deviation of the logarithm of a peak, between processes
_DOUBT_ABOUT_SAVING = 0.4  # the same, of what a change is expected to save
_WHY_LESS = {
    "activation_checkpointing": "activations are computed again instead of kept",
    "precision": "activations in fewer bits",
    "compile_mode": "fused kernels keep less between them",
    "batch_size": "fewer samples at once",
    "accumulation": "fewer samples at once",
    "sharding": "each rank holds a part",
    "gradient_as_bucket_view": "gradients are not copied into buckets",
    "comm_hook": "no copy of each bucket",
}
_SAMPLES = {"batch_size": True, "accumulation": False}  # whether less of it is fewer at once
_DOUBT, _DOUBT_FROM_OTHERS = 0.25, 0.5  # deviation of the logarithm of a peak guessed from one
_OTHERWISE_COMPARED = frozenset({*_SAVES_MEMORY, "compile_scope", "sharding"})


def cannot_fit(plan: Plan, history: History) -> bool:
    """Whether a plan that needs no more ran out of memory, or the peaks say that this one will."""
    too_big = (trial.plan for trial in history.search if _too_big(trial, history))
    if any(needs_no_less(plan, other, history) for other in too_big):
        return True
    predicted = predicted_bytes(plan, history)
    return predicted is not None and predicted > history.memory_cap_bytes


def needs_no_less(plan: Plan, other: Plan, history: History) -> bool:
    """Whether `plan` needs at least the memory of `other`, going by what memory depends on."""
    hardware = history.space.site.hardware
    return (
        not set(plan.diff(other)) - FOLLOWS_BATCH - _NO_MEMORY - _OTHERWISE_COMPARED
        and int(plan["batch_size"]) >= int(other["batch_size"])
        and other.get("sharding", "ddp") in _HOLD_NO_MORE[plan.get("sharding", "ddp")]
        and all(_saving(name, plan) <= _saving(name, other) for name in _SAVES_MEMORY)
        and _process_bytes(plan, hardware) >= _process_bytes(other, hardware)
    )


def _saving(name: str, plan: Plan) -> int:
    return _SAVES_MEMORY[name].get(plan.values.get(name), 0)


def _too_big(trial: Done, history: History) -> bool:
    return trial.result.outcome is Outcome.OOM or not history.fits(trial)


def predicted_bytes(plan: Plan, history: History) -> float | None:
    """Return the peak of `a + b * batch` through the two largest measured batches, or None."""
    peaks = history.peaks.get(but_batch(plan), {})
    if len(peaks) < 2:
        return None
    start, per_sample = _line(peaks)
    return start + per_sample * int(plan["batch_size"])


def _line(peaks: Mapping[int, int]) -> tuple[float, float]:
    """Return `a` and `b` in bytes through the peaks of the two largest batches."""
    (low, low_bytes), (high, high_bytes) = sorted(peaks.items())[-2:]
    per_sample = (high_bytes - low_bytes) / (high - low)
    return high_bytes - per_sample * high, per_sample


def chance_to_fit(plan: Plan, history: History) -> float:
    """Return the probability that the plan leaves its headroom, 1 where nothing speaks against it.

    Two peaks of its settings at other batches decide it. One is taken to be a fixed part, which
    other settings or the size of the model tell, and one that grows with the batch.
    """
    if cannot_fit(plan, history):
        return 0.0
    known = predicted_bytes(plan, history) is not None
    alike = None if known else _most_alike(plan, history)
    if alike is None:
        return 1.0
    other, (batch, peak) = alike
    growth = int(plan["batch_size"]) / batch
    if growth <= 1.0:
        return 1.0
    fixed = min(_fixed_bytes(other, history), peak)
    guess = fixed + (peak - fixed) * growth
    doubt = _DOUBT if other == but_batch(plan) else _DOUBT_FROM_OTHERS
    z = math.log(history.memory_cap_bytes / guess) / doubt
    return (1.0 + math.erf(z / math.sqrt(2.0))) / 2.0


def expected_peak(plan: Plan, history: History, hardware: Hardware) -> tuple[float, float] | None:
    """Return the logarithm of the plan's peak in bytes and its deviation; None: nothing tells.

    The peak of the most alike settings is taken apart as in `chance_to_fit`, and both parts are
    changed by what each setting is expected to do to them.
    """
    own = history.measured.get(plan)
    if own is not None and own.memory_bytes:
        return math.log(own.memory_bytes), _MEASURED
    predicted = predicted_bytes(plan, history)
    if predicted is not None and predicted > 0.0:
        return math.log(predicted), _ON_A_LINE
    alike = _most_alike(plan, history)
    if alike is None:
        return None
    other, (batch, peak) = alike
    fixed = min(_fixed_bytes(other, history, _process_bytes(other, hardware)), peak)
    process = min(_process_bytes(other, hardware), fixed)
    growth = int(plan["batch_size"]) / batch * _kept(plan) / _kept(other)
    ranks = history.space.num_ranks
    held = (fixed - process) * _held(plan, ranks) / _held(other, ranks)
    added = _process_bytes(plan, hardware) - _process_bytes(other, hardware)
    guess = max(1.0, process + added + held + (peak - fixed) * growth)
    saving = math.log(guess / peak)
    return math.log(guess), _ON_A_LINE + _DOUBT_ABOUT_SAVING * abs(saving)


def why_less(name: str, value: Value, before: Value | None) -> str | None:
    """Return in words why a value in the place of another may save memory, None: it cannot."""
    if name in _SAMPLES and before is not None and (int(value) < int(before)) != _SAMPLES[name]:
        return None
    return _WHY_LESS.get(name)


def _process_bytes(plan: Plan, hardware: Hardware) -> float:
    if hardware.device_kind != "cpu":
        return 0.0
    return _TORCH_BYTES + (_COMPILER_BYTES if is_compiled(plan) else 0.0)


def _kept(plan: Plan) -> float:
    values = plan.values
    return math.prod(by_value.get(values.get(name, ""), 1.0) for name, by_value in _KEPT.items())


def _held(plan: Plan, num_ranks: int) -> float:
    sharding = plan.get("sharding", "ddp")
    if sharding not in _SHARDED:
        return 1.0
    by_all = _HELD_BY_ALL.get(sharding, 0.0)
    return by_all + (1.0 - by_all) / num_ranks


def _most_alike(plan: Plan, history: History) -> tuple[Plan, tuple[int, int]] | None:
    """Return the settings that differ least in what memory depends on, and their largest peak.

    Settings are plans but for the batch; the peak is a batch and its bytes.
    """
    own = but_batch(plan)

    def differing(other: Plan) -> int:
        return len(set(own.diff(other)) - _NO_MEMORY)

    nearest = min(history.peaks, key=differing, default=None)
    return None if nearest is None else (nearest, max(history.peaks[nearest].items()))


def _fixed_bytes(plan: Plan, history: History, process_bytes: float = 0.0) -> float:
    """Return what is needed at any batch: where lines through two peaks begin, or a guess.

    The guess is what a rank holds of the model and its optimizer, beside `process_bytes`.
    """
    lines = [_line(peaks) for peaks in history.peaks.values() if len(peaks) > 1]
    guess = _held(plan, history.space.num_ranks) * (
        _BYTES_PER_PARAMETER * history.space.facts.num_parameters
    )
    if not lines:
        return process_bytes + guess
    return max(0.0, statistics.median(start for start, _ in lines))
