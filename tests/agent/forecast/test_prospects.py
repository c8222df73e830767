"""What a plan promises under each objective."""

from dataclasses import replace

from autotune.agent.forecast.prospects import Prospects, cannot_win
from autotune.agent.objectives.least_memory import LeastMemory
from autotune.agent.objectives.throughput import FASTEST
from autotune.agent.objectives.time_to_train import TimeToTrain
from autotune.agent.proposers.gate import Gate, Objection
from autotune.search_space.space import build_space
from tests.agent.histories import PLENTY, SPACE, history_for
from tests.agent.world import CPU, GIB, GPT, GPU, ok

COMPILED = {"compile_mode": "default"}


def test_a_speed_that_is_in_doubt_is_helped_by_what_is_faster():
    """Checkpointing that costs too much alone is tried beside a fused optimizer."""
    seen = history_for(LeastMemory(min_share=0.97), ({}, ok(50.0, memory=20 * GIB)))
    fits = {"activation_checkpointing": "full"}
    alone, beside = Prospects(seen, GPU).of(
        [SPACE.plan(fits), SPACE.plan({**fits, "optimizer_impl": "fused"})]
    )
    assert beside.allowed > alone.allowed
    assert beside.log_mean > alone.log_mean


def test_what_compiling_takes_is_weighed_against_what_it_gains():
    """The same plan is promising for many samples, and out of the question for few."""
    plan = SPACE.plan(COMPILED)
    trial = ({}, ok(50.0))
    for samples, pays in ((500, False), (1_000_000, True)):
        seen = history_for(TimeToTrain(samples=samples), trial)
        (prospect,) = Prospects(seen, GPU).of([plan])
        assert (prospect.value > seen.value(seen.best)) is pays
    gate = Gate(hardware=GPU)
    slow = ({"compile_mode": "default", "workers": 1}, ok(60.0, first_step_s=60.0))
    seen = history_for(TimeToTrain(samples=500), trial, slow)
    assert gate.objection(plan, seen, PLENTY) is Objection.OBJECTIVE


def test_for_throughput_prospects_are_the_forecast():
    """Nothing is weighed that was not weighed before."""
    seen = history_for(FASTEST, ({}, ok(50.0)), ({"precision": "bf16"}, ok(300.0)))
    (one,) = Prospects(seen, GPU).of([SPACE.plan({"precision": "bf16", "pin_memory": True})])
    assert (one.log_mean, one.allowed) == (one.speed.log_mean, 1.0)
    assert one.gain(280.0) == one.speed.gain(280.0)
    assert one.chance(280.0) == one.speed.chance(280.0)


def test_on_a_cpu_the_eager_twin_of_a_compiled_plan_may_need_less():
    """It lacks the compiler; beside a device, fused kernels can only save."""
    full = {"activation_checkpointing": "full"}
    for hardware, ruled_out in ((CPU, False), (GPU, True)):
        space = build_space(GPT, hardware)
        seen = history_for(
            LeastMemory(min_share=0.5),
            ({}, ok(50.0, memory=600 * 2**20)),
            ({"compile_mode": "default", **full}, ok(45.0, memory=520 * 2**20)),
        )
        eager = space.plan(full)
        assert cannot_win(eager, replace(seen, space=space), hardware) is ruled_out
