"""How much memory a plan will need, from peaks measured at other batch sizes."""

import math
import statistics
from collections.abc import Mapping

from autotune.agent.done import Done
from autotune.agent.history import History, but_batch
from autotune.search_space.hardware import Hardware
from autotune.search_space.knobs import Knob, is_compiled
from autotune.search_space.knobs.batch import FOLLOWS_BATCH
from autotune.search_space.knobs.ranks import held_share, holds_no_more
from autotune.search_space.plan import Plan
from autotune.trials.result import Outcome

# Weights, gradients and the two moments of Adam in fp32.
_BYTES_PER_PARAMETER = 16
# Without a device the peak is the process's: torch is in it, and the compiler where it is used.
_TORCH_BYTES, _COMPILER_BYTES = 350 * 2**20, 50 * 2**20
_MEASURED, _ON_A_LINE = 0.01, 0.03  # deviation of the logarithm of a peak, between processes
_DOUBT_ABOUT_SAVING = 0.4  # the same, of what a change is expected to save
_DOUBT, _DOUBT_FROM_OTHERS = 0.25, 0.5  # deviation of the logarithm of a peak guessed from one


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
    return statistics.NormalDist(math.log(guess), doubt).cdf(math.log(history.memory_cap_bytes))


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
    growth = int(plan["batch_size"]) / batch
    growth *= _activations(plan, history) / _activations(other, history)
    ranks = history.space.num_ranks
    held = (fixed - process) * held_share(plan, ranks) / held_share(other, ranks)
    added = _process_bytes(plan, hardware) - _process_bytes(other, hardware)
    guess = max(1.0, process + added + held + (peak - fixed) * growth)
    saving = math.log(guess / peak)
    return math.log(guess), _ON_A_LINE + _DOUBT_ABOUT_SAVING * abs(saving)


def _process_bytes(plan: Plan, hardware: Hardware) -> float:
    if hardware.device_kind != "cpu":
        return 0.0
    return _TORCH_BYTES + (_COMPILER_BYTES if is_compiled(plan) else 0.0)


def _activations(plan: Plan, history: History) -> float:
    """Return what the plan keeps for the backward pass, as a part of what the baseline keeps."""
    kept = (history.space.knob(name).memory.activations.get(v, 1.0) for name, v in plan.items)
    return math.prod(kept)


def _most_alike(plan: Plan, history: History) -> tuple[Plan, tuple[int, int]] | None:
    """Return the settings that differ least in what memory depends on, and their largest peak.

    Settings are plans but for the batch; the peak is a batch and its bytes.
    """
    own = but_batch(plan)

    def differing(other: Plan) -> int:
        return sum(history.space.knob(name).memory.matters for name in own.diff(other))

    nearest = min(history.peaks, key=differing, default=None)
    return None if nearest is None else (nearest, max(history.peaks[nearest].items()))


def _fixed_bytes(plan: Plan, history: History, process_bytes: float = 0.0) -> float:
    """Return what is needed at any batch: where lines through two peaks begin, or a guess.

    The guess is what a rank holds of the model and its optimizer, beside `process_bytes`.
    """
    lines = [_line(peaks) for peaks in history.peaks.values() if len(peaks) > 1]
    guess = held_share(plan, history.space.num_ranks) * (
        _BYTES_PER_PARAMETER * history.space.facts.num_parameters
    )
    if not lines:
        return process_bytes + guess
    return max(0.0, statistics.median(start for start, _ in lines))
