"""How much memory a plan will need, from peaks measured at other batch sizes."""

from autotune.agent.history import Done, History
from autotune.search_space.plan import Plan, Value
from autotune.trials.result import Outcome

_FOLLOWS_BATCH = frozenset({"batch_size", "accumulation"})
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
        not set(plan.diff(other)) - _FOLLOWS_BATCH - _NO_MEMORY - _OTHERWISE_COMPARED
        and int(plan["batch_size"]) >= int(other["batch_size"])
        and other.get("sharding", "ddp") in _HOLD_NO_MORE[plan.get("sharding", "ddp")]
        and all(_saving(name, plan) <= _saving(name, other) for name in _SAVES_MEMORY)
    )


def _saving(name: str, plan: Plan) -> int:
    return _SAVES_MEMORY[name].get(plan.values.get(name), 0)


def _too_big(trial: Done, history: History) -> bool:
    return trial.result.outcome is Outcome.OOM or not history.fits(trial)


def predicted_bytes(plan: Plan, history: History) -> float | None:
    """Return the peak of `a + b * batch` through the two nearest measured batches, or None."""
    peaks = sorted(
        (int(other["batch_size"]), measurement.memory_bytes)
        for other, measurement in history.measured.items()
        if measurement.memory_bytes is not None and same_but_batch(other, plan)
    )
    if len(peaks) < 2:
        return None
    (low, low_bytes), (high, high_bytes) = peaks[-2:]
    per_sample = (high_bytes - low_bytes) / (high - low)
    return high_bytes + per_sample * (int(plan["batch_size"]) - high)


def same_but_batch(plan: Plan, other: Plan) -> bool:
    """Whether the plans differ in nothing but the batch, and the accumulation that follows it."""
    return set(plan.diff(other)) <= _FOLLOWS_BATCH
