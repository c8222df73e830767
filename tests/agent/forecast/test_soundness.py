"""How likely a plan is to run at all, after others failed."""

import pytest

from autotune.agent.forecast.soundness import chance_to_run
from autotune.trials.result import Outcome, TrialResult
from tests.agent.histories import SPACE, history
from tests.agent.world import ok


@pytest.mark.parametrize("outcome", [Outcome.CRASH, Outcome.COMPILE_ERROR, Outcome.TIMEOUT])
def test_a_setting_that_never_ran_is_blamed_for_a_failure(outcome):
    """bf16 ran elsewhere, so compiling is to blame: this mode or this scope, or all of it."""
    failed = TrialResult(outcome=outcome, error="it failed", total_s=5.0)
    both = {"precision": "bf16", "compile_mode": "default"}
    seen = history(({}, ok(50.0)), ({"precision": "bf16"}, ok(90.0)), (both, failed))
    blocks = {"compile_mode": "reduce-overhead", "compile_scope": "block"}
    plans = [{"precision": "bf16", "workers": 1}, {"compile_mode": "default"}, blocks]
    chances = [chance_to_run(SPACE.plan(plan), seen) for plan in plans]
    assert chances == pytest.approx([1.0, 1 - 0.95, 1 - 0.95 / 3])
    half = {"compile_mode": "default", "compile_scope": "block"}
    assert chance_to_run(SPACE.plan(half), seen) == pytest.approx(1 - 0.95 * 2 / 3)
