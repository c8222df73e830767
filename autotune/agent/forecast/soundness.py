"""The probability that a plan runs, from the plans that failed for other reasons than memory."""

from autotune.agent.done import Done
from autotune.agent.forecast.durations import num_given_up
from autotune.agent.history import MAX_LOST, History
from autotune.search_space.knobs import is_compiled
from autotune.search_space.plan import Plan, Value
from autotune.trials.result import Outcome

_BLAME = 0.95  # probability that the only suspect setting of a failed plan fails again

Setting = tuple[str, Value]
"""A knob and its value."""


def chance_to_run(plan: Plan, history: History) -> float:
    """Return the probability that the plan runs without an error, 1 without evidence against it.

    The suspects of a failed plan are its settings that ran in no other plan; they share the blame.
    """
    chance = 1.0
    for trial in (t for t in history.search if _failed(t, history)):
        suspects = _settings(trial.plan, history) - _sound(history)
        shared = suspects & _settings(plan, history)
        if shared:
            chance *= 1.0 - _BLAME * len(shared) / len(suspects)
    return chance


def _sound(history: History) -> set[Setting]:
    """Return the settings of all plans that ran."""
    return {setting for plan in history.measured for setting in _settings(plan, history)}


def _settings(plan: Plan, history: History) -> set[Setting]:
    """Return the plan's settings that may make it fail, and whether it compiles as one more."""
    settings = {
        (name, value)
        for name, value in plan.items
        if value not in history.space.knob(name).cannot_fail
    }
    return settings | {("is compiled", is_compiled(plan))}


def _failed(trial: Done, history: History) -> bool:
    outcome = trial.result.outcome
    if outcome is Outcome.CANCELLED:
        return trial.was_too_slow and num_given_up(trial.plan, history) >= MAX_LOST
    return outcome.is_about_plan and outcome not in (Outcome.OK, Outcome.OOM)
