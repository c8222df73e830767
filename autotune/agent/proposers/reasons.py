"""Why a setting may make a plan better, in words for the user."""

from collections.abc import Iterable

from autotune.agent.done import Done
from autotune.agent.forecast.loading import wait_share, waits_for_data
from autotune.agent.history import History
from autotune.search_space.knobs import Knob
from autotune.search_space.plan import Value
from autotune.trials.result import Purpose

Change = tuple[Knob, Value, Value | None]
"""A knob, its new value, and the value that it replaces; None: the knob did not apply before."""


def why_better(change: Change, trial: Done, history: History) -> str:
    """Return why a change to the trial's plan may make it better by the run's objective."""
    knob, value, instead_of = change
    saved = knob.memory.why(value, instead_of) if history.objective.weighs_memory else None
    return saved or why_faster(change, trial)


def why_faster(change: Change, trial: Done) -> str:
    """Return why a change to the trial's plan may speed it up."""
    knob, value, instead_of = change
    is_less = instead_of is not None and knob.any_count and int(value) < int(instead_of)
    if knob.needs_data_wait and waits_for_data(trial) and not is_less:
        return f"the loop waits {wait_share(trial):.0%} of the time for data"
    return knob.reasons.why(value, instead_of)


def bound_acted_on(changes: Iterable[Change], history: History) -> str | None:
    """Return in words what limits the step, if any of the changes acts on that."""
    diagnosed = history.diagnosed
    found = diagnosed.result.diagnosis if diagnosed else None
    if diagnosed is None or found is None or found.bound is None:
        return None
    if not any(
        found.bound in knob.acts_on and not knob.reasons.goes_back(value, instead_of)
        for knob, value, instead_of in changes
    ):
        return None
    share = found.causes.get(found.bound)
    of_step = "" if share is None else f" ({share:.0%} of its step)"
    is_baseline = diagnosed.purpose is Purpose.BASELINE
    which = "the baseline" if is_baseline else f"trial {diagnosed.number}"
    return f"{which} is bound by {found.bound.words}{of_step}"
