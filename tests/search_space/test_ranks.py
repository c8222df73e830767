"""The space of trials on several ranks: what only exists there, and what stays the same."""

from dataclasses import replace

import pytest

from autotune.errors import PlanError, UsageError
from autotune.search_space.knobs import CATALOGUE, CONFLICTS, conflict
from autotune.search_space.knobs.batch import batch_does_not_divide
from autotune.search_space.plan import Plan
from autotune.search_space.space import NAMED_IN_FULL, Narrowing, build_space
from tests.search_space.machines import CPU_MACHINE, GPU_MACHINE
from tests.search_space.test_space import FACTS, NOT_RECORDED

OF_RANKS = {"sharding", "bucket_mb", "gradient_as_bucket_view", "static_graph", "comm_hook"}
GPUS = replace(GPU_MACHINE, num_devices=8, num_cores=128)


def test_one_rank_has_nothing_to_share():
    """The knobs of several ranks are out, each with the reason."""
    space = build_space(FACTS, GPUS)
    assert set(space.out) >= OF_RANKS
    assert not OF_RANKS & set(space.baseline)


def test_every_knob_of_several_ranks_applies_or_says_why_not():
    """Nothing vanishes without a reason."""
    for machine in (GPUS, CPU_MACHINE):
        space = build_space(FACTS, machine, num_ranks=2)
        varying = {domain.knob.name for domain in space.domains if domain.varies}
        assert varying | set(space.out) == {knob.name for knob in CATALOGUE}
        assert varying >= OF_RANKS


def test_the_baseline_of_several_ranks_is_plain_ddp():
    """What a user gets who wraps the model and changes nothing else."""
    baseline = build_space(FACTS, GPUS, num_ranks=4).baseline
    assert baseline["sharding"] == "ddp"
    assert baseline["bucket_mb"] == 25
    assert baseline["comm_hook"] == "none"


@pytest.mark.parametrize(("ranks", "offered"), [(2, False), (3, False), (4, True), (5, False)])
def test_hsdp_needs_two_copies_of_two_parts(ranks, offered):
    """From four ranks on, and of an even number."""
    values = build_space(FACTS, GPUS, num_ranks=ranks).by_name["sharding"].values
    assert ("hsdp" in values) is offered


def test_ddps_knobs_are_in_ddps_plans_only():
    """zero1 has buckets too, fsdp has none; hooks are for plain ddp."""
    space = build_space(FACTS, GPUS, num_ranks=4)
    assert "comm_hook" not in space.plan({"sharding": "zero1"})
    assert "bucket_mb" in space.plan({"sharding": "zero1"})
    assert not set(space.plan({"sharding": "fsdp_zero3"})) & (OF_RANKS - {"sharding"})


def test_a_cpu_has_no_bf16_hook():
    """Torch's hook refuses every backend but NCCL."""
    space = build_space(FACTS, CPU_MACHINE, num_ranks=2)
    assert space.by_name["comm_hook"].values == ("none", "fp16")


def test_ranks_on_a_cpu_share_its_cores():
    """Together they use no more than there are."""
    eight_cores = replace(CPU_MACHINE, num_cores=8)
    baseline = build_space(FACTS, eight_cores, num_ranks=4).baseline
    assert baseline["threads"] == 2
    assert build_space(FACTS, CPU_MACHINE, num_ranks=2).baseline["threads"] == 1


def test_the_global_batch_is_kept_over_ranks():
    """Batch times accumulation times ranks is always GLOBAL_BATCH_SIZE."""
    space = build_space(replace(FACTS, global_batch_size=256), GPUS, num_ranks=4)
    for size in space.by_name["batch_size"].values:
        plan = space.plan({"batch_size": size})
        assert int(plan["batch_size"]) * int(plan["accumulation"]) * 4 == 256


def test_a_batch_too_large_for_its_share_starts_smaller():
    """A user's batch of 32 on 8 ranks cannot make a global batch of 64; 8 can."""
    space = build_space(replace(FACTS, global_batch_size=64), GPUS, num_ranks=8)
    assert space.baseline["batch_size"] == 8
    assert space.baseline["accumulation"] == 1


def test_the_batches_of_all_ranks_fit_into_the_dataset():
    """Each rank needs a batch of its own samples."""
    space = build_space(replace(FACTS, dataset_len=100), GPUS, num_ranks=4)
    assert max(map(int, space.by_name["batch_size"].values)) <= 25
    with pytest.raises(PlanError, match="on each of 4 ranks is more than the 100 samples"):
        space.plan({"batch_size": 30})


def test_a_batch_that_does_not_divide_names_the_ranks():
    """64 is right for one rank and wrong for four."""
    space = build_space(replace(FACTS, global_batch_size=192), GPUS, num_ranks=4)
    with pytest.raises(PlanError, match=r"batch_size=64 on each of 4 ranks .*=192; use 48"):
        space.plan({"batch_size": 64})


def test_a_global_batch_that_ranks_cannot_share_is_refused():
    """With the numbers of ranks that can."""
    with pytest.raises(UsageError, match=r"GLOBAL_BATCH_SIZE=30 .*evenly by 4 ranks; use 3 or 5"):
        build_space(replace(FACTS, global_batch_size=30), GPUS, num_ranks=4)
    told = batch_does_not_divide("batch_size", 8, 32, 3)
    assert told.endswith("use a number of ranks that divides 32")


EXCLUDED = {
    "static_graph": {"static_graph": True, "batch_size": 32},
    "memory_format": {"sharding": "fsdp_zero3", "memory_format": "channels_last"},
    "optimizer_impl": {"sharding": "fsdp_zero2", "optimizer_impl": "fused"},
    "compile_mode": {"sharding": "fsdp_zero2", "compile_mode": "reduce-overhead"},
    "sharding": {"sharding": "fsdp_zero2", "precision": "bf16"},
    "precision": {"compile_mode": "off", "precision": "fp8"},
    "activation_offload": {"activation_offload": "host", "compile_mode": "default"},
    "parameter_offload": {
        "sharding": "fsdp_zero3",
        "parameter_offload": "host",
        "precision": "fp16",
    },
    "activation_memory_budget": {
        "compile_mode": "default",
        "activation_memory_budget": 0.5,
        "activation_checkpointing": "full",
    },
}


@pytest.mark.parametrize("case", EXCLUDED)
def test_values_that_exclude_each_other_are_refused_when_named(case):
    """With both of them and the reason; and no search is offered such a plan."""
    has_batch_norm = case == "sharding"
    facts = replace(
        FACTS, global_batch_size=256, optimizer_class="SGD", has_batch_norm=has_batch_norm
    )
    space = build_space(facts, GPUS, NAMED_IN_FULL, num_ranks=4)
    with pytest.raises(PlanError, match=f"{case}=.* cannot run together: "):
        space.plan(EXCLUDED[case])
    assert space.possible(EXCLUDED[case]) is None


def test_compiled_graphs_and_accumulation_exclude_each_other():
    """On one device as among ranks."""
    for num_ranks in (1, 2):
        space = build_space(replace(FACTS, global_batch_size=256), GPUS, num_ranks=num_ranks)
        whole = {"batch_size": 256 // num_ranks}
        assert space.possible({"compile_mode": "reduce-overhead", **whole}) is not None
        with pytest.raises(PlanError, match=r"compile_mode=.* cannot run together: "):
            space.plan({"compile_mode": "reduce-overhead", "batch_size": 32})
        assert space.possible({"compile_mode": "default", "batch_size": 32}) is not None


def test_every_conflict_is_between_knobs_of_the_catalogue():
    """A renamed knob would otherwise switch a rule off."""
    names = {knob.name for knob in CATALOGUE}
    assert all(set(one.knobs) <= names for one in CONFLICTS)
    of_one_device = [one.knobs[1] for one in CONFLICTS if one.knobs[0] == "cuda_graph"]
    assert {*EXCLUDED, "cuda_graph"} == {one.knobs[0] for one in CONFLICTS}
    assert of_one_device == list(NOT_RECORDED)


def test_alternatives_and_enumeration_leave_conflicts_out():
    """What is left can run."""
    narrowing = Narrowing(knobs=("sharding", "memory_format"))
    space = build_space(FACTS, GPUS, narrowing, num_ranks=2)
    plans = list(space.enumerate())
    assert not any(conflict(plan, FACTS) for plan in plans)
    channels_last = space.plan({"memory_format": "channels_last"})
    others = [plan["sharding"] for plan in space.alternatives(channels_last, "sharding")]
    assert others == ["zero1"]


def test_fixed_values_that_exclude_each_other_are_refused():
    """Before anything runs."""
    fix = (("sharding", "fsdp_zero3"), ("memory_format", "channels_last"))
    with pytest.raises(PlanError, match="cannot run together"):
        build_space(FACTS, GPUS, Narrowing(fix=fix), num_ranks=2)


def test_a_plan_of_one_rank_is_adopted():
    """Its knobs stay, those of several ranks start at the baseline, accumulation follows."""
    facts = replace(FACTS, global_batch_size=256)
    one = build_space(facts, GPUS).plan({"precision": "bf16", "batch_size": 128, "workers": 2})
    four = build_space(facts, GPUS, num_ranks=4).adopt(one)
    assert (four["precision"], four["workers"], four["sharding"]) == ("bf16", 2, "ddp")
    assert (one["batch_size"], one["accumulation"]) == (128, 2)
    assert (four["batch_size"], four["accumulation"]) == (64, 1)


def test_adopting_gives_up_a_batch_whose_accumulation_is_excluded():
    """An earlier run's smaller batch in a space that is now held at CUDA graphs."""
    facts = replace(FACTS, global_batch_size=FACTS.batch_size)
    small = {"batch_size": FACTS.batch_size // 2, "precision": "bf16"}
    found = build_space(facts, GPUS).plan(small)
    assert found["accumulation"] == 2
    fix = Narrowing(fix=(("compile_mode", "reduce-overhead"),))
    adopted = build_space(facts, GPUS, fix).adopt(found)
    assert (adopted["batch_size"], adopted["accumulation"]) == (FACTS.batch_size, 1)
    assert (adopted["compile_mode"], adopted["precision"]) == ("reduce-overhead", "bf16")


def test_adopting_drops_what_the_space_excludes():
    """A winner with CUDA graphs enters a space held at fsdp without them."""
    fix = Narrowing(fix=(("sharding", "fsdp_zero3"),))
    one = Plan.of({"compile_mode": "reduce-overhead", "precision": "bf16"})
    adopted = build_space(FACTS, GPUS, fix, num_ranks=2).adopt(one)
    assert adopted["compile_mode"] == "off"
    assert adopted["precision"] == "bf16"


def test_a_value_that_is_out_is_no_misspelling():
    """The reason is what the user needs, and no other value with a name like it."""
    space = build_space(replace(FACTS, varies=True), GPUS, num_ranks=2)
    with pytest.raises(PlanError, match="which modules run differs") as refused:
        space.plan({"sharding": "fsdp_zero2"})
    assert "did you mean" not in str(refused.value)
