"""Whether a plan will run at all, going by those that did not for other reasons than memory."""

from autotune.agent.forecast.durations import num_given_up
from autotune.agent.history import MAX_LOST, Done, History
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
        suspects = _settings(trial.plan) - _sound(history)
        shared = suspects & _settings(plan)
        if shared:
            chance *= 1.0 - _BLAME * len(shared) / len(suspects)
    return chance


def _sound(history: History) -> set[Setting]:
    """Return the settings that some plan ran with."""
    return {setting for plan in history.measured for setting in _settings(plan)}


def _settings(plan: Plan) -> set[Setting]:
    """Return the plan's settings; that it compiles at all is one, whatever the mode.

    Padding is none: nothing that compiles fails for it.
    """
    settings = (item for item in plan.items if item[0] != "shape_padding")
    return {*settings, ("is compiled", is_compiled(plan))}


def _failed(trial: Done, history: History) -> bool:
    outcome = trial.result.outcome
    if outcome is Outcome.CANCELLED:
        return trial.was_too_slow and num_given_up(trial.plan, history) >= MAX_LOST
    return outcome.is_about_plan and outcome not in (Outcome.OK, Outcome.OOM)
