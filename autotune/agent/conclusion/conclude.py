"""The conclusion of a run: the winner, or the advice to keep the baseline."""

from dataclasses import replace

from autotune.agent.conclusion.explain import baseline_remarks, reasons, remarks
from autotune.agent.conclusion.finalists import Confirmed, choose, confirmed, disqualified
from autotune.agent.done import Done
from autotune.agent.history import History, conclusive
from autotune.agent.objectives.objective import Figures, Objective
from autotune.errors import NothingRanError
from autotune.search_space.changes import describe_changes
from autotune.search_space.plan import Plan
from autotune.storage.figures import Interval, PlanFigures
from autotune.storage.records import Winner
from autotune.trials.result import Purpose
from autotune.units import size_in_words

_WIDE_INTERVAL = 0.1  # relative half width of a speed-up's interval above which a remark warns


def conclude(history: History, gain: float) -> Winner:
    """Return the winner of a run, or its baseline, confirmed if it was measured again.

    Raises:
        NothingRanError: when not even the baseline was measured.
    """
    baseline = _baseline(history)
    winner = choose(history, gain)
    if winner is not None:
        return _confirmed_winner(winner, history)
    candidates = confirmed(history)
    if candidates:
        return _keep_after_confirmation(candidates[0], baseline, history)
    if any(_may_win(trial, baseline, history) for trial in history.ranking):
        return unconfirmed(history, _why_not_confirmed(baseline, history))
    if history.measured.keys() == {baseline.plan}:
        return _kept_baseline(baseline, history, "nothing but your own configuration was measured")
    return _kept_baseline(baseline, history, _why_kept(baseline, history))


def unconfirmed(history: History, why: str) -> Winner:
    """Return the best plan of the search as an unconfirmed winner: one process measured it.

    Raises:
        NothingRanError: when not even the baseline was measured.
    """
    baseline = _baseline(history)
    sound = [t for t in history.ranking if _may_win(t, baseline, history)]
    return _unconfirmed(sound[0] if sound else baseline, history, why)


def winner_of(plan: Plan, history: History) -> Winner:
    """Return a measured plan as the winner, confirmed if it was measured again.

    Raises:
        LookupError: when the plan was not measured.
        NothingRanError: when not even the baseline was measured.
    """
    entry = next((entry for entry in confirmed(history) if entry.plan == plan), None)
    if entry is not None:
        return _confirmed_winner(entry, history)
    trial = next((trial for trial in measured_once(history) if trial.plan == plan), None)
    if trial is None:
        raise LookupError(f"{plan} was not measured")
    return _unconfirmed(trial, history, "not confirmed: it was not measured again")


def measured_once(history: History) -> list[Done]:
    """Return the trials of search and ablation that may win, the best first."""
    ablated = history.of(Purpose.ABLATE)
    known = [t for t in ablated if t.is_measured and not history.verdicts.rule_out(t.plan)]
    fitting = [trial for trial in known if history.fits(trial)]
    return sorted((*history.ranking, *fitting), key=lambda trial: -history.value(trial))


def _unconfirmed(best: Done, history: History, why: str) -> Winner:
    baseline = _baseline(history)
    own, theirs = history.figures(best), history.figures(baseline)
    winner = Winner(
        plan=best.plan,
        kept_baseline=best is baseline,
        confirmed=False,
        speedup=None,
        own=_stored(own, history.objective),
        baseline=_stored(theirs, history.objective),
        how="one process each, in the search"
        + ("" if best is baseline else "; the fastest of many looks faster than it is"),
        changes={} if best is baseline else reasons(best.plan, history),
        remarks=(why, *remarks(best.plan, history)),
    )
    return _with_outcome(winner, own, theirs, history)


def _confirmed_winner(entry: Confirmed, history: History) -> Winner:
    baseline = _stored(entry.baseline, history.objective)
    winner = Winner(
        plan=entry.plan,
        kept_baseline=False,
        confirmed=True,
        speedup=entry.speedup.interval,
        own=_stored(entry.figures, history.objective),
        baseline=replace(baseline, throughput=_throughput_of_baseline(entry)),
        how=entry.speedup.how,
        changes=reasons(entry.plan, history),
        remarks=(
            *_uncertainty_remarks(entry, history),
            *remarks(entry.plan, history),
            *_disqualification_remarks(history),
        ),
    )
    return _with_outcome(winner, entry.figures, entry.baseline, history)


def _keep_after_confirmation(best: Confirmed, baseline: Done, history: History) -> Winner:
    """Return the baseline as the winner, with what the best confirmed plan gave instead."""
    shown = describe_changes(best.plan, baseline.plan)
    why = f"keep your baseline: the best other plan is {shown}"
    if history.verdicts.is_suspect(best.plan) and best.speedup.low > 1.0:
        why += (
            f", but another plan with precision={best.plan['precision']} failed its check of the "
            "numerics, and there was no time for this one's own; give a longer --budget"
        )
    if best.speedup.low < 1.0:
        why += "".join(f"; {words}" for words in _uncertainty_remarks(best, history))
    gives = history.objective.outcome(best.figures, best.baseline)
    kept = _kept_baseline(baseline, history, f"{why}: {gives}" if gives else why, best.baseline)
    own = replace(kept.own, throughput=_throughput_of_baseline(best))
    return replace(
        kept,
        confirmed=True,
        speedup=Interval(ratio=1.0, low=1.0, high=1.0),
        own=own,
        baseline=own,
        how=best.speedup.how,
    )


def _throughput_of_baseline(entry: Confirmed) -> float:
    """Return the baseline's throughput in the rounds that the speed-up was measured in."""
    return entry.figures.throughput / entry.speedup.ratio


def _uncertainty_remarks(entry: Confirmed, history: History) -> tuple[str, ...]:
    """Return a remark if processes of one plan differ so much that a speed-up means little."""
    if entry.speedup.half_width <= _WIDE_INTERVAL:
        return ()
    own, baseline = (_range(plan, history) for plan in (entry.plan, history.reference))
    words = (
        f"by how much is not known well: the baseline gave {baseline}, this plan {own}; "
        "try again with nothing else running, or with a longer --budget"
    )
    return (words,)


def _range(plan: Plan, history: History) -> str:
    found = [
        trial.throughput for trial in history.done if trial.plan == plan and trial.is_measured
    ]
    ends = dict.fromkeys(
        f"{x:,.0f}" if x >= 1000 else f"{x:.4g}" for x in (min(found), max(found))
    )
    processes = "one process" if len(found) == 1 else f"{len(found)} processes"
    return f"{' to '.join(ends)} samples/s in {processes}"


def _kept_baseline(
    baseline: Done, history: History, why: str, again: Figures | None = None
) -> Winner:
    """Return the baseline as the winner; `again` are its figures in the confirmation, if any."""
    figures = history.figures(baseline)
    own = replace(
        _stored(again or figures, history.objective),
        throughput=figures.throughput,
        memory_bytes=figures.memory_bytes,
    )
    winner = Winner(
        plan=baseline.plan,
        kept_baseline=True,
        confirmed=False,
        speedup=None,
        own=own,
        baseline=own,
        how="one process, in the search; no other plan stood to be confirmed",
        remarks=(why, *baseline_remarks(history), *_disqualification_remarks(history)),
    )
    return _with_outcome(winner, again or figures, again or figures, history)


def _stored(figures: Figures, objective: Objective) -> PlanFigures:
    """Return a plan's figures as the store keeps them, with times if start-up counts."""
    if not objective.weighs_start:
        return PlanFigures(throughput=figures.throughput, memory_bytes=figures.memory_bytes)
    return PlanFigures(
        throughput=figures.throughput,
        memory_bytes=figures.memory_bytes,
        train_s=objective.train_s(figures),
        start_s=figures.start_s,
    )


def _with_outcome(winner: Winner, own: Figures, baseline: Figures, history: History) -> Winner:
    """Return the winner with the objective's remark about it, if any, before its others."""
    outcome = history.objective.outcome(own, baseline)
    return replace(winner, remarks=(outcome, *winner.remarks)) if outcome else winner


def _why_not_confirmed(baseline: Done, history: History) -> str:
    again = conclusive(t for t in history.of(Purpose.CONFIRM) if t.plan == baseline.plan)
    if not again or any(trial.is_measured for trial in again):
        return (
            "not confirmed: too little time was left to measure it again; give a longer --budget"
        )
    result = again[-1].result
    return (
        "not confirmed: there is nothing to compare with, as the baseline, measured again, ended "
        f"as {result.outcome.value} ({result.error})"
    )


def _why_kept(baseline: Done, history: History) -> str:
    if not history.fits(baseline):
        needs, cap = (history.figures(baseline).memory_bytes or 0), history.memory_cap_bytes
        return (
            "no plan that fits into the memory allowed was better, and your own configuration "
            f"does not fit either: it needs {size_in_words(needs)} of {size_in_words(cap)}, which "
            "is the limit less some headroom; give more --max-memory, or set a smaller BATCH_SIZE"
        )
    sound = [trial for trial in history.fastest if not disqualified(trial.plan, history)]
    fastest = max((*sound, baseline), key=lambda trial: trial.throughput)
    return history.objective.why_kept(history.figures(fastest), history.figures(baseline))


def _disqualification_remarks(history: History) -> tuple[str, ...]:
    """Return a remark for each plan that did well in the search and may not win."""
    plans = dict.fromkeys(trial.plan for trial in history.fastest)
    found = [(plan, disqualified(plan, history)) for plan in plans]
    shown = [(describe_changes(plan, history.space.baseline), why) for plan, why in found if why]
    praise = history.objective.praise
    return tuple(f"passed over, although {praise}: {plan}: {why}" for plan, why in shown)


def _may_win(trial: Done, baseline: Done, history: History) -> bool:
    """Whether the trial's plan is clearly better than the baseline and was not disqualified."""
    value, own = history.value(trial), history.value(baseline)
    is_better = value > own and value >= history.objective.worth_confirming * own
    return is_better and not disqualified(trial.plan, history)


def _baseline(history: History) -> Done:
    if history.baseline is None:
        raise NothingRanError(
            "not even the baseline was measured in the time given; give a longer --budget"
        )
    return history.baseline
