"""The verdict on a run: whether its winner is faster for sure, by how much, and why not."""

import enum
import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from autotune.agent.conclusion.speedup import speedup_of
from autotune.agent.done import Done, done_from_records
from autotune.agent.objectives.objective import ObjectiveName
from autotune.agent.settings import SearchSettings
from autotune.agent.verdicts import Verdicts
from autotune.search_space.hardware import Hardware
from autotune.search_space.plan import Plan
from autotune.storage.figures import Interval
from autotune.storage.records import RunRecord, TrialRecord, Winner
from autotune.trials.result import Outcome, Purpose

MOST_SPREAD = 10.0
"""The ratio of an interval's ends above which a speed-up or an effect counts as not known."""

# An interval that holds 1 and reaches this far does not say that there is no gain.
_MAY_GAIN = 1.1
# From this ratio on, a trial was faster than another by more than processes usually differ.
_CLEARLY_FASTER = 1.03


class Word(enum.StrEnum):
    """A verdict in one word.

    `CONFIRMED`: better in fresh processes, by more than noise. `UNCERTAIN`: it may be better, and
    more time is needed to know. `NO GAIN`: nothing is better than the baseline. `REJECTED`: what
    was better may not win, see `Reason`.
    """

    CONFIRMED = "CONFIRMED"
    UNCERTAIN = "UNCERTAIN"
    NO_GAIN = "NO GAIN"
    REJECTED = "REJECTED"


class Reason(enum.StrEnum):
    """Why a plan that was measured may not win."""

    NUMERICS = "numerics"
    MEMORY = "memory"
    FAILED_AGAIN = "failed again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Disqualified:
    """A plan that may not win, however fast it is.

    Attributes:
        plan: the plan.
        trials: the numbers of the trials that measured it.
        throughput: the most samples per second of these; None where none was measured.
        reason: why in one word.
        why: the same in a sentence.
    """

    plan: Plan
    trials: tuple[int, ...]
    throughput: float | None
    reason: Reason
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A trial with its samples per second."""

    trial: int
    throughput: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The verdict on a run that ended.

    Attributes:
        word: see `Word`.
        reason: why the best plan was rejected; None for other words.
        speedup: of the winner over the baseline; where the baseline is kept, of the best other
            plan. None where no other plan was measured, or where not speed decides that a
            baseline is kept.
        low, high: its 95 % interval; None where it is not known: one process each was measured, or
            the interval is wider than tenfold.
        memory: the winner's peak over the baseline's; None where it is unknown, or the baseline is
            kept.
        train: the same of the time to train, where that is the objective, or of the training time
            to a target.
        reached_s: seconds of training in which the advised plan reached the target; None where
            there is none, or it was not reached.
        objective: what the run optimised.
        kept_baseline: the advice is to keep the user's own configuration.
        plan: the plan whose speed-up this is; None where no other plan was measured.
        rests_on: how the numbers were measured, in words.
        disqualified: plans that were faster than the baseline and may not win, fastest first.
        not_confirmed: the fastest trial that was faster than the winner and was not measured
            again; None where there is none, or another objective decides.
    """

    word: Word
    reason: Reason | None
    speedup: float | None
    low: float | None
    high: float | None
    memory: float | None
    train: float | None
    reached_s: float | None
    objective: ObjectiveName
    kept_baseline: bool
    plan: Plan | None
    rests_on: str
    disqualified: tuple[Disqualified, ...] = ()
    not_confirmed: Measured | None = None


def verdict_of(run: RunRecord, trials: Sequence[TrialRecord]) -> Verdict | None:
    """Return the verdict on a run, None while it has no winner.

    Args:
        run: with its winner.
        trials: all of its trials.
    """
    if run.winner is None:
        return None
    done = _comparable(run, trials)
    baseline = _baseline_trial(done)
    out = _faster(disqualified(run, trials), baseline)
    if run.winner.kept_baseline:
        return _on_baseline(run, run.winner, done, baseline, out)
    return _on_winner(run, run.winner, done, out)


def disqualified(run: RunRecord, trials: Sequence[TrialRecord]) -> tuple[Disqualified, ...]:
    """Return the measured plans that may not win, fastest first; the run may still go on."""
    done = _comparable(run, trials)
    own_knobs = run.new.facts.get("user_knobs", ())
    checks = [trial for trial in done if trial.purpose is Purpose.NUMERICS]
    verdicts = Verdicts(checks, run.new.baseline, frozenset(own_knobs))
    cap_bytes, by_plan = _memory_cap_bytes(run), defaultdict(list)
    for trial in done:
        by_plan[trial.plan].append(trial)
    found = []
    for plan, own in by_plan.items():
        is_measured = any(trial.is_measured for trial in own)
        why = _why_out(own, verdicts, cap_bytes) if is_measured else None
        if why is not None and plan != run.new.baseline:
            found.append(_disqualified(plan, own, *why))
    return tuple(sorted(found, key=lambda out: -(out.throughput or 0.0)))


def _disqualified(plan: Plan, own: Sequence[Done], reason: Reason, why: str) -> Disqualified:
    measured = [trial for trial in own if trial.is_measured]
    return Disqualified(
        plan=plan,
        trials=tuple(trial.number for trial in measured),
        throughput=max((trial.throughput for trial in measured), default=None),
        reason=reason,
        why=why,
    )


def _why_out(
    own: Sequence[Done], verdicts: Verdicts, memory_cap_bytes: float
) -> tuple[Reason, str] | None:
    """Return why a plan may not win, given its trials, or None."""
    plan = own[0].plan
    if (failure := verdicts.failure(plan)) is not None:
        return Reason.NUMERICS, failure
    if verdicts.is_suspect(plan):
        precision = f"precision={plan['precision']}"
        return Reason.NUMERICS, f"another plan with {precision} failed its check of the numerics"
    for trial in own:
        measured = trial.result.measurement
        if measured and (measured.memory_bytes or 0) > memory_cap_bytes:
            return Reason.MEMORY, "it leaves too little memory free"
        if trial.purpose is Purpose.CONFIRM and trial.result.outcome is Outcome.OOM:
            return Reason.MEMORY, f"out of memory when it ran again ({trial.result.error})"
        failed = trial.result.outcome.is_about_plan and trial.result.outcome is not Outcome.OK
        if trial.purpose is Purpose.CONFIRM and failed:
            outcome = trial.result.outcome.value
            return Reason.FAILED_AGAIN, f"{outcome} when it ran again ({trial.result.error})"
    return None


def _memory_cap_bytes(run: RunRecord) -> float:
    """Return the peak above which a plan may not win; infinite where the machine is unknown."""
    if "device_memory_bytes" not in run.new.hardware:
        return math.inf
    settings = SearchSettings(
        budget_s=run.new.budget_s, max_memory_bytes=run.new.options.get("max_memory")
    )
    return settings.memory_cap_bytes(Hardware.from_dict(run.new.hardware))


def _comparable(run: RunRecord, trials: Sequence[TrialRecord]) -> list[Done]:
    """Return the finished trials on as many ranks as a winner has."""
    done = done_from_records(list(trials))
    return [trial for trial in done if trial.num_ranks == run.new.num_ranks]


def _baseline_trial(done: Sequence[Done]) -> Done | None:
    ran = (t for t in done if t.purpose is Purpose.BASELINE and t.is_measured)
    return next(ran, None)


def _faster(found: Sequence[Disqualified], baseline: Done | None) -> tuple[Disqualified, ...]:
    """Return the disqualified plans that were faster than the baseline."""
    least = baseline.throughput if baseline else 0.0
    return tuple(out for out in found if (out.throughput or 0.0) > least)


def _on_winner(
    run: RunRecord, winner: Winner, done: Sequence[Done], out: tuple[Disqualified, ...]
) -> Verdict:
    speedup = winner.speedup or _ratio(winner)
    low, high = _known_interval(speedup)
    # A plan that is to need less memory may be slower.
    is_for_speed = _objective(run) is not ObjectiveName.MEMORY
    is_sure = winner.confirmed and low is not None and (low > 1.0 or not is_for_speed)
    is_sure = is_sure and (not _has_target(run) or _is_first(winner))
    return Verdict(
        word=Word.CONFIRMED if is_sure else Word.UNCERTAIN,
        reason=None,
        speedup=speedup.ratio if speedup else None,
        low=low,
        high=high,
        memory=_over(winner.own.memory_bytes, winner.baseline.memory_bytes),
        train=_over(winner.own.train_s, winner.baseline.train_s),
        reached_s=winner.own.train_s if _has_target(run) else None,
        objective=_objective(run),
        kept_baseline=False,
        plan=winner.plan,
        rests_on=winner.how.rstrip("."),
        disqualified=out,
        not_confirmed=_faster_but_not_confirmed(run, winner, done, out),
    )


def _faster_but_not_confirmed(
    run: RunRecord, winner: Winner, done: Sequence[Done], out: Sequence[Disqualified]
) -> Measured | None:
    """Return the fastest trial that the winner was not compared with, if it was faster."""
    if _objective(run) is not ObjectiveName.THROUGHPUT or not winner.own.throughput:
        return None
    again = {trial.plan for trial in done if trial.purpose is Purpose.CONFIRM}
    never = again | {winner.plan} | {other.plan for other in out}
    found = [trial for trial in done if trial.is_measured and trial.plan not in never]
    fastest = max(found, key=lambda trial: trial.throughput, default=None)
    if fastest is None or fastest.throughput < _CLEARLY_FASTER * winner.own.throughput:
        return None
    return Measured(trial=fastest.number, throughput=fastest.throughput)


def _on_baseline(
    run: RunRecord,
    winner: Winner,
    done: Sequence[Done],
    baseline: Done | None,
    out: tuple[Disqualified, ...],
) -> Verdict:
    """Return the verdict where the baseline is kept: on the best plan that was tried instead."""
    best = _best_other(done, baseline, {other.plan for other in out})
    word = _word_for_kept(best, run)
    if out and (best is None or word is not Word.UNCERTAIN):
        word = Word.REJECTED
        if baseline is not None:
            best = _Other(
                out[0].plan, Interval(ratio=(out[0].throughput or 0) / baseline.throughput)
            )
    is_for_speed = _objective(run) is ObjectiveName.THROUGHPUT
    shown = best.speedup if best and (is_for_speed or word is Word.REJECTED) else None
    low, high = _known_interval(shown)
    return Verdict(
        word=word,
        reason=out[0].reason if word is Word.REJECTED else None,
        speedup=shown.ratio if shown else None,
        low=low,
        high=high,
        memory=None,
        train=None,
        reached_s=winner.own.train_s if _has_target(run) else None,
        objective=_objective(run),
        kept_baseline=True,
        plan=best.plan if best else None,
        rests_on=winner.how.rstrip("."),
        disqualified=out,
    )


@dataclass(frozen=True, slots=True)
class _Other:
    """The best plan beside a baseline that is kept, with its speed-up."""

    plan: Plan
    speedup: Interval


def _word_for_kept(best: _Other | None, run: RunRecord) -> Word:
    if best is None:
        return Word.UNCERTAIN
    # By other objectives a plan that is faster for sure may be no gain.
    if _objective(run) is not ObjectiveName.THROUGHPUT:
        return Word.NO_GAIN
    low, high = best.speedup.low, best.speedup.high
    if low is None or high is None:
        return Word.NO_GAIN
    return Word.UNCERTAIN if low < 1.0 and high > _MAY_GAIN else Word.NO_GAIN


def _best_other(
    done: Sequence[Done], baseline: Done | None, out: Collection[Plan]
) -> _Other | None:
    """Return the best plan that may win: of those confirmed, else of those measured once."""
    if baseline is None:
        return None
    others = [t for t in done if t.is_measured and t.plan != baseline.plan and t.plan not in out]
    again = [trial for trial in others if trial.purpose is Purpose.CONFIRM]
    if not again:
        once = max(others, key=lambda trial: trial.throughput, default=None)
        if once is None:
            return None
        return _Other(once.plan, Interval(ratio=once.throughput / baseline.throughput))
    plans = dict.fromkeys(trial.plan for trial in again)
    found = [_Other(plan, speedup_of(plan, baseline, done).interval) for plan in plans]
    return max(found, key=lambda other: other.speedup.ratio)


def _objective(run: RunRecord) -> ObjectiveName:
    return ObjectiveName(run.new.objective["name"])


def _has_target(run: RunRecord) -> bool:
    return _objective(run) is ObjectiveName.TIME_TO_QUALITY


def _is_first(winner: Winner) -> bool:
    """Whether a winner reached the target, and the baseline did not or needed longer."""
    own, baseline = winner.own.train_s, winner.baseline.train_s
    return own is not None and (baseline is None or own < baseline)


def _over(own: float | None, baseline: float | None) -> float | None:
    """Return the ratio of two figures, None where one is unknown."""
    return own / baseline if own and baseline else None


def _ratio(winner: Winner) -> Interval | None:
    """Return the ratio of the throughputs of a winner that was not confirmed."""
    own, theirs = winner.own.throughput, winner.baseline.throughput
    return Interval(ratio=own / theirs) if own and theirs else None


def _known_interval(speedup: Interval | None) -> tuple[float | None, float | None]:
    """Return the ends of the interval, None for both if it is not known."""
    if speedup is None or speedup.low is None or speedup.high is None:
        return None, None
    is_known = speedup.low > 0 and speedup.high <= MOST_SPREAD * speedup.low
    return (speedup.low, speedup.high) if is_known else (None, None)
