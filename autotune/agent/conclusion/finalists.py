"""The plans that are confirmed, their results, and the choice of the winner."""

import math
import statistics
from dataclasses import dataclass

from autotune.agent.conclusion.numerics import is_unchecked, next_check
from autotune.agent.conclusion.speedup import Speedup, speedup_of
from autotune.agent.done import Done
from autotune.agent.history import History, conclusive
from autotune.agent.objectives.objective import Figures
from autotune.search_space.changes import changes
from autotune.search_space.knobs.loader import groups_by_length
from autotune.search_space.plan import Plan
from autotune.trials.diagnosis import FindingKind
from autotune.trials.result import Measurement, Outcome, Purpose

MAX_FINALISTS = 3
_NEAR_BEST = 0.95  # least value of a finalist, as a part of the best one's
_TIE = 0.01  # relative difference of two values in the search that is within noise
_SAME_MEMORY = 0.05  # relative difference of two peaks that is no reason to prefer a plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmed:
    """A finalist beside the baseline, both measured again in fresh processes.

    Attributes:
        plan: the finalist.
        figures: what it gave in the confirmation.
        baseline: what the baseline gave there.
        value: the plan's value by the objective.
        speedup: of its throughput over the baseline's.
    """

    plan: Plan
    figures: Figures
    baseline: Figures
    value: float
    speedup: Speedup


def finalists(history: History) -> list[Plan]:
    """Return the plans worth confirming, best first; none when nothing beats the baseline."""
    better = _better_than_baseline(history)
    least = _NEAR_BEST * history.value(better[0]) if better else 0.0
    near = [trial for trial in better if history.value(trial) >= least]
    return [trial.plan for trial in _preferred_second(near, history)[:MAX_FINALISTS]]


def better_plans(history: History) -> list[Plan]:
    """Return the plans that may beat the baseline, best first, however far behind the best."""
    return [trial.plan for trial in _better_than_baseline(history)]


def _better_than_baseline(history: History) -> list[Done]:
    baseline = history.baseline
    if baseline is None:
        return []
    least = history.objective.worth_confirming * history.value(baseline)
    return [
        trial
        for trial in (*_ablations_ahead(history), *history.ranking)
        if 0.0 < history.value(trial) >= least
        and trial.plan != baseline.plan
        and not disqualified(trial.plan, history)
    ]


def _ablations_ahead(history: History) -> list[Done]:
    """Return the ablations that are better than every plan of the search, best first."""
    least = (1 + _TIE) * history.value(history.best)
    found = [trial for trial in _measured_ablations(history) if history.value(trial) > least]
    return sorted(found, key=lambda trial: -history.value(trial))


def unconfirmed_ablations_ahead(history: History) -> list[Plan]:
    """Return the plans of ablations that beat the search and were not confirmed."""
    plans = [trial.plan for trial in _ablations_ahead(history)]
    return [p for p in plans if not (confirmations(p, history) or disqualified(p, history))]


def _measured_ablations(history: History) -> list[Done]:
    ablations = history.of(Purpose.ABLATE)
    return [trial for trial in ablations if trial.is_measured and history.fits(trial)]


def _preferred_second(near: list[Done], history: History) -> list[Done]:
    """Return the finalists with the preferable one of those equal to the best in second place.

    Preferable is what leaves the training as it is, then what needs less memory. An ablation that
    is as good as the best may be it: one of the best plan's settings is worth nothing.
    """
    if not near:
        return near
    least = history.value(near[0]) / (1 + _TIE)
    sound = [t for t in _measured_ablations(history) if not disqualified(t.plan, history)]
    equal = [trial for trial in (*near[1:], *sound) if history.value(trial) >= least]
    preferred = min(equal, key=lambda trial: _preference_key(trial, history), default=near[0])
    if not _is_preferable(preferred, near[0], history):
        return near
    rest = [t for t in near[1:] if t.plan != preferred.plan]
    return [near[0], preferred, *rest]


def _is_preferable(trial: Done, other: Done, history: History) -> bool:
    changes, memory = _preference_key(trial, history)
    other_changes, other_memory = _preference_key(other, history)
    if changes != other_changes:
        return changes < other_changes
    return memory < other_memory * (1 - _SAME_MEMORY)


def _preference_key(trial: Done, history: History) -> tuple[bool, float]:
    """Return the key of a preference among equal plans: the smaller, the better."""
    return changes_training(trial.plan, history), history.figures(trial).memory_bytes or math.inf


def changes_training(plan: Plan, history: History) -> bool:
    """Whether the plan changes how many samples an optimizer step takes, or which.

    True as well for micro-batches of another size if the loss depends on which samples are in a
    batch together.
    """
    space = history.space
    same = plan["batch_size"] == space.baseline["batch_size"]
    is_kept = space.facts.global_batch_size is not None and mixed_loss(history) is None
    return not (same or is_kept) or groups_by_length(plan) != groups_by_length(space.baseline)


def mixed_loss(history: History) -> str | None:
    """Return in words that the loss depends on which samples are in a batch together, or None.

    Only trials on one device look for that.
    """
    diagnoses = (known.diagnosis for known in (history, history.scouts) if known)
    found = (finding for diagnosis in diagnoses if diagnosis for finding in diagnosis.findings)
    return next((f.what for f in found if f.kind is FindingKind.BATCH_LOSS), None)


def disqualified(plan: Plan, history: History) -> str | None:
    """Return why the plan may not win, None if nothing in its confirmation or check forbids it."""
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
    """Return the measurements of the plan in the confirmation, one for each fresh process."""
    return [
        t.result.measurement
        for t in history.of(Purpose.CONFIRM)
        if t.plan == plan and t.result.measurement is not None
    ]


def _compared(plan: Plan, history: History) -> list[Measurement]:
    """Return the plan's measurements in the confirmation, which speed-ups are computed from.

    Until the baseline has one, it is compared by its first process, which no selection by speed
    has biased.
    """
    baseline = history.baseline
    again = conclusive(t for t in history.of(Purpose.CONFIRM) if t.plan == plan)
    if again or baseline is None or plan != baseline.plan:
        return confirmations(plan, history)
    return [m for m in (baseline.result.measurement,) if m is not None]


def confirmed_figures(plan: Plan, history: History) -> Figures | None:
    """Return the plan's figures in the confirmation, None before it was measured again."""
    again = _compared(plan, history)
    if not again:
        return None
    peaks = [m.memory_bytes for m in again if m.memory_bytes is not None]
    throughput = statistics.geometric_mean(m.throughput for m in again)
    return history.figures_of(plan, throughput, max(peaks, default=None))


def confirmed(history: History, rounds: int = 1) -> list[Confirmed]:
    """Return the finalists with `rounds` confirmations or more that may win, best first."""
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
        history: the trials of the run.
        gain: relative difference below which two values count as equal.
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
    return min(near, key=lambda entry: _tie_break_key(entry, history, checks_pass=checks_pass))


def _tie_break_key(entry: Confirmed, history: History, *, checks_pass: bool) -> tuple[float, ...]:
    """Return the key by which `choose` takes the least of the plans that are equally good."""
    is_other_training = changes_training(entry.plan, history)
    is_to_come = checks_pass and next_check(entry.plan, history) is not None
    unchecked = not is_to_come and is_unchecked(entry.plan, history)
    peak = entry.figures.memory_bytes
    memory = math.log(peak) if peak else 0.0
    settings = len(changes(entry.plan, history.space.baseline))
    return (is_other_training, unchecked, round(memory / _SAME_MEMORY), settings, -entry.value)


def _confirmed(plan: Plan, baseline: Plan, history: History) -> Confirmed:
    own, theirs = confirmed_figures(plan, history), confirmed_figures(baseline, history)
    assert own is not None
    assert theirs is not None
    assert history.baseline is not None
    return Confirmed(
        plan=plan,
        figures=own,
        baseline=theirs,
        value=history.objective.value(own, theirs),
        speedup=speedup_of(plan, history.baseline, history.done),
    )


def _failed(trial: Done) -> bool:
    return trial.result.outcome.is_about_plan and trial.result.outcome is not Outcome.OK
