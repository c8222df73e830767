"""Trains the plans that the search ends with to a target, and lets the first to reach it win.

A larger batch makes more samples per second, and may learn less from each. So the fastest plan,
the baseline, and the fastest plan with the baseline's own batch are each trained once, in fresh
processes from the same seed, and compared by their training time.
"""

from dataclasses import dataclass, replace

from autotune.agent.conclusion.conclude import conclude, measured_once, winner_of
from autotune.agent.conclusion.finalists import (
    changes_training,
    confirmed,
    disqualified,
)
from autotune.agent.done import Done
from autotune.agent.history import History, conclusive
from autotune.agent.objectives.objective import Objective
from autotune.agent.objectives.time_to_quality import TimeToQuality
from autotune.agent.proposal import Proposal
from autotune.agent.settings import SearchSettings
from autotune.search_space.changes import describe_changes
from autotune.search_space.plan import Plan
from autotune.storage.figures import Interval
from autotune.storage.records import Winner
from autotune.trials.quality import QualityCurve, QualityRequest
from autotune.trials.result import Purpose

ACCOUNT = "training time until evaluate(model) returned"
"""Begins the remark on what the trainings to a target gave."""

# Of a training's share of the time, for starting its process and ending it.
_START_S = 5.0
_LEAST_S = 5.0  # of wall clock in a training's process
_NUM_EVALUATIONS = 20  # in a training that takes all of its time


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """Chooses the trainings to the target, which follow all other trials of a run."""

    settings: SearchSettings

    def next(self, history: History, left_s: float) -> Proposal | None:
        """Return the next training, None where all are done or no time is left for it.

        Args:
            history: all trials of plans that can win.
            left_s: seconds left, the share that was kept for this included.
        """
        objective = self.settings.objective
        if not isinstance(objective, TimeToQuality) or history.baseline is None:
            return None
        missing = [p for p in contestants(history, self.settings.gain) if not _ran(p, history)]
        limit_s = left_s / max(1, len(missing)) - _START_S
        if not missing or limit_s < _LEAST_S:
            return None
        return Proposal(
            plan=missing[0],
            purpose=Purpose.QUALITY,
            reason=f"how long does it train until evaluate(model) = {objective.target:g}?",
            quality=QualityRequest(
                target=objective.target,
                limit_s=limit_s,
                interval_s=limit_s / _NUM_EVALUATIONS,
                max_train_s=_time_of_others(history),
            ),
        )


def contestants(history: History, gain: float) -> list[Plan]:
    """Return the plans to train, the fastest first; none where the baseline is the fastest.

    They are the winner by speed, the best plan of the baseline's own batch where that winner
    changes what an optimizer step sees, and the baseline.
    """
    fastest, baseline = conclude(history, gain).plan, history.reference
    if fastest == baseline:
        return []
    unchanged = _best_unchanged(history) if changes_training(fastest, history) else None
    return [fastest, *([] if unchanged is None else [unchanged]), baseline]


def conclude_by_quality(history: History, settings: SearchSettings) -> Winner:
    """Return the winner of a run: by speed, and where there is a target, by the time to reach it.

    Raises:
        NothingRanError: when not even the baseline was measured.
    """
    fastest, objective = conclude(history, settings.gain), settings.objective
    plans = contestants(history, settings.gain) if _has_target(objective) else []
    if not plans:
        return fastest
    curves = {plan: curve for plan in plans if (curve := _curve(plan, history)) is not None}
    chosen = _first(plans, curves)
    if chosen == fastest.plan:
        winner = fastest
    elif chosen == history.reference:
        winner = _kept(fastest, chosen)
    else:
        winner = winner_of(chosen, history)
    baseline_s = _reached_s(history.reference, curves)
    return replace(
        winner,
        own=replace(winner.own, train_s=_reached_s(chosen, curves)),
        baseline=replace(winner.baseline, train_s=baseline_s),
        remarks=(_account(plans, curves, history, settings), *winner.remarks),
    )


def _has_target(objective: Objective) -> bool:
    return isinstance(objective, TimeToQuality)


def _best_unchanged(history: History) -> Plan | None:
    """Return the best plan beside the baseline that leaves the batch as the user has it."""
    again = [entry.plan for entry in confirmed(history)]
    once = [trial.plan for trial in measured_once(history)]
    found = (
        plan
        for plan in (*again, *once)
        if plan != history.reference
        and not changes_training(plan, history)
        and not disqualified(plan, history)
    )
    return next(found, None)


def _ran(plan: Plan, history: History) -> bool:
    return bool(conclusive(_trainings(plan, history)))


def _trainings(plan: Plan, history: History) -> list[Done]:
    return [trial for trial in history.of(Purpose.QUALITY) if trial.plan == plan]


def _curve(plan: Plan, history: History) -> QualityCurve | None:
    curves = (trial.result.quality for trial in _trainings(plan, history))
    return next((curve for curve in curves if curve is not None), None)


def _time_of_others(history: History) -> float | None:
    """Return the shortest training so far that did not reach the target, None without one.

    A plan that trained for longer could not be compared with it.
    """
    curves = (trial.result.quality for trial in history.of(Purpose.QUALITY))
    short = (curve.train_s for curve in curves if curve is not None and curve.reached_s is None)
    return min(short, default=None)


def _reached_s(plan: Plan, curves: dict[Plan, QualityCurve]) -> float | None:
    return curves[plan].reached_s if plan in curves else None


def _first(plans: list[Plan], curves: dict[Plan, QualityCurve]) -> Plan:
    """Return the plan that reached the target first.

    Where none did, it is the one with the best quality in the time that all trained for; where
    none was trained, the first.
    """
    reached = [plan for plan in plans if _reached_s(plan, curves) is not None]
    if reached:
        return min(reached, key=lambda plan: _reached_s(plan, curves) or 0.0)
    trained = [plan for plan in plans if plan in curves]
    common_s = min((curves[plan].train_s for plan in trained), default=0.0)
    return max(trained, key=lambda plan: curves[plan].best_within(common_s), default=plans[0])


def _kept(fastest: Winner, baseline: Plan) -> Winner:
    """Return the baseline as the winner, with its figures beside the fastest plan."""
    return replace(
        fastest,
        plan=baseline,
        kept_baseline=True,
        speedup=Interval(ratio=1.0, low=1.0, high=1.0) if fastest.confirmed else None,
        own=fastest.baseline,
        changes={},
        remarks=(),
    )


def _account(
    plans: list[Plan],
    curves: dict[Plan, QualityCurve],
    history: History,
    settings: SearchSettings,
) -> str:
    """Return what each training gave, and how that was obtained, in one sentence."""
    words = "; ".join(
        f"{_name(plan, history)}: {_outcome(plan, curves, history)}" for plan in plans
    )
    target = settings.objective.options()["target"]
    return (
        f"{ACCOUNT} {target:g} or more, without compilation and evaluation, one training each "
        f"with seed {settings.seed}: {words}"
    )


def _name(plan: Plan, history: History) -> str:
    if plan == history.reference:
        return "your baseline"
    return describe_changes(plan, history.reference)


def _outcome(plan: Plan, curves: dict[Plan, QualityCurve], history: History) -> str:
    """Return `12.3 s`, `not reached: 0.81 after 40.0 s`, or why there was no training."""
    if plan in curves:
        curve = curves[plan]
        if curve.reached_s is not None:
            return f"{curve.reached_s:.1f} s"
        last = curve.points[-1]
        return f"not reached: {last.value:.4g} after {last.train_s:.1f} s"
    failed = _trainings(plan, history)
    if failed:
        result = failed[-1].result
        return f"not trained, as it ended as {result.outcome.value} ({result.error})"
    return "not trained for lack of time; give a longer --budget"
