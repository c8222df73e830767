"""Which plans go into the confirmation, and what the confirmation says about them."""

import math
import statistics
from dataclasses import dataclass

from autotune.agent.history import Done, History
from autotune.agent.numerics import is_suspect, numerics_failure
from autotune.agent.speedup import Speedup, around, pooled, student_t
from autotune.search_space.plan import Plan
from autotune.trials.result import Measurement, Outcome, Purpose

MAX_FINALISTS = 3
_NEAR_BASELINE = 0.98  # noise may hide a small gain; the confirmation decides
_NEAR_BEST = 0.95
_EQUAL = 0.01
_SAME_MEMORY = 0.05  # relative difference that is no reason to prefer a plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmed:
    """A finalist beside the baseline, both measured again in fresh processes."""

    plan: Plan
    throughput: float
    memory_bytes: int | None
    speedup: Speedup


def finalists(history: History) -> list[Plan]:
    """Return the plans worth confirming, fastest first; none when nothing beats the baseline."""
    baseline = history.baseline
    if baseline is None:
        return []
    near: list[Done] = []
    for trial in history.ranking:
        least = max(_NEAR_BASELINE * baseline.throughput, _NEAR_BEST * _top(near))
        if trial.throughput < least:
            break
        if trial.plan != baseline.plan and not disqualified(trial.plan, history):
            near.append(trial)
    return [trial.plan for trial in _cheapest_second(near)[:MAX_FINALISTS]]


def _top(near: list[Done]) -> float:
    return near[0].throughput if near else 0.0


def _cheapest_second(near: list[Done]) -> list[Done]:
    """Put behind the fastest the one that needs least memory among those equally fast."""
    equal = [t for t in near[1:] if t.throughput >= near[0].throughput / (1 + _EQUAL)]
    if not equal:
        return near
    cheapest = min(equal, key=_memory)
    rest = [t for t in near[1:] if t is not cheapest]
    return [near[0], cheapest, *rest] if _memory(cheapest) < _memory(near[0]) else near


def _memory(trial: Done) -> float:
    measurement = trial.result.measurement
    return measurement.memory_bytes or 0.0 if measurement else 0.0


def disqualified(plan: Plan, history: History) -> str | None:
    """Return why the plan may not win although it was fast, or None."""
    for trial in (t for t in history.of(Purpose.CONFIRM) if t.plan == plan):
        if _failed(trial):
            outcome = trial.result.outcome.value
            return f"it failed when it was run again ({outcome}: {trial.result.error})"
        if not history.fits(trial):
            return "it left too little memory free when it was run again"
    return numerics_failure(plan, history)


def confirmations(plan: Plan, history: History) -> list[Measurement]:
    """Return what fresh processes measured of the plan in the confirmation."""
    return [
        t.result.measurement
        for t in history.of(Purpose.CONFIRM)
        if t.plan == plan and t.result.measurement is not None
    ]


def confirmed(history: History, rounds: int = 1) -> list[Confirmed]:
    """Return the sound finalists measured again in `rounds` processes or more, fastest first."""
    baseline = history.baseline
    if baseline is None or not confirmations(baseline.plan, history):
        return []
    plans = dict.fromkeys(t.plan for t in history.of(Purpose.CONFIRM))
    entries = [
        _confirmed(plan, baseline.plan, history)
        for plan in plans
        if plan != baseline.plan
        and len(confirmations(plan, history)) >= rounds
        and not disqualified(plan, history)
    ]
    return sorted(entries, key=lambda entry: -entry.throughput)


def choose(history: History, gain: float) -> Confirmed | None:
    """Return the winner, None for the baseline.

    The fastest mean wins; among those within `gain` of it the one with less memory, then the one
    that changes fewer settings. Only plans whose whole interval is above 1 can win.
    """
    repeated = confirmed(history, rounds=2) or confirmed(history)
    faster = [
        entry
        for entry in repeated
        if entry.speedup.low > 1.0 and not is_suspect(entry.plan, history)
    ]
    if not faster:
        return None
    near = [e for e in faster if e.throughput >= faster[0].throughput / (1 + gain)]
    return min(near, key=lambda entry: _price(entry, history))


def _price(entry: Confirmed, history: History) -> tuple[float, int, float]:
    memory = math.log(entry.memory_bytes) if entry.memory_bytes else 0.0
    settings = len(entry.plan.diff(history.space.baseline))
    return (round(memory / _SAME_MEMORY), settings, -entry.throughput)


def _confirmed(plan: Plan, baseline: Plan, history: History) -> Confirmed:
    ours = confirmations(plan, history)
    peaks = [m.memory_bytes for m in ours if m.memory_bytes is not None]
    return Confirmed(
        plan=plan,
        throughput=statistics.geometric_mean(m.throughput for m in ours),
        memory_bytes=max(peaks, default=None),
        speedup=speedup_of(plan, baseline, history),
    )


def speedup_of(plan: Plan, baseline: Plan, history: History) -> Speedup:
    """Return the speed-up of a confirmed plan, with an interval as wide as the evidence allows."""
    plans = dict.fromkeys(t.plan for t in history.of(Purpose.CONFIRM))
    repeats = {
        p.digest: [m.throughput for m in confirmations(p, history)]
        for p in plans
        if confirmations(p, history)
    }
    found = pooled(repeats, plan.digest, baseline.digest)
    return found or _from_one_round(plan, baseline, history)


def _from_one_round(plan: Plan, baseline: Plan, history: History) -> Speedup:
    """One fresh process each: the search's own measurements only say how processes differ."""
    ours, theirs = confirmations(plan, history)[0], confirmations(baseline, history)[0]
    windows = math.hypot(_log_half_width(ours), _log_half_width(theirs))
    moves = [
        math.log(again.throughput / history.measured[p].throughput)
        for p, again in ((plan, ours), (baseline, theirs))
    ]
    # Each move is the difference of two processes, so it has twice their variance.
    between = math.sqrt(statistics.fmean(move**2 for move in moves) / 2)
    factor = student_t(len(moves), _num_finalists(history))
    half_width = max(windows, factor * between * math.sqrt(2))
    return around(
        math.log(ours.throughput / theirs.throughput),
        half_width,
        "one fresh process each, time allowed no second round; the interval comes from the "
        "windows in them and from how far they moved since the search",
    )


def _num_finalists(history: History) -> int:
    return max(1, len({t.plan for t in history.of(Purpose.CONFIRM)}) - 1)


def _log_half_width(measurement: Measurement) -> float:
    return math.log(measurement.throughput_high / measurement.throughput_low) / 2


def _failed(trial: Done) -> bool:
    return trial.result.outcome.is_about_plan and trial.result.outcome is not Outcome.OK
