"""When a part of the search is over, and why, in words."""

from autotune.agent.focus import Knobs, every_knob
from autotune.agent.history import History
from autotune.agent.settings import SearchSettings
from autotune.trials.result import Purpose


def trials_used_up(history: History, settings: SearchSettings) -> str | None:
    """Return that `--trials` allows no further search trial, or None.

    Without a baseline there would be no answer, so it may take more.
    """
    allowed = settings.max_trials
    if allowed is None or history.num_search < allowed or history.baseline is None:
        return None
    return f"the {allowed} trials of --trials were run"


def share_used_up(history: History, settings: SearchSettings) -> str | None:
    """Return that the scouts' share of `--trials` allows no further one of them, or None."""
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
    """Return that nothing better is likely to be found any more, or None.

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
    """Return why there is no proposal although there is time."""
    if all(plan in history.tried for plan in history.space.enumerate()):
        return "nothing was left to try"
    return "nothing else is likely to gain"


def patience(history: History, settings: SearchSettings, knobs: Knobs = every_knob) -> int:
    """Return how many sampled plans may gain nothing; more where more knobs vary."""
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
