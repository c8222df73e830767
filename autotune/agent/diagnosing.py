"""Which trials are diagnosed after their measurement: few, as a diagnosis takes seconds."""

import math

from autotune.agent.conclusion.finalists import choose, finalists
from autotune.agent.history import SEARCH, History
from autotune.agent.proposal import Proposal
from autotune.search_space.knobs import is_compiled
from autotune.search_space.plan import Plan
from autotune.trials.diagnosis import DiagnosisRequest
from autotune.trials.result import Purpose

# Seconds left from which a winner is diagnosed, which took 4 to 22 s of budgets of three minutes.
_TIME_FOR_WINNER_S = 120.0
# A trial that is so many times as fast as the one that was diagnosed last is diagnosed, too.
_MUCH_FASTER = 1.5
# Largest part of the time left that the diagnosis of a search trial may take, by earlier ones.
_LARGEST_PART_OF_TIME = 0.04
# Part of the time left after which a full diagnosis begins nothing more: on a machine with two
# busy cores, that of a recurrent model took 24 s of a budget of 100 s.
_FULL_PART_OF_TIME = 0.05


def diagnosis_of(
    proposal: Proposal, history: History, gain: float, left_s: float
) -> DiagnosisRequest | None:
    """Return the diagnosis to run after a trial, None for no diagnosis.

    Each baseline is diagnosed; then each eager trial of the search on one device that is much
    faster than the last one diagnosed, as the bound moves; and in the confirmation the leading
    plan, once, if time allows.

    Args:
        proposal: the trial about to be run.
        history: the trials with as many ranks.
        gain: relative gain below which two speeds count as equal.
        left_s: seconds left of the budget.
    """
    flops = history.space.facts.flops_per_sample
    if proposal.purpose is Purpose.BASELINE or (
        proposal.purpose is Purpose.CONFIRM
        and left_s >= _TIME_FOR_WINNER_S
        and proposal.plan == _leader(history, gain)
        and proposal.plan not in _diagnosed(history)
    ):
        return DiagnosisRequest(flops_per_sample=flops, within_s=_FULL_PART_OF_TIME * left_s)
    if proposal.purpose in SEARCH and _pays(proposal, history, left_s) and history.diagnosed:
        above = _MUCH_FASTER * history.diagnosed.throughput
        return DiagnosisRequest(flops_per_sample=flops, above=above, brief=True)
    return None


def _pays(proposal: Proposal, history: History, left_s: float) -> bool:
    """Whether a search trial is short to diagnose: compilers and other ranks take long."""
    is_simple = proposal.num_ranks == 1 and not is_compiled(proposal.plan)
    took_s = max((d.took_s for t in history.search if (d := t.result.diagnosis)), default=math.inf)
    return is_simple and took_s <= _LARGEST_PART_OF_TIME * left_s


def _leader(history: History, gain: float) -> Plan | None:
    winner = choose(history, gain)
    if winner is not None:
        return winner.plan
    return next(iter(finalists(history)), None)


def _diagnosed(history: History) -> frozenset[Plan]:
    fully = history.of(Purpose.BASELINE, Purpose.CONFIRM)
    return frozenset(trial.plan for trial in fully if trial.result.diagnosis is not None)
