"""What is not known of a trial is not taken for zero."""

import pytest

from autotune.agent.done import Done
from autotune.agent.forecast.durations import check_s, expected_s
from autotune.agent.history import History
from autotune.search_space.space import build_space
from autotune.trials.result import Outcome, Purpose, TrialResult
from tests.agent.world import GIB, GPT, GPU, ok, passed

SPACE = build_space(GPT, GPU)
CRASH = TrialResult(outcome=Outcome.CRASH, error="died")


def done(number, result, purpose=Purpose.PRESET):
    plan = SPACE.baseline
    return Done(number=number, plan=plan, purpose=purpose, reason="", result=result)


def history(*trials):
    first = done(1, ok(50.0), Purpose.BASELINE)
    return History(space=SPACE, memory_cap_bytes=133 * GIB, done=(first, *trials))


def test_a_trial_that_failed_has_no_throughput():
    """Asking for it is an error, so no slow plan is made of one that did not run."""
    assert not done(7, CRASH).is_measured
    with pytest.raises(LookupError, match="trial 7 has no throughput: nothing was measured"):
        _ = done(7, CRASH).throughput


def test_a_trial_of_unknown_length_says_nothing_about_time():
    """Trials and checks are expected to take as long as without it."""
    check = TrialResult(outcome=Outcome.OK, numerics=passed())
    known, more = history(), history(done(2, CRASH), done(3, check, Purpose.NUMERICS))
    for length_s in (expected_s, check_s):
        assert length_s(SPACE.baseline, more, GPU) == length_s(SPACE.baseline, known, GPU) > 0.0
