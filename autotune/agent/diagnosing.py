"""Which trials are diagnosed after their measurement: few, as a diagnosis takes seconds."""

from autotune.agent.conclusion.finalists import choose, finalists
from autotune.agent.history import History
from autotune.agent.proposal import Proposal
from autotune.search_space.plan import Plan
from autotune.trials.diagnosis import DiagnosisRequest
from autotune.trials.result import Purpose

# Seconds left from which a winner is diagnosed, which took 4 to 22 s of budgets of three minutes.
_TIME_FOR_WINNER_S = 120.0


def diagnosis_of(
    proposal: Proposal, history: History, gain: float, left_s: float
) -> DiagnosisRequest | None:
    """Return the diagnosis to run after a trial, None for no diagnosis.

    Each baseline is diagnosed, and in the confirmation the leading plan, once, if time allows.

    Args:
        proposal: the trial about to be run.
        history: the trials with as many ranks.
        gain: relative gain below which two speeds count as equal.
        left_s: seconds left of the budget.
    """
    wanted = proposal.purpose is Purpose.BASELINE or (
        proposal.purpose is Purpose.CONFIRM
        and left_s >= _TIME_FOR_WINNER_S
        and proposal.plan == _leader(history, gain)
        and proposal.plan not in _diagnosed(history)
    )
    facts = history.space.facts
    return DiagnosisRequest(flops_per_sample=facts.flops_per_sample) if wanted else None


def _leader(history: History, gain: float) -> Plan | None:
    winner = choose(history, gain)
    if winner is not None:
        return winner.plan
    return next(iter(finalists(history)), None)


def _diagnosed(history: History) -> frozenset[Plan]:
    return frozenset(trial.plan for trial in history.done if trial.result.diagnosis is not None)
