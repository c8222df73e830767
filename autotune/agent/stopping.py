"""The rules that end a stage of the search, with their reasons in words."""

from autotune.agent.focus import Knobs, every_knob
from autotune.agent.history import History
from autotune.agent.settings import SearchSettings
from autotune.trials.result import Purpose

NOT_TRIED = "not tried for lack of time: "
"""Begins, in the reason for which a search ended, the plans that it had no time for."""


def trials_used_up(history: History, settings: SearchSettings) -> str | None:
    """Return in words that `--trials` allows no further search trial, else None.

    Until a baseline ran, more trials than that are allowed: nothing could be concluded.
    """
    allowed = settings.max_trials
    if allowed is None or history.num_search < allowed or history.baseline is None:
        return None
    return f"the {allowed} trials of --trials were run"


def share_used_up(history: History, settings: SearchSettings) -> str | None:
    """Return in words that `--trials` allows no further one-device trial, else None."""
    if settings.max_trials is None:
        return None
    allowed = int(settings.scout_share * settings.max_trials)
    if allowed < 2:  # a baseline alone shows nothing
        return f"--trials {settings.max_trials} leaves none for them"
    if history.num_search < allowed:
        return None
    return f"their {allowed} of the {settings.max_trials} trials of --trials were run"


def gains_nothing(
    history: History, settings: SearchSettings, knobs: Knobs = every_knob
) -> str | None:
    """Return in words that a better plan is unlikely to be found, else None.

    Plans are sampled only while no change of the best ones is likely to gain anything.
    """
    enough = patience(history, settings, knobs)
    if sampled_without_gain(history, settings.gain) < enough:
        return None
    return (
        f"another {settings.gain:.0%}{history.objective.less_of} is unlikely: no affordable "
        f"change of the best plans has a chance of {settings.chance:.0%} to gain it, and the last "
        f"{enough} sampled plans did not"
    )


def nothing_promising(history: History) -> str:
    """Return in words why there is no proposal although time is left."""
    if all(plan in history.tried for plan in history.space.enumerate()):
        return "nothing was left to try"
    return "nothing else is likely to gain"


def patience(history: History, settings: SearchSettings, knobs: Knobs = every_knob) -> int:
    """Return how many sampled plans without a gain end the search; it grows with the knobs."""
    tuned = [d for d in history.space.domains if d.varies and knobs(d.knob)]
    return max(settings.patience, len(tuned))


def sampled_without_gain(history: History, gain: float) -> int:
    """Return how many sampler trials ended since the best value last grew by more than `gain`."""
    best, count = 0.0, 0
    for trial in history.search:
        value = history.value(trial) if trial.is_measured and history.fits(trial) else None
        if value is not None and value > (1 + gain) * best:
            best, count = value, 0
        elif trial.purpose is Purpose.SAMPLER and trial.result.outcome.is_about_plan:
            count += 1
    return count
