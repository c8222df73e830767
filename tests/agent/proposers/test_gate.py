"""Which plans are not worth their time."""

from dataclasses import replace

from autotune.agent.forecast.durations import (
    expected_s,
)
from autotune.agent.objectives.least_memory import LeastMemory
from autotune.agent.proposers.gate import Gate, Objection, TimeLeft
from tests.agent.histories import CRASH, PLENTY, SPACE, history, history_for, proposals
from tests.agent.world import GIB, GPU, ok


def test_compilation_waits_for_time_that_can_pay():
    """An unknown compile mode needs minutes; a known one what it took."""
    gate = Gate(hardware=GPU)
    plan = SPACE.plan({"compile_mode": "max-autotune"})
    seen = history(({}, ok(50.0)))
    short = TimeLeft(search_s=150, total_s=900)
    assert gate.objection(plan, seen, short) is Objection.TIME
    assert gate.objection(plan, seen, PLENTY) is None
    assert gate.objection(SPACE.baseline, seen, PLENTY) is Objection.TRIED
    known = history(({}, ok(50.0)), ({"compile_mode": "max-autotune"}, ok(60.0, first_step_s=20)))
    other = SPACE.plan({"compile_mode": "max-autotune", "workers": 1})
    assert gate.objection(other, known, short) is None


def test_the_long_steps_of_a_large_batch_must_fit_the_time_left():
    """A trial is not begun with less time than its own reason says that it takes."""
    seen = history(({}, ok(50.0, batch=16)))
    slow = next(p for p in proposals(seen) if p.trial_s > 2 * expected_s(p.plan, seen, GPU))
    assert f"for {slow.trial_s:.0f} s" in slow.reason
    gate = Gate(hardware=GPU)
    short = TimeLeft(search_s=0.9 * slow.trial_s, total_s=1e6)
    assert gate.objection(slow.plan, seen, short, slow.trial_s) is Objection.TIME
    assert gate.objection(slow.plan, seen, PLENTY, slow.trial_s) is None


def test_a_setting_that_failed_alone_is_not_run_again():
    """Whoever proposes it, in whatever company; a failure with others to blame says less."""
    gate = Gate(hardware=GPU)
    full = {"activation_checkpointing": "full"}
    seen = history(({}, ok(50.0)), ({"precision": "bf16"}, ok(60.0)), (full, CRASH))
    again = SPACE.plan({**full, "precision": "bf16"})
    assert gate.objection(again, seen, PLENTY) is Objection.FAILURE
    several = {"activation_checkpointing": "full", "workers": 2, "pin_memory": True}
    shared = history(({}, ok(50.0)), (several, CRASH))
    assert gate.objection(SPACE.plan(full), shared, PLENTY) is not Objection.FAILURE


def test_what_can_only_be_faster_is_not_tried_for_memory():
    """A fused optimizer or workers need no less memory, so the gate keeps them out."""
    seen = history_for(LeastMemory(min_throughput=40.0), ({}, ok(50.0, memory=20 * GIB)))
    gate = Gate(hardware=GPU)
    objections = [
        gate.objection(SPACE.plan(plan), seen, PLENTY)
        for plan in (
            {"optimizer_impl": "fused"},
            {"workers": 4},
            {"batch_size": 32},
            {"batch_size": 8},
            {"activation_checkpointing": "full"},
            {"precision": "bf16"},
        )
    ]
    assert objections == [Objection.OBJECTIVE] * 3 + [None] * 3
    # Where nothing is fast enough yet, a faster plan is a step on the way.
    seen = replace(seen, objective=LeastMemory(min_throughput=400.0))
    assert gate.objection(SPACE.plan({"optimizer_impl": "fused"}), seen, PLENTY) is None
