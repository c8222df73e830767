"""How long a trial, a compilation and a check are expected to take."""

from dataclasses import replace

import pytest

from autotune.agent.forecast.durations import (
    check_s,
    expected_first_step_s,
    expected_s,
    uncached_s,
)
from autotune.agent.history import Done
from autotune.search_space.space import build_space
from autotune.trials.result import Outcome, Purpose, TrialResult
from tests.agent.histories import SPACE, history
from tests.agent.world import CPU, GPT, GPU, ok, passed


def test_durations_are_learnt():
    """First steps come from what was measured of the mode, else scaled from `default`'s."""
    seen = history(
        ({}, ok(50.0, total_s=8.0)),
        ({"compile_mode": "default"}, ok(60.0, first_step_s=30.0, total_s=37.0)),
    )
    default = SPACE.plan({"compile_mode": "default", "precision": "bf16"})
    graphs = SPACE.plan({"compile_mode": "reduce-overhead"})
    assert expected_first_step_s(default, seen, GPU) == 30.0
    assert expected_s(default, seen, GPU) == 37.0
    assert expected_first_step_s(graphs, seen, GPU) == 40.0


def test_another_bucket_is_another_program():
    """The compiler splits the graph where DDP's buckets end."""
    space = build_space(GPT, replace(GPU, num_devices=2), num_ranks=2)
    compiled = ({"compile_mode": "default"}, ok(60.0, first_step_s=30.0))
    seen = history(({}, ok(50.0)), compiled, space=space)
    loaded, bucket = (
        space.plan({"compile_mode": "default", **more})
        for more in ({"workers": 1}, {"bucket_mb": 5})
    )
    assert expected_first_step_s(loaded, seen, GPU) == 15.0
    assert expected_first_step_s(bucket, seen, GPU) == 30.0


@pytest.mark.parametrize(("hardware", "same"), [(GPU, True), (CPU, False)])
def test_what_was_compiled_starts_sooner(hardware, same):
    """At least half of it is in the compiler's cache; a second process shows how much."""
    space = build_space(GPT, hardware)
    slow = ok(60.0, first_step_s=30.0, total_s=36.0)
    own, compiled = ({}, ok(50.0)), ({"compile_mode": "default"}, slow)
    again = ({"compile_mode": "default", "workers": 1}, ok(60.0, first_step_s=2.0, total_s=8.0))
    neighbour, other, threads = (
        space.plan({"compile_mode": "default", **more})
        for more in ({"workers": 2}, {"batch_size": 32}, {"threads": 1})
    )

    def expected(*trials):
        seen = history(own, *trials, space=space)
        return [expected_first_step_s(p, seen, hardware) for p in (neighbour, other, threads)]

    seen = history(own, compiled, again, space=space)
    assert expected_s(neighbour, seen, hardware) == 8.0
    assert uncached_s(neighbour, seen, hardware) == 36.0
    assert expected(compiled) == [15.0, 30.0, 15.0 if same else 30.0]
    assert expected(compiled, again) == [2.0, 30.0, 2.0 if same else 30.0]


def test_a_check_is_expected_to_take_as_long_as_one_that_ran():
    """For a larger batch in proportion; where nothing was checked alike, as long as a trial."""
    seen = history(({}, ok(50.0, total_s=8.0)))
    report = TrialResult(outcome=Outcome.OK, numerics=passed(), total_s=2.0)
    plan, larger, compiled = (
        SPACE.plan({"precision": "bf16", **more})
        for more in ({}, {"batch_size": 32}, {"compile_mode": "default"})
    )
    checked = Done(number=9, plan=plan, purpose=Purpose.NUMERICS, reason="", result=report)
    checks = replace(seen, done=(*seen.done, checked))
    assert check_s(plan, seen, GPU) == pytest.approx(1.25 * expected_s(plan, seen, GPU))
    assert check_s(plan, checks, GPU) == pytest.approx(1.25 * 2.0)
    assert check_s(larger, checks, GPU) == pytest.approx(1.25 * 4.0)
    assert check_s(compiled, checks, GPU) == check_s(compiled, seen, GPU)


def test_a_check_lasts_at_least_as_long_as_its_steps():
    """The eager twin takes its time with a large batch, which the plan itself is through with."""
    large = {"precision": "bf16", "batch_size": 128}
    seen = history(({}, ok(50.0, total_s=8.0)), (large, ok(400.0, total_s=6.0)))
    assert check_s(SPACE.plan(large), seen, GPU) == pytest.approx(8 * 128 * (1 / 50 + 1 / 400))
