"""For which plans a check of the numerics speaks."""

from dataclasses import replace

from autotune.agent.conclusion.numerics import next_check
from autotune.agent.done import Done
from autotune.trials.result import Outcome, Purpose, TrialResult
from tests.agent.histories import SPACE, history
from tests.agent.world import ok, passed


def test_a_failed_check_casts_doubt_on_unchecked_plans_of_the_same_precision():
    """Only a check of its own clears a plan; a check holds for every batch and loader."""
    seen = history(({}, ok(50.0)))
    checked = [
        Done(number=n, plan=SPACE.plan(values), purpose=Purpose.NUMERICS, reason="", result=result)
        for n, (values, result) in enumerate(
            [
                (
                    {"precision": "bf16", "compile_mode": "default"},
                    TrialResult(outcome=Outcome.OK, numerics=passed(worst=0.5)),
                ),
                (
                    {"precision": "bf16", "batch_size": 64},
                    TrialResult(outcome=Outcome.OK, numerics=passed()),
                ),
            ],
            start=2,
        )
    ]
    seen = replace(seen, done=(*seen.done, *checked))
    assert seen.verdicts.is_suspect(SPACE.plan({"precision": "bf16", "optimizer_impl": "fused"}))
    assert not seen.verdicts.is_suspect(SPACE.plan({"precision": "bf16", "workers": 2}))
    assert not seen.verdicts.is_suspect(SPACE.plan({"precision": "tf32"}))
    compiled = SPACE.plan({"precision": "bf16", "compile_mode": "default", "batch_size": 32})
    assert "gradients 50.0% away from eager fp32" in seen.verdicts.failure(compiled)


def test_eager_plans_are_checked_at_the_baselines_batch():
    """A large batch makes a check long; a compiled program is another one at each batch."""
    large = {"precision": "bf16", "batch_size": 64}
    ran = ok(90.0, first_step_s=30.0)
    seen = history(({}, ok(50.0)), (large | {"compile_mode": "default"}, ran))
    eager, compiled = SPACE.plan(large), SPACE.plan(large | {"compile_mode": "default"})
    assert next_check(eager, seen).plan["batch_size"] == 16
    assert next_check(eager, seen).compare_with["batch_size"] == 16
    assert next_check(compiled, seen).plan["batch_size"] == 64


def test_a_compiled_plan_is_compiled_for_a_small_batch_where_that_is_sooner_checked():
    """Eager fp32 would take minutes for its steps at the plan's batch."""
    compiled = {"precision": "bf16", "batch_size": 64, "compile_mode": "default"}
    seen = history(({}, ok(1.0)), (compiled, ok(2.0, first_step_s=30.0)))
    assert next_check(SPACE.plan(compiled), seen).plan["batch_size"] == 16
