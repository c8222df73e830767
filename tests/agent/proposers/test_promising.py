"""What is promised by what was measured, and in which order it is tried."""

from dataclasses import replace

from autotune.agent.forecast.speed import Forecast
from autotune.agent.objectives.least_memory import LeastMemory
from autotune.agent.objectives.throughput import FASTEST
from autotune.agent.proposers.promising import Promising
from autotune.agent.settings import SearchSettings
from autotune.agent.stages import stages_of
from autotune.search_space.space import build_space
from tests.agent.histories import OOM, PLENTY, SPACE, changes, history, history_for, proposals
from tests.agent.world import GIB, GPT, GPU, ok


def test_what_promises_much_for_little_time_comes_first():
    """After the baseline several cheap settings together; compiling, which is dear, follows."""
    first = changes(proposals(history(({}, ok(50.0, batch=16)))))[0]
    assert first["precision"] == "bf16"
    assert first["optimizer_impl"] == "fused"
    assert "compile_mode" not in first
    assert "workers" not in first


def test_a_first_guess_holds_whatever_costs_no_time_to_try():
    """What makes a first step long is left out, and what comes beside it is not lost with it."""
    space = build_space(replace(GPT, has_conv2d=True), GPU)
    first = proposals(history(({}, ok(50.0, batch=16, wait=0.5)), space=space))[0].plan
    assert first["workers"] > 1
    assert first["optimizer_impl"] == "fused"
    assert first["pin_memory"]
    assert not first["cudnn_benchmark"]


def test_on_one_device_the_largest_expected_gain_comes_first():
    """Whether or not something surer is left."""
    seen = history(({}, ok(50.0, memory=5 * GIB)))
    (stage,) = stages_of(SPACE, None, SearchSettings(budget_s=900.0), GPU)
    first = stage.next(seen, PLENTY)
    assert first.plan == proposals(seen, chance=0.0)[0].plan
    assert first.plan["batch_size"] == 64


def test_a_loop_that_waits_for_data_gets_workers_first():
    """Nothing but loading matters where the loop waits nine tenths of the time."""
    first = changes(proposals(history(({}, ok(50.0, wait=0.9)))))[0]
    assert first["workers"] >= 8


def test_a_loop_that_only_waits_is_no_division_by_zero():
    """A loader may take all of the time, to the last digit."""
    assert proposals(history(({}, ok(50.0, wait=1.0))))[0].plan["workers"] > 0


def test_without_waiting_no_loader_knob_is_tried():
    """Where the loop never waits, workers can only cost."""
    proposed = changes(proposals(history(({}, ok(50.0))), chance=0.0))
    assert not any("workers" in change for change in proposed)


def test_part_of_a_combination_that_fell_short_is_taken_back():
    """When together they slowed training down, the largest promise is doubted first."""
    both = {"precision": "bf16", "compile_mode": "default"}
    seen = history(({}, ok(50.0)), (both, ok(51.0)))
    assert changes(proposals(seen))[0].get("precision") != "bf16"
    assert changes(proposals(history(({}, ok(50.0)), (both, ok(300.0)))))[0]["precision"] == "bf16"


def test_minutes_of_compiling_wait_until_cheaper_plans_have_nothing_to_promise():
    """`max-autotune` never comes before `default`."""
    modes = [c.get("compile_mode") for c in changes(proposals(history(({}, ok(50.0)))))]
    assert modes.index("default") < modes.index("max-autotune")


def test_several_settings_together_are_tried_on_each_of_the_best():
    """The second best may take what the best one cannot."""
    seen = history(({}, ok(50.0)), ({"workers": 2}, ok(51.0)))
    several = [p.plan for p in proposals(seen) if len(p.plan.diff(SPACE.baseline)) > 3]
    assert {0, 2} <= {plan["workers"] for plan in several}


def test_the_first_compiled_plan_pads_what_its_own_timing_may_not():
    """It costs no trial of its own, and the neighbour that leaves it to timing may follow."""
    space = build_space(replace(GPT, uneven_share=0.3), GPU)
    quick = {"precision": "bf16", "optimizer_impl": "fused", "pin_memory": True, "threads": 1}
    seen = history(({}, ok(50.0)), (quick, ok(220.0)), space=space)
    first = proposals(seen)[0].plan
    assert first["compile_mode"] != "off"
    assert first["shape_padding"] == "always"


def test_a_batch_that_gained_promises_more():
    """A doubled batch that doubled the speed is climbed from; one that gained nothing less so."""
    plan = SPACE.plan({"batch_size": 64})
    expected = []
    for speed in (99.0, 50.0):
        seen = history(({}, ok(50.0)), ({"batch_size": 32}, ok(speed, batch=32)))
        (outlook,) = Forecast(seen, GPU).of([plan])
        expected.append(outlook.throughput)
    assert expected[0] > 95
    assert expected[1] < 60
    climbing = [c for c in changes(proposals(seen)) if set(c) == {"batch_size"}]
    assert {"batch_size": 64} in climbing


def test_where_memory_ends_the_ladder_checkpointing_makes_room():
    """A batch that ran out of memory comes again with less to hold, and by itself no more."""
    full = history(({}, ok(50.0)), ({"batch_size": 32}, ok(80.0)), ({"batch_size": 64}, OOM))
    proposed = changes(proposals(full, chance=0.0))
    assert {"batch_size": 64, "activation_checkpointing": "selective"} in proposed
    assert {"batch_size": 128} not in proposed
    assert {"activation_checkpointing": "selective"} not in proposed


def test_for_memory_checkpointing_is_worth_a_trial_by_itself():
    """For speed it only costs, for memory it comes with the first trial after the baseline."""
    trial = ({}, ok(50.0, memory=20 * GIB))
    promising = Promising(hardware=GPU, gain=0.01, chance=0.1)
    first, *others = changes(promising.candidates(history_for(LeastMemory(min_share=0.5), trial)))
    assert first["activation_checkpointing"] == "full"
    assert {"activation_checkpointing": "full"} in others
    for change in changes(promising.candidates(history_for(FASTEST, trial))):
        assert set(change) != {"activation_checkpointing"}
