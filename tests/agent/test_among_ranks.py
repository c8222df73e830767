"""What is proposed, and what is known to fit, where a trial has several devices."""

import math
from dataclasses import replace

import pytest

from autotune.agent import spaces
from autotune.agent.conclusion.numerics import needs_check
from autotune.agent.done import Done
from autotune.agent.forecast.memory import cannot_fit, expected_peak
from autotune.agent.forecast.roofline import Roofline
from autotune.agent.forecast.speed import Forecast
from autotune.agent.history import History
from autotune.agent.proposers.sampler import Sampler
from autotune.agent.proposers.sharded import BestOfScouts, Shardings
from autotune.agent.spaces import check_devices, spaces_of, this_machine
from autotune.errors import UsageError
from autotune.search_space.knobs import conflict
from autotune.search_space.space import Narrowing, build_space
from autotune.trials.result import Outcome, Purpose, TrialResult
from tests.agent.world import CPU, GIB, GPT, GPU, ok, passed

FOUR = replace(GPU, num_devices=4, num_cores=64)
OOM = TrialResult(outcome=Outcome.OOM, error="out of memory", total_s=5.0)


def test_more_gpus_than_there_are_is_refused_with_their_number():
    """The user reads how many devices a trial may have here."""
    with pytest.raises(UsageError, match=r"--gpus-per-trial 8: this machine has 4 x a GPU; use 4"):
        check_devices(FOUR, 8, "this machine has")
    check_devices(FOUR, 4, "this machine has")


def test_without_gpus_the_ranks_share_the_machine(monkeypatch):
    """Its cores and its memory are divided, so that scouts side by side do not take them twice."""
    monkeypatch.setattr(spaces, "detect_hardware", lambda: CPU)
    whole, shared = this_machine(1), this_machine(2)
    assert (whole.num_devices, shared.num_devices) == (1, 2)
    assert shared.device_memory_bytes == whole.device_memory_bytes // 2


def test_a_scout_takes_as_many_threads_as_a_rank(monkeypatch):
    """What one device shows on a shared machine holds for each of several."""
    monkeypatch.setattr(spaces, "detect_hardware", lambda: CPU)
    found = spaces_of(GPT, this_machine(2), Narrowing(), 2)
    assert found.scouting.baseline["threads"] == found.whole.baseline["threads"] == 1


def test_what_only_ranks_have_may_be_fixed():
    """The scouts, which have none of it, are not in the way of `--fix sharding`."""
    narrowing = Narrowing(fix=(("sharding", "fsdp_zero3"), ("precision", "bf16")))
    found = spaces_of(GPT, FOUR, narrowing, 4)
    assert found.whole.baseline["sharding"] == "fsdp_zero3"
    assert "sharding" not in found.scouting.baseline
    assert found.scouting.baseline["precision"] == "bf16"
    assert spaces_of(GPT, FOUR, Narrowing(), 1).scouting is None


def test_scouts_try_nothing_that_ranks_cannot_have():
    """A recorded step would win on one device, and be lost on the way to the others."""
    facts = replace(GPT, recordable=True)
    found = spaces_of(facts, FOUR, Narrowing(allow=("step",)), 4)
    assert "cuda_graph" in found.whole.out
    assert not found.scouting.by_name["cuda_graph"].varies
    assert found.scouting.by_name["compile_mode"].varies


def test_scouts_accumulate_as_a_rank_does():
    """One device shows what a rank does with its share, so CUDA graphs are there for it, too."""
    facts = replace(GPT, global_batch_size=4 * GPT.batch_size)
    fix = Narrowing(fix=(("compile_mode", "reduce-overhead"),))
    found = spaces_of(facts, FOUR, fix, 4)
    baselines = found.whole.baseline, found.scouting.baseline
    assert [(b["batch_size"], b["accumulation"]) for b in baselines] == [(GPT.batch_size, 1)] * 2
    assert found.scouting.baseline["compile_mode"] == "reduce-overhead"


def scouted(cap_bytes, *scouts):
    """Return a history on four devices, its baseline measured, after these scouts."""
    found = replace(ranks_history(*scouts, num_ranks=1), memory_cap_bytes=cap_bytes)
    return replace(ranks_history(({}, ok(190.0, memory=20 * GIB))), scouts=found)


def test_scouts_whose_baseline_leaves_no_headroom_are_adopted():
    """A faster baseline that does not fit is no reason to pass over what does."""
    large, small = 140 * GIB, 100 * GIB
    half, other = {"precision": "bf16"}, {"precision": "tf32"}
    fast = ({}, ok(50.0, memory=large))
    found = BestOfScouts(max_plans=1).candidates(
        scouted(133 * GIB, fast, (half, ok(49.0, memory=small)), (other, ok(48.0, memory=large)))
    )
    assert [proposal.plan["precision"] for proposal in found][:1] == ["bf16"]
    assert not list(BestOfScouts(max_plans=1).candidates(scouted(133 * GIB, fast)))


def test_loading_is_expected_by_the_batch_of_a_rank():
    """More ranks load and compute side by side: workers are worth as much to each."""
    gains = []
    for num_ranks in (1, 4):
        throughput = num_ranks * GPT.batch_size / 0.004
        seen = ranks_history(({}, ok(throughput, wait=0.1)), num_ranks=num_ranks)
        plan = seen.space.plan({"workers": 2, "batch_size": 32})
        (outlook,) = Forecast(seen, FOUR).of([plan])
        gains.append(outlook.throughput / throughput)
    assert gains[1] == pytest.approx(gains[0], rel=0.02)


def test_every_rank_of_ddp_holds_the_whole_model():
    """Of 38.6 GiB, 19.4 are weights, gradients and moments, wherever nothing cuts them."""
    facts = replace(GPT, num_parameters=1_300_000_000)
    seen = ranks_history(({}, ok(50.0, memory=int(38.6 * GIB))), facts=facts)
    plans = [{"batch_size": 32}, {"sharding": "fsdp_zero3"}]
    peaks = [math.exp(expected_peak(seen.space.plan(plan), seen, FOUR)[0]) / GIB for plan in plans]
    assert peaks[0] == pytest.approx(38.6 + 19.2, abs=0.3)
    assert peaks[1] == pytest.approx(19.2 + 19.4 / 4, abs=0.3)


def test_what_fsdp_computes_in_half_precision_has_a_check_of_its_own():
    """It casts blocks, where autocast casts by operation."""
    seen = ranks_history(({}, ok(50.0)))
    plan = seen.space.plan({"precision": "bf16", "sharding": "zero1"})
    check = Done(
        number=2,
        plan=plan,
        purpose=Purpose.NUMERICS,
        reason="",
        result=TrialResult(outcome=Outcome.OK, numerics=passed()),
    )
    seen = replace(seen, done=(*seen.done, check))
    assert seen.verdicts.checks(plan)
    other = seen.space.plan({"precision": "bf16", "sharding": "fsdp_zero2"})
    assert not seen.verdicts.checks(other)


def test_casting_blocks_is_checked_where_the_precision_is_the_users_own():
    """`--fix precision=bf16` is no word about FSDP, which computes otherwise than autocast."""
    space = build_space(GPT, FOUR, Narrowing(fix=(("precision", "bf16"),)), num_ranks=4)
    seen = replace(ranks_history(({}, ok(50.0))), space=space)
    assert needs_check(space.plan({"sharding": "fsdp_zero3"}), seen)
    assert not needs_check(space.plan({"sharding": "zero1"}), seen)


def ranks_history(*trials, facts=GPT, num_ranks=4):
    """Return a history on so many devices of `(changes, result)` pairs, the first the baseline."""
    space = build_space(facts, FOUR, num_ranks=num_ranks)
    done = tuple(
        Done(
            number=n,
            plan=space.plan(changes),
            purpose=Purpose.PRESET if n > 1 else Purpose.BASELINE,
            reason="",
            result=result,
            num_ranks=num_ranks,
        )
        for n, (changes, result) in enumerate(trials, 1)
    )
    return History(space=space, memory_cap_bytes=133 * GIB, done=done)


@pytest.mark.parametrize(
    ("ran_out", "as_large", "smaller"),
    [
        ("fsdp_zero3", {"ddp", "zero1", "fsdp_zero2", "hsdp", "fsdp_zero3"}, set()),
        ("fsdp_zero2", {"ddp", "zero1", "fsdp_zero2"}, {"fsdp_zero3", "hsdp"}),
        ("hsdp", {"ddp", "hsdp"}, {"zero1", "fsdp_zero2", "fsdp_zero3"}),
        ("ddp", {"ddp"}, {"zero1", "fsdp_zero2", "fsdp_zero3", "hsdp"}),
    ],
)
def test_out_of_memory_speaks_for_shardings_that_hold_no_less(ran_out, as_large, smaller):
    """Of hsdp and zero1 neither speaks for the other: they hold parts of different things."""
    seen = ranks_history(({}, ok(50.0)), ({"batch_size": 64, "sharding": ran_out}, OOM))
    fits = {
        name: not cannot_fit(seen.space.plan({"batch_size": 64, "sharding": name}), seen)
        for name in as_large | smaller
    }
    assert {name for name in fits if not fits[name]} == as_large


def test_out_of_memory_with_buckets_does_not_speak_for_gradients_that_live_in_them():
    """gradient_as_bucket_view saves a copy of every gradient; a hook adds one."""
    seen = ranks_history(({}, ok(50.0)), ({"batch_size": 64}, OOM))
    saving = {"batch_size": 64, "gradient_as_bucket_view": True}
    assert not cannot_fit(seen.space.plan(saving), seen)
    hooked = {"batch_size": 64, "comm_hook": "bf16", "bucket_mb": 100}
    assert cannot_fit(seen.space.plan(hooked), seen)


@pytest.mark.parametrize(
    ("num_parameters", "first"), [(350_000_000, "zero1"), (1_300_000_000, "fsdp_zero3")]
)
def test_shardings_come_in_the_order_that_suits_the_size_of_the_model(num_parameters, first):
    """Sharing parameters costs a small model most, and spares a large one its optimizer step."""
    facts = replace(GPT, num_parameters=num_parameters)
    seen = ranks_history(({}, ok(50.0)), facts=facts)
    order = [p.plan["sharding"] for p in Shardings(at_least=0.0).candidates(seen)]
    assert order[0] == first
    assert sorted(order) == ["fsdp_zero2", "fsdp_zero3", "hsdp", "zero1"]
    early = [p.plan["sharding"] for p in Shardings(at_least=1.04).candidates(seen)]
    assert bool(early) is (num_parameters > 10**9)


def test_a_sharding_gets_what_it_can_run_with():
    """FSDP takes neither CUDA graphs nor channels_last; both give way, precision stays."""
    facts = replace(GPT, has_conv2d=True)
    graphs = {"compile_mode": "reduce-overhead", "precision": "bf16"}
    values = {**graphs, "memory_format": "channels_last"}
    seen = ranks_history(({}, ok(50.0)), (values, ok(90.0)), facts=facts)
    plans = {p.plan["sharding"]: p.plan for p in Shardings(at_least=0.0).candidates(seen)}
    sharded = plans["fsdp_zero3"]
    assert (sharded["compile_mode"], sharded["compile_scope"]) == ("default", "block")
    assert (sharded["memory_format"], sharded["precision"]) == ("contiguous", "bf16")
    assert plans["zero1"]["compile_mode"] == "reduce-overhead"


def test_the_sampler_survives_values_that_exclude_each_other():
    """FSDP with CUDA graphs is no plan, and is passed over."""
    seen = ranks_history(({}, ok(50.0)), ({"sharding": "fsdp_zero3"}, ok(80.0)))
    proposed = [p.plan for p in Sampler(seed=0).candidates(seen)]
    assert len(proposed) > 20
    assert all(conflict(plan, GPT) is None for plan in proposed)


def test_a_hook_promises_no_more_than_the_communication_that_the_trace_shows():
    """Unknown is not none."""

    def promised(exposed):
        measured = ok(50.0)
        traced = replace(measured.measurement, exposed_comm_share=exposed)
        seen = ranks_history(({}, replace(measured, measurement=traced)))
        plan = seen.space.plan({"comm_hook": "bf16"})
        return Roofline(seen, FOUR).gains(plan)["comm_hook"]

    assert promised(0.0) == 0.0 < promised(0.004) < promised(None)
