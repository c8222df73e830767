"""How much memory a plan will need, from peaks measured at other batch sizes."""

import math
import statistics

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
    line = _line(plan, history)
    return None if line is None else line[0] + line[1] * int(plan["batch_size"])


def _line(plan: Plan, history: History) -> tuple[float, float] | None:
    """Return `a` and `b` in bytes through the peaks of the plan's two largest measured batches."""
    peaks = sorted(
        (int(other["batch_size"]), measurement.memory_bytes)
        for other, measurement in history.measured.items()
        if measurement.memory_bytes is not None and same_but_batch(other, plan)
    )
    if len(peaks) < 2:
        return None
    (low, low_bytes), (high, high_bytes) = peaks[-2:]
    per_sample = (high_bytes - low_bytes) / (high - low)
    return high_bytes - per_sample * high, per_sample


def chance_to_fit(plan: Plan, history: History) -> float:
    """Return the probability that the plan leaves its headroom, 1 where nothing speaks against it.

    Two peaks of its settings at other batches decide it. One is taken to be a fixed part, which
    other settings or the size of the model tell, and one that grows with the batch.
    """
    if cannot_fit(plan, history):
        return 0.0
    if predicted_bytes(plan, history) is not None:
        return 1.0
    nearest = _most_alike(plan, history)
    if nearest is None:
        return 1.0
    other, peak = nearest
    fixed = min(_fixed_bytes(history), peak)
    growth = int(plan["batch_size"]) / int(other["batch_size"])
    guess = fixed + (peak - fixed) * growth
    doubt = _DOUBT if same_but_batch(plan, other) else _DOUBT_FROM_OTHERS
    if growth <= 1.0:
        return 1.0
    z = math.log(history.memory_cap_bytes / guess) / doubt
    return (1.0 + math.erf(z / math.sqrt(2.0))) / 2.0


def _most_alike(plan: Plan, history: History) -> tuple[Plan, int] | None:
    """Return the measured plan that differs least in what memory depends on, and its peak."""
    found = [(o, m.memory_bytes) for o, m in history.measured.items() if m.memory_bytes]

    def distance(entry: tuple[Plan, int]) -> tuple[int, float]:
        other = entry[0]
        differing = set(plan.diff(other)) - _FOLLOWS_BATCH - _NO_MEMORY
        return len(differing), -int(other["batch_size"])

    return min(found, key=distance, default=None)


def _fixed_bytes(history: History) -> float:
    """Return what is needed at any batch: where lines through two peaks begin, or a guess."""
    starts = [start for plan in history.measured if (start := _start(plan, history)) is not None]
    guess = _BYTES_PER_PARAMETER * history.space.facts.num_parameters / history.space.num_ranks
    return max(0.0, statistics.median(starts)) if starts else guess


def _start(plan: Plan, history: History) -> float | None:
    line = _line(plan, history)
    return None if line is None else line[0]


def same_but_batch(plan: Plan, other: Plan) -> bool:
    """Whether the plans differ in nothing but the batch, and the accumulation that follows it."""
    return set(plan.diff(other)) <= _FOLLOWS_BATCH
