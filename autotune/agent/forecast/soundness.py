"""Whether a plan will run at all, going by those that did not for other reasons than memory."""

from autotune.agent.history import Done, History
from autotune.search_space.plan import Plan, Value
from autotune.trials.result import Outcome

_BLAME = 0.95  # of one setting that no plan ever ran with, alone in a plan that failed

Setting = tuple[str, Value]


def chance_to_run(plan: Plan, history: History) -> float:
    """Return the probability that the plan runs, 1 where nothing speaks against it.

    Settings that ran in another plan are not to blame for a failure; the others share the blame.
    """
    chance = 1.0
    for trial in (t for t in history.search if _failed(t)):
        suspects = set(trial.plan.items) - _sound(history)
        shared = suspects.intersection(plan.items)
        if shared:
            chance *= 1.0 - _BLAME * len(shared) / len(suspects)
    return chance


def _sound(history: History) -> set[Setting]:
    """Return the settings that some plan ran with."""
    return {setting for plan in history.measured for setting in plan.items}


def _failed(trial: Done) -> bool:
    outcome = trial.result.outcome
    return outcome.is_about_plan and outcome not in (Outcome.OK, Outcome.OOM)
