"""The space: what applies, why not, and what plans come out of it."""

import re
from dataclasses import replace

import pytest

from autotune.errors import PlanError, UsageError
from autotune.search_space.changes import describe_changes
from autotune.search_space.command import Command
from autotune.search_space.facts import WorkloadFacts
from autotune.search_space.knobs import CATALOGUE, Numerics
from autotune.search_space.plan import Plan
from autotune.search_space.space import NAMED_IN_FULL, Narrowing, build_space
from tests.search_space.machines import CPU_MACHINE, GPU_MACHINE

FACTS = WorkloadFacts(
    batch_size=32,
    dataset_len=10_000,
    num_blocks=12,
    has_conv2d=True,
    optimizer_impls=("foreach", "fused"),
)


def test_every_knob_applies_or_says_why_not():
    """On any machine, for any workload: nothing vanishes without a reason."""
    poor = WorkloadFacts(batch_size=1, dataset_len=1, compiler_problem="no compiler")
    for facts in (FACTS, poor):
        for hardware in (CPU_MACHINE, GPU_MACHINE):
            space = build_space(facts, hardware)
            varying = {domain.knob.name for domain in space.domains if domain.varies}
            assert varying | set(space.out) == {knob.name for knob in CATALOGUE}
            assert all(space.out.values())


def test_the_first_value_is_what_the_users_code_does():
    """The baseline changes nothing."""
    baseline = build_space(FACTS, GPU_MACHINE).baseline.values
    assert baseline["compile_mode"] == "off"
    assert baseline["precision"] == "fp32"
    assert baseline["batch_size"] == 32
    assert baseline["workers"] == 0
    assert "prefetch" not in baseline
    assert "compile_scope" not in baseline


def test_a_plan_has_each_knob_that_applies_and_no_other():
    """Conditional knobs come and go with the knob they depend on."""
    space = build_space(FACTS, GPU_MACHINE)
    plan = space.plan({"workers": 4, "compile_mode": "default"})
    assert plan["prefetch"] == 2
    assert plan["compile_scope"] == "model"
    assert "prefetch" not in space.plan({"workers": 0}, plan)


@pytest.mark.parametrize(
    ("facts", "hardware", "reason"),
    [
        ({"uneven_share": 0.3}, GPU_MACHINE, None),
        ({"uneven_share": 0.001}, GPU_MACHINE, "no weight of a large matrix product"),
        ({"uneven_share": None}, GPU_MACHINE, "not known"),
        ({"uneven_share": 0.3}, CPU_MACHINE, "needs a CUDA device"),
        ({"uneven_share": 0.3, "compiler_problem": "no g++"}, GPU_MACHINE, "no g\\+\\+"),
    ],
    ids=["a large vocabulary", "a small head", "unknown", "no GPU", "no compiler"],
)
def test_products_may_be_padded_where_a_compiler_can(facts, hardware, reason):
    """By a compiled plan alone, and where there is something to gain."""
    space = build_space(replace(FACTS, **facts), hardware)
    if reason is None:
        assert space.plan({"compile_mode": "default"})["shape_padding"] == "measured"
        assert "shape_padding" not in space.baseline
    else:
        assert re.search(reason, space.out["shape_padding"])


OFFLOADED_TOGETHER = {
    "whole model compiled": ({"activation_offload": "host", "compile_mode": "default"}, "blocks"),
    "graphs of blocks": (
        {
            "activation_offload": "host",
            "compile_mode": "reduce-overhead",
            "compile_scope": "block",
        },
        "CUDA graphs keep",
    ),
    "all that blocks keep": ({"activation_offload": "host"}, "longer to copy"),
    "recorded step": ({"activation_offload": "host", "cuda_graph": "step"}, "while a step"),
    "fp16": ({"parameter_offload": "host", "precision": "fp16"}, "looks at the gradients"),
    "batch norm": ({"parameter_offload": "host", "precision": "bf16"}, "running statistics"),
    "recorded update": ({"parameter_offload": "host", "cuda_graph": "step"}, "be recorded"),
    "graphs": ({"parameter_offload": "host", "compile_mode": "reduce-overhead"}, "new ones"),
    "layout": ({"parameter_offload": "host", "memory_format": "channels_last"}, "contiguous"),
    "fused": ({"parameter_offload": "host", "optimizer_impl": "fused"}, "no fused kernel"),
}


@pytest.mark.parametrize("case", OFFLOADED_TOGETHER)
def test_what_cannot_be_moved_to_the_host_is_refused(case):
    """On one device, with the reason."""
    values, reason = OFFLOADED_TOGETHER[case]
    optimizer = "SGD" if case == "fused" else "AdamW"
    known = {"has_batch_norm": case == "batch norm", "optimizer_class": optimizer}
    facts = replace(FACTS, recordable=True, has_conv2d=True, **known)
    with pytest.raises(PlanError, match=reason):
        build_space(facts, GPU_MACHINE, NAMED_IN_FULL).plan(values)


def test_blocks_compiled_one_by_one_may_be_moved_to_the_host():
    """Each of them is called from Python, where what it saves is seen."""
    values = {"activation_offload": "host", "activation_checkpointing": "full"}
    values |= {"compile_mode": "default", "compile_scope": "block"}
    plan = build_space(FACTS, GPU_MACHINE, NAMED_IN_FULL).plan(values)
    assert plan["activation_offload"] == "host"


@pytest.mark.parametrize(
    ("facts", "hardware", "num_ranks", "reason"),
    [
        ({}, GPU_MACHINE, 1, None),
        ({"varies": True}, GPU_MACHINE, 1, None),
        ({"varies": True}, GPU_MACHINE, 2, "which modules run differs"),
        ({"sparse_gradients": True}, GPU_MACHINE, 1, "sparse gradients"),
        ({"shared_across": "blocks share a weight"}, GPU_MACHINE, 1, "blocks share a weight"),
        ({"num_blocks": 0}, GPU_MACHINE, 1, "no repeated blocks"),
        ({}, CPU_MACHINE, 1, "needs a CUDA device"),
    ],
)
def test_parameters_may_be_on_the_host_where_fsdp_can_move_them(
    facts, hardware, num_ranks, reason
):
    """On one device, too; of several, only where FSDP shards them anyway."""
    known, machine = replace(FACTS, **facts), replace(hardware, num_devices=num_ranks)
    space = build_space(known, machine, NAMED_IN_FULL, num_ranks=num_ranks)
    if reason is None:
        assert space.plan({"parameter_offload": "host"})["parameter_offload"] == "host"
    else:
        assert re.search(reason, space.out["parameter_offload"])


@pytest.mark.parametrize(
    ("facts", "capability", "is_offered", "note"),
    [
        ({}, (9, 0), True, ""),
        ({}, (8, 0), False, ""),
        ({"fp8_problem": "torchao is missing"}, (9, 0), False, "without fp8: torchao is missing"),
        ({"fp8_problem": "torchao is missing"}, (8, 0), False, ""),
        ({"command": Command(argv=("python", "train.py"))}, (9, 0), False, "without fp16"),
    ],
    ids=["Hopper", "Ampere", "no software", "neither", "a command"],
)
def test_fp8_needs_a_gpu_and_software_that_have_it(facts, capability, is_offered, note):
    """What is missing and can be installed is told; and only compiled plans have it."""
    machine = replace(GPU_MACHINE, capability=capability)
    space = build_space(replace(FACTS, **facts), machine, NAMED_IN_FULL)
    assert ("fp8" in space.by_name["precision"].values) is is_offered
    assert note in space.by_name["precision"].note
    assert "fp8" not in build_space(replace(FACTS, **facts), machine).by_name["precision"].values
    if is_offered:
        assert space.possible({"precision": "fp8"}) is None
        assert space.possible({"precision": "fp8", "compile_mode": "default"}) is not None


def test_reasons_for_a_command_ask_for_nothing_that_only_a_model_file_has():
    command = Command(argv=("python", "train.py"))
    facts = WorkloadFacts(batch_size=32, command=command)
    for hardware in (CPU_MACHINE, GPU_MACHINE):
        reasons = build_space(facts, hardware).out.values()
        assert not [r for r in reasons if "blocks(model)" in r or "GLOBAL_BATCH_SIZE" in r]


def test_plans_are_values():
    """Equal, hashable, independent of the order they were written in."""
    one, two = Plan.of({"a": 1, "b": 2}), Plan.of({"b": 2, "a": 1})
    assert one == two
    assert len({one, two}) == 1
    assert one.digest == two.digest
    assert one.diff(Plan.of({"a": 3})) == {"a": (1, 3), "b": (2, None)}
    assert describe_changes(one, two) == "baseline"


def test_the_global_batch_is_kept():
    """Batch times accumulation is always GLOBAL_BATCH_SIZE; only divisors are offered."""
    space = build_space(replace(FACTS, global_batch_size=256), GPU_MACHINE)
    sizes = [int(value) for value in space.by_name["batch_size"].values]
    assert sizes[0] == 32
    assert all(256 % size == 0 for size in sizes)
    for size in sizes:
        plan = space.plan({"batch_size": size})
        assert int(plan["batch_size"]) * int(plan["accumulation"]) == 256


REFUSED = {
    "knob": ({"precison": "bf16"}, "did you mean 'precision'"),
    "knob_that_is_out": ({"acumulation": 2}, "did you mean 'accumulation'"),
    "value": ({"precision": "bf61"}, "did you mean 'bf16'"),
    "does_not_apply": ({"accumulation": 2}, "GLOBAL_BATCH_SIZE is not set"),
    "too_large": ({"batch_size": 20_000}, "more than the 10000 samples"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_makes_no_sense_is_refused_with_the_nearest(case):
    """Unknown knobs and values, and values that this workload cannot have."""
    values, words = REFUSED[case]
    with pytest.raises(PlanError, match=words):
        build_space(FACTS, GPU_MACHINE).plan(values)


def test_a_batch_that_does_not_divide_names_two_that_do():
    """The message holds the value, the rule and the way out."""
    space = build_space(replace(FACTS, global_batch_size=512), GPU_MACHINE)
    with pytest.raises(PlanError, match=r"batch_size=48 does not divide .*=512; use 32 or 64"):
        space.plan({"batch_size": 48})


def test_fix_holds_a_knob_in_every_plan():
    """Also in the baseline, also at a count that the space would not offer."""
    space = build_space(FACTS, GPU_MACHINE, Narrowing(fix=(("batch_size", "48"),)))
    assert space.baseline["batch_size"] == 48
    assert not space.by_name["batch_size"].varies
    assert "--fix batch_size=48" in space.out["batch_size"]


def test_knobs_leaves_only_those():
    """`--knobs` holds everything else at the baseline."""
    space = build_space(FACTS, GPU_MACHINE, Narrowing(knobs=("precision",)))
    assert [d.knob.name for d in space.domains if d.varies] == ["precision"]


def test_fix_goes_beyond_knobs():
    """What is held at a value need not vary, too."""
    narrowing = Narrowing(knobs=("threads",), fix=(("precision", "bf16"),))
    space = build_space(FACTS, GPU_MACHINE, narrowing)
    assert space.baseline["precision"] == "bf16"
    assert [d.knob.name for d in space.domains if d.varies] == ["threads"]


@pytest.mark.parametrize("option", ["knobs", "allow"])
def test_an_unknown_knob_in_an_option_is_refused(option):
    """With the option's name and the nearest knob."""
    with pytest.raises(UsageError, match=f"--{option}.*did you mean 'precision'"):
        build_space(FACTS, GPU_MACHINE, Narrowing(**{option: ("precisoin",)}))


def test_numerics_is_the_widest_change_allowed():
    """`exact` leaves no rounding and no precision; the batch changes the training, so it stays."""
    space = build_space(FACTS, GPU_MACHINE, Narrowing(numerics=Numerics.EXACT))
    varying = {d.knob.name for d in space.domains if d.varies}
    exact = {"workers", "prefetch", "pin_memory", "threads"}
    assert varying <= exact | {"activation_checkpointing", "activation_offload"}
    allowed = Narrowing(numerics=Numerics.EXACT, allow=("precision",))
    assert build_space(FACTS, GPU_MACHINE, allowed).by_name["precision"].varies


def test_a_guarded_value_is_in_only_where_it_is_asked_for():
    """By `--allow` or `--fix`; without, the space says how to get it."""
    recordable = replace(FACTS, recordable=True)
    space = build_space(recordable, GPU_MACHINE)
    assert space.by_name["cuda_graph"].values == ("off",)
    assert "--allow step" in space.out["cuda_graph"]
    allowed = build_space(recordable, GPU_MACHINE, Narrowing(allow=("step",)))
    assert allowed.by_name["cuda_graph"].values == ("off", "step")
    fixed = Narrowing(fix=(("cuda_graph", "step"),))
    assert build_space(recordable, GPU_MACHINE, fixed).baseline["cuda_graph"] == "step"
    of_a_file = build_space(recordable, GPU_MACHINE, NAMED_IN_FULL)
    assert of_a_file.plan({"cuda_graph": "step"})["cuda_graph"] == "step"


NOT_RECORDED = {
    "compile_mode": {"compile_mode": "reduce-overhead"},
    "optimizer_impl": {"optimizer_impl": "default"},
    "precision": {"precision": "fp16"},
    "accumulation": {"batch_size": 16},
    "activation_checkpointing": {"activation_checkpointing": "full"},
}


@pytest.mark.parametrize("case", NOT_RECORDED)
def test_what_the_host_must_do_in_a_step_excludes_its_recording(case):
    """One launch leaves the host nothing to do in between."""
    facts = replace(FACTS, recordable_only_fused=True, global_batch_size=32)
    space = build_space(facts, GPU_MACHINE, Narrowing(allow=("step",)))
    recorded, values = {"cuda_graph": "step", "optimizer_impl": "fused"}, NOT_RECORDED[case]
    assert space.possible(recorded) is not None
    assert space.possible(recorded | values) is None
    assert space.possible(values) is not None


def test_an_optimizer_recorded_only_as_one_kernel_names_that_kernel():
    """Where the recording is fixed; any other optimizer has it with each implementation."""
    assert build_space(
        replace(FACTS, recordable=True), GPU_MACHINE, Narrowing(fix=(("cuda_graph", "step"),))
    )
    sgd = replace(FACTS, recordable_only_fused=True)
    with pytest.raises(PlanError, match="use optimizer_impl=fused"):
        build_space(sgd, GPU_MACHINE, Narrowing(fix=(("cuda_graph", "step"),)))


def test_an_optimizer_that_cannot_be_recorded_says_so():
    """Also a machine that has no CUDA graphs."""
    assert "does not take capturable" in build_space(FACTS, GPU_MACHINE).out["cuda_graph"]
    space = build_space(replace(FACTS, recordable=True), CPU_MACHINE)
    assert space.out["cuda_graph"] == "needs a CUDA device"


@pytest.mark.parametrize("own", ["foreach", "fused"])
def test_what_the_users_optimizer_has_is_one_value(own):
    """It is `default`, and the other name of it means the same wherever it is written."""
    space = build_space(replace(FACTS, own_impl=own), GPU_MACHINE)
    (other,) = {"foreach", "fused"} - {own}
    domain = space.by_name["optimizer_impl"]
    assert domain.values == ("default", other)
    assert domain.note == f"your optimizer has {own}=True, which is default"
    assert space.plan({"optimizer_impl": own}) == space.baseline
    fixed = Narrowing(fix=(("optimizer_impl", own),))
    assert build_space(space.facts, GPU_MACHINE, fixed).baseline["optimizer_impl"] == "default"
    speeds = {value: domain.knob.speed(value, space.site).host for value in domain.values}
    assert speeds["default"] == 1.0
    assert (speeds[other] > 1.0) == (other == "fused")


def test_an_optimizer_that_the_user_made_fused_is_fused_by_default():
    """What only fused kernels can do runs with it, what they cannot does not."""
    sgd = replace(FACTS, recordable_only_fused=True, own_impl="fused", optimizer_class="SGD")
    fixed = Narrowing(fix=(("cuda_graph", "step"),))
    assert build_space(sgd, GPU_MACHINE, fixed).baseline["cuda_graph"] == "step"
    sharded = build_space(sgd, GPU_MACHINE, num_ranks=2)
    assert sharded.possible({"sharding": "fsdp_zero2"}) is None
    assert sharded.possible({"sharding": "fsdp_zero2", "optimizer_impl": "foreach"})


@pytest.mark.parametrize("total", [None, 4 * FACTS.batch_size])
def test_a_loader_with_batches_of_its_own_keeps_their_size(total):
    """Also where a global batch could be made of others."""
    facts = replace(FACTS, fixed_batches=True, global_batch_size=total)
    space = build_space(facts, CPU_MACHINE)
    assert space.by_name["batch_size"].values == (FACTS.batch_size,)
    assert space.baseline.get("accumulation", 1) == (4 if total else 1)


def test_a_dataset_that_holds_an_open_file_gets_no_workers():
    """The reason names the attribute and the cure."""
    space = build_space(replace(FACTS, open_file="shards"), CPU_MACHINE)
    assert "open file (shards)" in space.out["workers"]
    assert "open it when __getitem__ first runs" in space.out["prefetch"]


def test_a_loader_that_waits_gets_more_workers_than_there_are_cores():
    """Storage and networks serve many at once; a loader that computes has no use for them."""
    waits, computes = (
        build_space(replace(FACTS, loader_busy_share=share), CPU_MACHINE) for share in (0.05, 0.9)
    )
    assert waits.by_name["workers"].values == (0, 1, 2, 4, 8)
    assert computes.by_name["workers"].values == (0, 1, 2)


def test_a_stream_that_workers_would_repeat_gets_none():
    """Also where they are named: the message says how to share it out."""
    space = build_space(replace(FACTS, dataset_len=None, repeats_in_workers=True), CPU_MACHINE)
    assert "get_worker_info" in space.out["workers"]
    assert "prefetch" in space.out
    with pytest.raises(PlanError, match="workers does not apply here: each worker would read"):
        space.plan({"workers": 2})


def test_an_optimizer_that_cannot_be_built_anew_says_what_would_be_lost():
    """Its implementation, its recording and its parts need another one."""
    problem = "Mine cannot be built anew: what its step holds would be lost"
    fixed = replace(FACTS, rebuild_problem=problem, recordable=True)
    space = build_space(fixed, GPU_MACHINE)
    assert [space.out[name] for name in ("optimizer_impl", "cuda_graph")] == [problem] * 2
    assert "zero1" in build_space(FACTS, GPU_MACHINE, num_ranks=2).by_name["sharding"].values
    of_two = build_space(fixed, GPU_MACHINE, num_ranks=2)
    assert of_two.by_name["sharding"].values == ("ddp", "fsdp_zero2", "fsdp_zero3")


UNFIT = {
    "own_step": (("ddp", "fsdp_zero2", "fsdp_zero3"), "own step may look at all of them"),
    "varies": (("ddp", "zero1"), "which modules run differs"),
    "sparse_gradients": (("ddp", "zero1"), "cannot cut the sparse gradients"),
}


@pytest.mark.parametrize("fact", UNFIT)
def test_a_sharding_that_trains_another_way_is_left_out_with_its_reason(fact):
    """It would hang, or change the training without a word."""
    values, words = UNFIT[fact]
    space = build_space(replace(FACTS, **{fact: True}), GPU_MACHINE, num_ranks=2)
    sharding = space.by_name["sharding"]
    assert sharding.values == values
    assert words in sharding.note
    (left_out,) = {"zero1", "fsdp_zero2"} - set(values)
    with pytest.raises(PlanError, match=words):
        space.plan({"sharding": left_out})
    assert ("static_graph" in space.out) == (fact == "varies")
    assert ("comm_hook" in space.out) == (fact == "sparse_gradients")


def test_enumerate_gives_each_plan_once():
    """The baseline first; conditional knobs do not multiply where they do not apply."""
    narrowing = Narrowing(knobs=("workers", "prefetch"))
    plans = list(build_space(FACTS, CPU_MACHINE, narrowing).enumerate())
    assert plans[0] == build_space(FACTS, CPU_MACHINE).baseline
    assert len(plans) == len(set(plans)) == 1 + 2 * 3


def test_facts_and_hardware_survive_json():
    """They travel to the probe, and into the store."""
    facts = replace(FACTS, user_knobs=(("width", (16, 32)),), imports=("sklearn",))
    assert WorkloadFacts.from_dict(facts.to_dict()) == facts
    assert type(GPU_MACHINE).from_dict(GPU_MACHINE.to_dict()) == GPU_MACHINE


def test_a_space_of_certain_plans_has_no_other():
    """Knobs have the values of those plans, combinations beside them are not possible."""
    whole = build_space(FACTS, GPU_MACHINE)
    listed = [{}, {"precision": "bf16"}, {"workers": 4, "prefetch": 8}]
    space = whole.only([whole.plan(values) for values in listed])
    assert space.by_name["workers"].values == (0, 4)
    assert space.by_name["optimizer_impl"].values == ("default",)
    assert space.possible({"precision": "bf16"}) == whole.plan({"precision": "bf16"})
    assert space.possible({"precision": "bf16", "workers": 4, "prefetch": 8}) is None
    with pytest.raises(PlanError, match="no such plan among the 3 there are"):
        space.plan({"precision": "bf16", "workers": 4, "prefetch": 8})
    assert next(space.enumerate()) == space.baseline
    assert set(space.enumerate()) == set(map(whole.plan, listed))
    assert space.size_bound() == 3
