"""The peak memory of plans, estimated from peaks measured at other batches and settings."""

import math
import statistics
from collections.abc import Mapping

from autotune.agent.done import Done
from autotune.agent.history import History, without_batch
from autotune.search_space.hardware import Hardware
from autotune.search_space.knobs import Knob, is_compiled
from autotune.search_space.knobs.batch import FOLLOWS_BATCH
from autotune.search_space.knobs.ranks import held_share, holds_no_more
from autotune.search_space.plan import Plan
from autotune.trials.result import Outcome

# Weights, gradients and the two moments of Adam in fp32.
_BYTES_PER_PARAMETER = 16
# On a CPU the peak is that of the process, with torch and, in compiled plans, the compiler.
_TORCH_BYTES, _COMPILER_BYTES = 350 * 2**20, 50 * 2**20
# Standard deviation of the log of a peak: measured for the same plan, and extrapolated by a line
# through peaks at two other batches.
_MEASURED_STD, _LINE_STD = 0.01, 0.03
# Further standard deviation, as a part of the expected log saving, for a plan of other settings.
_STD_PER_LOG_SAVING = 0.4
# Standard deviation of the log of a peak guessed from one peak: of the same settings at another
# batch, and of other settings.
_ONE_PEAK_STD, _OTHER_SETTINGS_STD = 0.25, 0.5


def cannot_fit(plan: Plan, history: History) -> bool:
    """Whether the plan needs too much memory.

    It does if a plan that needs no more ran out of memory, or by its extrapolated peak.
    """
    too_large = (trial.plan for trial in history.search if _exceeded_memory(trial, history))
    if any(needs_no_less(plan, other, history) for other in too_large):
        return True
    predicted = predicted_bytes(plan, history)
    return predicted is not None and predicted > history.memory_cap_bytes


def needs_no_less(plan: Plan, other: Plan, history: History) -> bool:
    """Whether `plan` surely needs at least the memory of `other`, by batch and saving settings."""
    hardware = history.space.site.hardware
    differing = [history.space.knob(name) for name in plan.diff(other)]
    return (
        all(k.memory.saving is not None or k.name in FOLLOWS_BATCH for k in differing)
        and int(plan["batch_size"]) >= int(other["batch_size"])
        and holds_no_more(plan, other)
        and all(_saving(knob, plan) <= _saving(knob, other) for knob in differing)
        and _process_bytes(plan, hardware) >= _process_bytes(other, hardware)
    )


def _saving(knob: Knob, plan: Plan) -> int:
    return knob.memory.rank(plan.values.get(knob.name))


def _exceeded_memory(trial: Done, history: History) -> bool:
    return trial.result.outcome is Outcome.OOM or not history.fits(trial)


def predicted_bytes(plan: Plan, history: History) -> float | None:
    """Return the peak of `a + b * batch` through the two largest measured batches, or None."""
    peaks = history.peaks.get(without_batch(plan), {})
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
    """Return the probability that the plan fits in memory with headroom, 1 without evidence.

    With peaks of its settings at two batches it is 0 or 1. A single peak is split into a fixed
    part, estimated from other settings or the model's size, and one that grows with the batch.
    """
    if cannot_fit(plan, history):
        return 0.0
    known = predicted_bytes(plan, history) is not None
    similar = None if known else _most_similar(plan, history)
    if similar is None:
        return 1.0
    other, (batch, peak) = similar
    growth = int(plan["batch_size"]) / batch
    if growth <= 1.0:
        return 1.0
    fixed = min(_fixed_bytes(other, history), peak)
    guess = fixed + (peak - fixed) * growth
    doubt = _ONE_PEAK_STD if other == without_batch(plan) else _OTHER_SETTINGS_STD
    return statistics.NormalDist(math.log(guess), doubt).cdf(math.log(history.memory_cap_bytes))


def expected_peak(plan: Plan, history: History, hardware: Hardware) -> tuple[float, float] | None:
    """Return mean and standard deviation of the log of the plan's peak in bytes, None if unknown.

    The peak of the most similar settings is split as in `chance_to_fit`, and both parts are scaled
    by the expected savings of the settings that differ.
    """
    own = history.measured.get(plan)
    if own is not None and own.memory_bytes:
        return math.log(own.memory_bytes), _MEASURED_STD
    predicted = predicted_bytes(plan, history)
    if predicted is not None and predicted > 0.0:
        return math.log(predicted), _LINE_STD
    similar = _most_similar(plan, history)
    if similar is None:
        return None
    other, (batch, peak) = similar
    fixed = min(_fixed_bytes(other, history, _process_bytes(other, hardware)), peak)
    process = min(_process_bytes(other, hardware), fixed)
    growth = int(plan["batch_size"]) / batch
    growth *= _activations(plan, history) / _activations(other, history)
    ranks = history.space.num_ranks
    held = (fixed - process) * held_share(plan, ranks) / held_share(other, ranks)
    added = _process_bytes(plan, hardware) - _process_bytes(other, hardware)
    guess = max(1.0, process + added + held + (peak - fixed) * growth)
    saving = math.log(guess / peak)
    return math.log(guess), _LINE_STD + _STD_PER_LOG_SAVING * abs(saving)


def _process_bytes(plan: Plan, hardware: Hardware) -> float:
    if hardware.device_kind != "cpu":
        return 0.0
    return _TORCH_BYTES + (_COMPILER_BYTES if is_compiled(plan) else 0.0)


def _activations(plan: Plan, history: History) -> float:
    """Return the activations kept for the backward pass, as a part of those of eager fp32."""
    kept = (history.space.knob(name).memory.activations.get(v, 1.0) for name, v in plan.items)
    return math.prod(kept)


def _most_similar(plan: Plan, history: History) -> tuple[Plan, tuple[int, int]] | None:
    """Return the measured settings most similar to the plan's, and their largest batch and peak.

    Settings are a plan without its batch; they are similar if few settings that change memory
    differ. The peak is in bytes.
    """
    own = without_batch(plan)

    def differing(other: Plan) -> int:
        return sum(history.space.knob(name).memory.matters for name in own.diff(other))

    nearest = min(history.peaks, key=differing, default=None)
    return None if nearest is None else (nearest, max(history.peaks[nearest].items()))


def _fixed_bytes(plan: Plan, history: History, process_bytes: float = 0.0) -> float:
    """Return the memory needed at any batch: the intercept of lines through two peaks, or a guess.

    The guess is `process_bytes` and what a rank holds of model, gradients and optimizer state.
    """
    lines = [_line(peaks) for peaks in history.peaks.values() if len(peaks) > 1]
    guess = held_share(plan, history.space.num_ranks) * (
        _BYTES_PER_PARAMETER * history.space.facts.num_parameters
    )
    if not lines:
        return process_bytes + guess
    return max(0.0, statistics.median(start for start, _ in lines))
