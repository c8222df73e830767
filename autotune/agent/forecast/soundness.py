"""Whether a plan will run at all, going by those that did not for other reasons than memory."""

from autotune.agent.done import Done
from autotune.agent.forecast.durations import num_given_up
from autotune.agent.history import MAX_LOST, History
from autotune.search_space.knobs import is_compiled
from autotune.search_space.plan import Plan, Value
from autotune.trials.result import Outcome

_BLAME = 0.95  # of one setting that no plan ever ran with, alone in a plan that failed

Setting = tuple[str, Value]


def chance_to_run(plan: Plan, history: History) -> float:
    """Return the probability that the plan runs, 1 where nothing speaks against it.

    Settings that ran in another plan are not to blame for a failure; the others share the blame.
    """
    chance = 1.0
    for trial in (t for t in history.search if _failed(t, history)):
        suspects = _settings(trial.plan, history) - _sound(history)
        shared = suspects & _settings(plan, history)
        if shared:
            chance *= 1.0 - _BLAME * len(shared) / len(suspects)
    return chance


def _sound(history: History) -> set[Setting]:
    """Return the settings that some plan ran with."""
    return {setting for plan in history.measured for setting in _settings(plan, history)}


def _settings(plan: Plan, history: History) -> set[Setting]:
    """Return the plan's settings that may fail; that it compiles at all is one of them."""
    settings = (item for item in plan.items if history.space.knob(item[0]).can_fail)
    return {*settings, ("is compiled", is_compiled(plan))}


def _failed(trial: Done, history: History) -> bool:
    outcome = trial.result.outcome
    if outcome is Outcome.CANCELLED:
        return trial.was_too_slow and num_given_up(trial.plan, history) >= MAX_LOST
    return outcome.is_about_plan and outcome not in (Outcome.OK, Outcome.OOM)
