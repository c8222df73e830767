"""Which plans go into the confirmation, and what the confirmation says about them."""

import math
import statistics
from dataclasses import dataclass

from autotune.agent.conclusion.numerics import is_unchecked, next_check
from autotune.agent.conclusion.speedup import Speedup, around, pooled
from autotune.agent.done import Done
from autotune.agent.history import History, conclusive
from autotune.agent.objectives.objective import Figures
from autotune.search_space.plan import Plan
from autotune.trials.diagnosis import FindingKind
from autotune.trials.interval import student_t
from autotune.trials.result import Measurement, Outcome, Purpose

MAX_FINALISTS = 3
_NEAR_BEST = 0.95
_EQUAL = 0.01
# Deviation of the log throughput between processes of a plan, as machines usually have it (0.2 to
# 3 % were seen on several), and how many measured moves that knowledge is worth.
_USUAL_SPREAD, _USUAL_DEGREES = 0.03, 2
_SAME_MEMORY = 0.05  # relative difference that is no reason to prefer a plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmed:
    """A finalist beside the baseline, both measured again in fresh processes.

    Attributes:
        value: by the objective.
    """

    plan: Plan
    figures: Figures
    baseline: Figures
    value: float
    speedup: Speedup


def finalists(history: History) -> list[Plan]:
    """Return the plans worth confirming, best first; none when nothing beats the baseline."""
    baseline = history.baseline
    if baseline is None:
        return []
    near: list[Done] = []
    for trial in (*_surprises(history), *history.ranking):
        top = history.value(near[0]) if near else 0.0
        own = history.objective.worth_confirming * history.value(baseline)
        value = history.value(trial)
        if not value or value < max(own, _NEAR_BEST * top):
            break
        if trial.plan != baseline.plan and not disqualified(trial.plan, history):
            near.append(trial)
    return [trial.plan for trial in _preferred_second(near, history)[:MAX_FINALISTS]]


def _surprises(history: History) -> list[Done]:
    """Return what was only run to see what a setting is worth, and beats all of the search."""
    least = (1 + _EQUAL) * history.value(history.best)
    found = [trial for trial in _flipped_back(history) if history.value(trial) > least]
    return sorted(found, key=lambda trial: -history.value(trial))


def unconfirmed_surprises(history: History) -> list[Plan]:
    """Return the plans that beat the search with a setting flipped back and were not run again."""
    plans = [trial.plan for trial in _surprises(history)]
    return [p for p in plans if not (confirmations(p, history) or disqualified(p, history))]


def _flipped_back(history: History) -> list[Done]:
    ablations = history.of(Purpose.ABLATE)
    return [trial for trial in ablations if trial.is_measured and history.fits(trial)]


def _preferred_second(near: list[Done], history: History) -> list[Done]:
    """Put behind the best the one to prefer to it among those equally good.

    A setting that proved worth nothing when it was flipped back is among them: without it the
    training may stay the user's own, or need less memory.
    """
    if not near:
        return near
    least = history.value(near[0]) / (1 + _EQUAL)
    sound = [t for t in _flipped_back(history) if not disqualified(t.plan, history)]
    equal = [trial for trial in (*near[1:], *sound) if history.value(trial) >= least]
    preferred = min(equal, key=lambda trial: _burden(trial, history), default=near[0])
    if not _is_lighter(preferred, near[0], history):
        return near
    rest = [t for t in near[1:] if t.plan != preferred.plan]
    return [near[0], preferred, *rest]


def _is_lighter(trial: Done, other: Done, history: History) -> bool:
    changes, memory = _burden(trial, history)
    other_changes, other_memory = _burden(other, history)
    if changes != other_changes:
        return changes < other_changes
    return memory < other_memory * (1 - _SAME_MEMORY)


def _burden(trial: Done, history: History) -> tuple[bool, float]:
    return changes_training(trial.plan, history), history.figures(trial).memory_bytes or math.inf


def changes_training(plan: Plan, history: History) -> bool:
    """Whether an optimizer step sees another number of samples than in the user's own training.

    Or as many, in parts of another size, where the loss depends on those.
    """
    space = history.space
    same = plan["batch_size"] == space.baseline["batch_size"]
    is_kept = space.facts.global_batch_size is not None and mixed_loss(history) is None
    return not (same or is_kept)


def mixed_loss(history: History) -> str | None:
    """Return in words that the loss depends on which samples are in a batch together, or None.

    It is only looked for on one device.
    """
    diagnoses = (known.diagnosis for known in (history, history.scouts) if known)
    found = (finding for diagnosis in diagnoses if diagnosis for finding in diagnosis.findings)
    return next((f.what for f in found if f.kind is FindingKind.BATCH_LOSS), None)


def disqualified(plan: Plan, history: History) -> str | None:
    """Return why the plan may not win although it did well, or None."""
    for trial in (t for t in history.of(Purpose.CONFIRM) if t.plan == plan):
        if _failed(trial):
            outcome = trial.result.outcome.value
            return f"it failed when it was run again ({outcome}: {trial.result.error})"
        if not history.fits(trial):
            return "it left too little memory free when it was run again"
    return history.verdicts.failure(plan) or _falls_short(plan, history)


def _falls_short(plan: Plan, history: History) -> str | None:
    if history.baseline is None or plan == history.baseline.plan:
        return None
    own = confirmed_figures(plan, history)
    baseline = confirmed_figures(history.baseline.plan, history)
    return history.objective.falls_short(own, baseline) if own and baseline else None


def confirmations(plan: Plan, history: History) -> list[Measurement]:
    """Return what fresh processes measured of the plan in the confirmation."""
    return [
        t.result.measurement
        for t in history.of(Purpose.CONFIRM)
        if t.plan == plan and t.result.measurement is not None
    ]


def _compared(plan: Plan, history: History) -> list[Measurement]:
    """Return what the plan is judged by: its confirmations.

    The baseline, which nobody chose for its speed, is judged by its first process before it was
    run again.
    """
    baseline = history.baseline
    again = conclusive(t for t in history.of(Purpose.CONFIRM) if t.plan == plan)
    if again or baseline is None or plan != baseline.plan:
        return confirmations(plan, history)
    return [m for m in (baseline.result.measurement,) if m is not None]


def confirmed_figures(plan: Plan, history: History) -> Figures | None:
    """Return what the confirmation says of the plan, None before it was run again."""
    again = _compared(plan, history)
    if not again:
        return None
    peaks = [m.memory_bytes for m in again if m.memory_bytes is not None]
    throughput = statistics.geometric_mean(m.throughput for m in again)
    return history.figures_of(plan, throughput, max(peaks, default=None))


def confirmed(history: History, rounds: int = 1) -> list[Confirmed]:
    """Return the sound finalists measured again in `rounds` processes or more, best first."""
    baseline = history.baseline
    if baseline is None or not _compared(baseline.plan, history):
        return []
    plans = dict.fromkeys(t.plan for t in history.of(Purpose.CONFIRM))
    entries = [
        _confirmed(plan, baseline.plan, history)
        for plan in plans
        if plan != baseline.plan
        and len(confirmations(plan, history)) >= rounds
        and not disqualified(plan, history)
    ]
    return sorted(entries, key=lambda entry: (-entry.value, -entry.figures.throughput))


def choose(history: History, gain: float, *, checks_pass: bool = False) -> Confirmed | None:
    """Return the winner, None for the baseline.

    The best mean wins; among those within `gain` of it the one that leaves the training as it is,
    then one whose numerics were checked, then the one with less memory, then the one that changes
    fewer settings. Only plans that are better than the baseline by the whole interval of their
    speed-up can win.

    Args:
        history: with a confirmation.
        gain: relative difference that is none.
        checks_pass: choose as if the checks that are still to be run had passed.
    """
    repeated = confirmed(history, rounds=2) or confirmed(history)
    better = [
        entry
        for entry in repeated
        if history.objective.is_better(entry.figures, entry.baseline, entry.speedup.low)
        and not history.verdicts.is_suspect(entry.plan)
    ]
    if not better:
        return None
    near = [entry for entry in better if entry.value >= better[0].value / (1 + gain)]
    return min(near, key=lambda entry: _price(entry, history, checks_pass=checks_pass))


def _price(entry: Confirmed, history: History, *, checks_pass: bool) -> tuple[float, ...]:
    changes = changes_training(entry.plan, history)
    is_to_come = checks_pass and next_check(entry.plan, history) is not None
    unchecked = not is_to_come and is_unchecked(entry.plan, history)
    peak = entry.figures.memory_bytes
    memory = math.log(peak) if peak else 0.0
    settings = len(entry.plan.diff(history.space.baseline))
    return (changes, unchecked, round(memory / _SAME_MEMORY), settings, -entry.value)


def _confirmed(plan: Plan, baseline: Plan, history: History) -> Confirmed:
    own, theirs = confirmed_figures(plan, history), confirmed_figures(baseline, history)
    assert own is not None
    assert theirs is not None
    return Confirmed(
        plan=plan,
        figures=own,
        baseline=theirs,
        value=history.objective.value(own, theirs),
        speedup=speedup_of(plan, baseline, history),
    )


def speedup_of(plan: Plan, baseline: Plan, history: History) -> Speedup:
    """Return the speed-up of a confirmed plan, with an interval as wide as the evidence allows."""
    repeats = _repeats(baseline, history)
    found = baseline.digest in repeats and pooled(repeats, plan.digest, baseline.digest)
    return found or _from_one_round(plan, baseline, history)


def _repeats(baseline: Plan, history: History) -> dict[str, list[tuple[int, float]]]:
    """Return what each plan gave, each time with its round: a round begins with the baseline.

    So a plan that took another's place late is set beside what was measured about when it was.
    """
    repeats: dict[str, list[tuple[int, float]]] = {}
    number = 0
    for trial in history.of(Purpose.CONFIRM):
        number += trial.plan == baseline
        if trial.is_measured:
            repeats.setdefault(trial.plan.digest, []).append((number, trial.throughput))
    return repeats


def _from_one_round(plan: Plan, baseline: Plan, history: History) -> Speedup:
    """One fresh process each: the search's own measurements only say how processes differ."""
    ours, theirs = confirmations(plan, history)[0], _compared(baseline, history)[0]
    windows = math.hypot(ours.log_half_width, theirs.log_half_width)
    again = [plan, baseline] if confirmations(baseline, history) else [plan]
    moves = [
        math.log(_compared(p, history)[0].throughput / history.measured[p].throughput)
        for p in again
    ]
    # Each move is the difference of two processes, so it has twice their variance.
    seen = sum(move**2 / 2 for move in moves)
    degrees = len(moves) + _USUAL_DEGREES
    between = math.sqrt((seen + _USUAL_DEGREES * _USUAL_SPREAD**2) / degrees)
    factor = student_t(degrees, _num_finalists(history))
    half_width = max(windows, factor * between * math.sqrt(2))
    how = "one fresh process each, time allowed no second round"
    if len(again) == 1:
        how = "a fresh process of the plan beside the baseline's first one, time allowed no more"
    return around(
        math.log(ours.throughput / theirs.throughput),
        half_width,
        f"{how}; the interval comes from their windows, from how far plans moved since the search "
        "and from how far processes usually differ",
    )


def _num_finalists(history: History) -> int:
    return max(1, len({t.plan for t in history.of(Purpose.CONFIRM)}) - 1)


def _failed(trial: Done) -> bool:
    return trial.result.outcome.is_about_plan and trial.result.outcome is not Outcome.OK
