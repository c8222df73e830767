"""Histories written down by hand, and what is proposed from them."""

from dataclasses import replace

from autotune.agent.done import Done
from autotune.agent.history import History
from autotune.agent.proposers.gate import TimeLeft
from autotune.agent.proposers.promising import Promising
from autotune.search_space.space import build_space
from autotune.trials.result import Outcome, Purpose, TrialResult
from tests.agent.world import GIB, GPT, GPU

SPACE = build_space(GPT, GPU)
PLENTY = TimeLeft(search_s=1e6, total_s=1e6)
OOM = TrialResult(outcome=Outcome.OOM, error="out of memory", total_s=5.0)
CRASH = TrialResult(outcome=Outcome.CRASH, error="died", total_s=5.0)


def history(*trials, space=SPACE, pending=()):
    """Return a history of `(changes, result)` or `(changes, result, purpose)`, baseline first."""
    usual = [Purpose.BASELINE] + [Purpose.PRESET] * len(trials)
    done = tuple(
        Done(
            number=number,
            plan=space.plan(changes),
            purpose=purpose[0] if purpose else usual[number - 1],
            reason="",
            result=result,
        )
        for number, (changes, result, *purpose) in enumerate(trials, 1)
    )
    return History(
        space=space, memory_cap_bytes=133 * GIB, done=done, pending=tuple(map(space.plan, pending))
    )


def history_for(objective, *trials):
    """Return such a history of a run that looks for `objective`."""
    return replace(history(*trials), objective=objective)


def ablated(seen, *flipped):
    """Return the history after plans of these values were run for what a setting is worth."""
    trials = tuple(
        Done(number=n, plan=SPACE.plan(values), purpose=Purpose.ABLATE, reason="", result=result)
        for n, (values, result) in enumerate(flipped, len(seen.done) + 1)
    )
    return replace(seen, done=seen.done + trials)


def changes(proposals):
    return [{k: v for k, (v, _) in p.plan.diff(SPACE.baseline).items()} for p in proposals]


def proposals(seen, hardware=GPU, chance=0.1):
    return list(Promising(hardware=hardware, gain=0.01, chance=chance).candidates(seen))
