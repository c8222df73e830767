"""One result from those of all ranks."""

import pytest

from autotune.trials.merge import merge
from autotune.trials.result import Outcome, TrialResult


def ended(outcome, *, peer_lost=False):
    return TrialResult(outcome=outcome, error=f"it was {outcome.value}", peer_lost=peer_lost)


OK = TrialResult(outcome=Outcome.OK)
LOST = ended(Outcome.CRASH, peer_lost=True)
CASES = {
    "out_of_memory": ([LOST, ended(Outcome.OOM)], 1),
    "crash": ([LOST, LOST, ended(Outcome.CRASH)], 2),
    "first_of_equals": ([ended(Outcome.CRASH), ended(Outcome.CRASH)], 0),
    "memory_before_what_it_broke": ([ended(Outcome.CRASH), ended(Outcome.OOM)], 1),
    "raise_before_waiting_for_it": ([ended(Outcome.TIMEOUT), ended(Outcome.CRASH)], 1),
    "hang_before_its_victims": ([LOST, ended(Outcome.TIMEOUT)], 1),
    "stopped_by_us": ([ended(Outcome.CANCELLED), ended(Outcome.DIVERGED)], 1),
    "lost_node": ([LOST, ended(Outcome.INFRA)], 1),
    "one_failed": ([OK, ended(Outcome.CRASH)], 1),
    "only_victims": ([LOST, LOST], 0),
}


@pytest.mark.parametrize("case", CASES)
def test_the_failure_that_caused_the_others_is_the_trials(case):
    """And its rank is named."""
    results, rank = CASES[case]
    merged = merge(results)
    assert merged.outcome is results[rank].outcome
    # The loss is the mean over all ranks, whichever of them has none.
    name = "" if merged.outcome is Outcome.DIVERGED else f"rank {rank}: "
    assert merged.error == f"{name}{results[rank].error}"


def test_a_trial_that_went_well_is_rank_zeros():
    """Its measurement is of all ranks."""
    first = TrialResult(outcome=Outcome.OK, log_tail="of rank 0")
    assert merge([first, OK]) is first


def test_one_rank_is_not_named():
    """There is no other."""
    assert merge([LOST]) is LOST
