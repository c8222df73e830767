"""How much memory a plan will need, from peaks measured at other batch sizes."""

import math
import statistics
from collections.abc import Mapping

from autotune.agent.history import FOLLOWS_BATCH, Done, History, but_batch
from autotune.search_space.plan import Plan, Value
from autotune.trials.result import Outcome

_NO_MEMORY = frozenset(
    {"workers", "prefetch", "pin_memory", "optimizer_impl", "threads", "bucket_mb", "static_graph"}
)
# Larger saves more; None is a plan without the knob. Modes that record CUDA graphs keep pools of
# their own, FSDP keeps no buckets, and a hook makes a copy of each.
_SAVES_MEMORY: dict[str, dict[Value | None, int]] = {
    "activation_checkpointing": {"selective": 1, "every-4": 2, "every-2": 3, "full": 4},
    "precision": {"fp16": 1, "bf16": 1},
    "compile_mode": {"default": 1, "max-autotune-no-cudagraphs": 1},
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
_DOUBT, _DOUBT_FROM_OTHERS = 0.25, 0.5  # deviation of the logarithm of a peak guessed from one
_OTHERWISE_COMPARED = frozenset({*_SAVES_MEMORY, "compile_scope", "sharding"})


def cannot_fit(plan: Plan, history: History) -> bool:
    """Whether a plan that needs no more ran out of memory, or the peaks say that this one will."""
    if any(
        needs_no_less(plan, trial.plan) for trial in history.search if _too_big(trial, history)
    ):
        return True
    predicted = predicted_bytes(plan, history)
    return predicted is not None and predicted > history.memory_cap_bytes


def needs_no_less(plan: Plan, other: Plan) -> bool:
    """Whether `plan` needs at least the memory of `other`, going by what memory depends on."""
    return (
        not set(plan.diff(other)) - FOLLOWS_BATCH - _NO_MEMORY - _OTHERWISE_COMPARED
        and int(plan["batch_size"]) >= int(other["batch_size"])
        and other.get("sharding", "ddp") in _HOLD_NO_MORE[plan.get("sharding", "ddp")]
        and all(_saving(name, plan) <= _saving(name, other) for name in _SAVES_MEMORY)
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
    fixed = min(_fixed_bytes(history), peak)
    guess = fixed + (peak - fixed) * growth
    doubt = _DOUBT if other == but_batch(plan) else _DOUBT_FROM_OTHERS
    z = math.log(history.memory_cap_bytes / guess) / doubt
    return (1.0 + math.erf(z / math.sqrt(2.0))) / 2.0


def _most_alike(plan: Plan, history: History) -> tuple[Plan, tuple[int, int]] | None:
    """Return the settings that differ least in what memory depends on, and their largest peak.

    Settings are plans but for the batch; the peak is a batch and its bytes.
    """
    own = but_batch(plan)

    def differing(other: Plan) -> int:
        return len(set(own.diff(other)) - _NO_MEMORY)

    nearest = min(history.peaks, key=differing, default=None)
    return None if nearest is None else (nearest, max(history.peaks[nearest].items()))


def _fixed_bytes(history: History) -> float:
    """Return what is needed at any batch: where lines through two peaks begin, or a guess."""
    lines = [_line(peaks) for peaks in history.peaks.values() if len(peaks) > 1]
    guess = _BYTES_PER_PARAMETER * history.space.facts.num_parameters / history.space.num_ranks
    return max(0.0, statistics.median(start for start, _ in lines)) if lines else guess
