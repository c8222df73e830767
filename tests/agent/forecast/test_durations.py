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
from autotune.trials.diagnosis import Diagnosis
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
    assert expected_first_step_s(graphs, seen, GPU) == 48.0


def test_blocks_of_many_kinds_take_long_to_compile():
    """Each kind is compiled by itself, and the kernels of blocks of one kind are shared."""

    def first_step_s(kinds, scope):
        space = build_space(replace(GPT, num_blocks=16, num_block_kinds=kinds), GPU)
        diagnosis = Diagnosis(ops_per_step=800.0)
        seen = history(({}, replace(ok(50.0), diagnosis=diagnosis)), space=space)
        plan = space.plan({"compile_mode": "default", "compile_scope": scope})
        return expected_first_step_s(plan, seen, GPU)

    assert first_step_s(1, "block") < 10.0
    assert 35.0 < first_step_s(8, "block") < 60.0
    assert first_step_s(1, "model") < first_step_s(16, "model")


def test_cudnn_s_timings_are_paid_for_once():
    """At each batch; later processes find most of it in its cache."""
    space = build_space(replace(GPT, has_conv2d=True), GPU)
    timed = {"cudnn_benchmark": True}
    own = ({}, ok(50.0, first_step_s=1.0))
    before = history(own, space=space)
    after = history(own, (timed, ok(60.0, first_step_s=20.0, total_s=26.0)), space=space)
    plan, larger = space.plan(timed), space.plan({**timed, "batch_size": 32})
    assert expected_first_step_s(plan, before, GPU) == pytest.approx(17.0)
    assert expected_first_step_s(larger, after, GPU) == pytest.approx(20.0)
    assert expected_first_step_s(space.plan({"batch_size": 32}), after, GPU) == 1.0
    assert expected_s(plan, after, GPU) < 15.0


def test_cudnn_s_timings_come_beside_a_known_compilation():
    space = build_space(replace(GPT, has_conv2d=True), GPU)
    compiled = {"compile_mode": "default", "compile_scope": "model"}
    seen = history(({}, ok(50.0)), (compiled, ok(90.0, first_step_s=30.0)), space=space)
    timed = space.plan({**compiled, "cudnn_benchmark": True, "batch_size": 32})
    alone = space.plan({**compiled, "batch_size": 32})
    more_s = expected_first_step_s(timed, seen, GPU) - expected_first_step_s(alone, seen, GPU)
    assert more_s == pytest.approx(16.0)


def test_another_bucket_is_another_program():
    """The compiler splits the graph where DDP's buckets end."""
    space = build_space(GPT, replace(GPU, num_devices=2), num_ranks=2)
    compiled = ({"compile_mode": "default"}, ok(60.0, first_step_s=30.0))
    seen = history(({}, ok(50.0)), compiled, space=space)
    loaded, bucket = (
        space.plan({"compile_mode": "default", **more})
        for more in ({"workers": 1}, {"bucket_mb": 5})
    )
    assert expected_first_step_s(loaded, seen, GPU) == pytest.approx(9.6)
    assert expected_first_step_s(bucket, seen, GPU) == 30.0


@pytest.mark.parametrize(("hardware", "same"), [(GPU, True), (CPU, False)])
def test_what_was_compiled_starts_sooner(hardware, same):
    """Most of it is in the compiler's cache; a second process shows how much."""
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
    assert expected(compiled) == pytest.approx([9.6, 30.0, 9.6 if same else 30.0])
    assert expected(compiled, again) == [2.0, 30.0, 2.0 if same else 30.0]


def test_a_check_is_expected_to_take_as_long_as_one_that_ran():
    """For a larger batch in proportion; another mode of the compiler is another matter."""
    seen = history(({}, ok(50.0, total_s=8.0)))
    report = TrialResult(outcome=Outcome.OK, numerics=passed(), total_s=2.0)
    plan, larger, compiled = (
        SPACE.plan({"precision": "bf16", **more})
        for more in ({}, {"batch_size": 32}, {"compile_mode": "default"})
    )
    checked = Done(number=9, plan=plan, purpose=Purpose.NUMERICS, reason="", result=report)
    checks = replace(seen, done=(*seen.done, checked))
    assert check_s(plan, checks, GPU) == pytest.approx(1.1 * 2.0)
    assert check_s(larger, checks, GPU) == pytest.approx(1.1 * 4.0)
    assert check_s(compiled, checks, GPU) == check_s(compiled, seen, GPU)


def test_a_check_lasts_at_least_as_long_as_its_steps():
    """The eager twin takes its time with a large batch, which the plan itself is through with."""
    large = {"precision": "bf16", "batch_size": 128}
    seen = history(({}, ok(50.0, total_s=8.0)), (large, ok(400.0, total_s=6.0)))
    steps_s = 3 * 128 * (2 / 50 + 1 / 400)
    assert check_s(SPACE.plan(large), seen, GPU) > steps_s


def test_a_check_has_neither_warm_up_nor_windows():
    """It starts, builds the plan and its twin, and takes a first step and a few more."""
    seen = history(({}, ok(5000.0, total_s=8.0)))
    start_s, build_s, first_step_s = 8.0 - 4.0, 0.5, 1.0
    steps_s = 3 * 16 * 3 / 5000
    expected = 1.1 * (start_s + 2 * build_s + first_step_s + steps_s)
    assert check_s(SPACE.plan({"precision": "bf16"}), seen, GPU) == pytest.approx(expected)
