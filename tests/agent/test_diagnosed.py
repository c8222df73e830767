"""What a diagnosis changes in a search: which trials get one, and what is tried first."""

import math
from dataclasses import replace

import pytest

from autotune.agent.conclusion.explain import baseline_remarks, remarks
from autotune.agent.conclusion.finalists import changes_training
from autotune.agent.diagnosing import diagnosis_of
from autotune.agent.forecast.durations import expected_s
from autotune.agent.forecast.roofline import Roofline
from autotune.agent.forecast.speed import Forecast
from autotune.agent.proposal import Proposal
from autotune.agent.proposers.promising import Promising
from autotune.agent.proposers.reasons import bound_acted_on
from autotune.search_space.bound import Bound
from autotune.search_space.knobs import BY_NAME
from autotune.search_space.space import Narrowing, build_space
from autotune.trials.diagnosis import Diagnosis, Finding, FindingKind, Shares
from autotune.trials.result import Purpose
from tests.agent.histories import SPACE, history
from tests.agent.world import CPU, GPT, GPT_MODEL, GPU, Table, World, ok


def diagnosed(bound, *, idle=0.0, speed=50.0, took_s=0.0, **more):
    """A measured result with a diagnosis."""
    diagnosis = Diagnosis(
        bound=bound,
        evidence=(f"of a step: an idle device {idle:.0%}",),
        shares=Shares(idle=idle, forward=1 - idle),
        causes={Bound.LAUNCHES: idle, Bound.ARITHMETIC: 1 - idle},
        took_s=took_s,
    )
    return replace(ok(speed, **more), diagnosis=diagnosis)


def gains(seen, **beside):
    """Return how many times as fast each value of each knob should make the step of a plan."""
    roofline, space = Roofline(seen, GPU), seen.space

    def gain(name, value):
        plan = space.possible({name: value}, space.plan(beside))
        return math.exp(roofline.gains(plan).get(name, 0.0)) if plan else None

    names = {(d.knob.name, value) for d in space.domains for value in d.values}
    return {(name, value): gain(name, value) for name, value in names}


LAUNCHES = diagnosed(Bound.LAUNCHES, idle=0.8)
ARITHMETIC = diagnosed(Bound.ARITHMETIC)


def test_faster_kernels_do_not_help_a_device_that_waits_for_launches():
    """Casting only adds launches; fewer of them help, and a larger batch costs nothing."""
    waiting, busy = gains(history(({}, LAUNCHES))), gains(history(({}, ARITHMETIC)))
    assert waiting["precision", "bf16"] < 1.0
    assert busy["precision", "bf16"] > 3.0
    graphs = ("compile_mode", "reduce-overhead")
    assert waiting[graphs] > 3.0
    assert 1.0 < busy[graphs] < 1.5
    assert waiting["batch_size", 32] == pytest.approx(2.0, rel=0.05)
    assert busy["batch_size", 32] == pytest.approx(1.0, abs=0.1)


def test_faster_kernels_help_once_launches_are_few():
    """With CUDA graphs the device is what takes the time."""
    seen = history(({}, LAUNCHES))
    assert gains(seen)["precision", "bf16"] < 1.0
    assert gains(seen, compile_mode="reduce-overhead")["precision", "bf16"] > 1.2


def test_a_knob_gains_no_more_than_the_part_that_it_acts_on():
    """An optimizer step of 2 % cannot make the step 5 % faster."""
    small = replace(ARITHMETIC.diagnosis, shares=Shares(idle=0.0, forward=0.98, optimizer=0.02))
    seen = history(({}, replace(ARITHMETIC, diagnosis=small)))
    promised = gains(seen)
    assert 1.01 < promised["optimizer_impl", "fused"] <= 1 / 0.98
    assert 1.0 < promised["optimizer_impl", "foreach"] < promised["optimizer_impl", "fused"]


@pytest.mark.parametrize("allow", [(), ("step",)])
@pytest.mark.parametrize("bound", [LAUNCHES, ARITHMETIC])
def test_where_launches_are_waited_for_the_user_reads_how_to_record_a_step(bound, allow):
    """Only there, and only where it is not allowed already."""
    space = build_space(replace(GPT, recordable=True), GPU, Narrowing(allow=allow))
    told = [line for line in baseline_remarks(history(({}, bound), space=space)) if "step" in line]
    assert bool(told) == (bound is LAUNCHES and not allow)


def test_copies_that_take_long_are_hidden_first():
    """Pinned memory is worth what copying took, and little where it took little."""

    def expected_gain(share):
        shares = Shares(idle=0.0, forward=0.98 - share, copy=share, optimizer=0.0)
        diagnosis = replace(ARITHMETIC.diagnosis, shares=shares)
        seen = history(({}, replace(ARITHMETIC, diagnosis=diagnosis)))
        pinned, own = Forecast(seen, GPU).of([SPACE.plan({"pin_memory": True}), SPACE.baseline])
        return pinned.throughput / own.throughput

    assert expected_gain(0.2) > 1.12
    assert expected_gain(0.01) < 1.02


def test_what_was_not_diagnosed_is_guessed_from_the_step_time():
    """A step of a few milliseconds is taken for one that waits for launches, a long one is not."""
    graphs = ("compile_mode", "reduce-overhead")
    short, long = history(({}, ok(5000.0))), history(({}, ok(50.0)))
    assert gains(short)[graphs] > 2.0
    assert gains(long)[graphs] < 1.5


def test_reasons_name_the_evidence():
    """A change that acts on the bound says so, with the numbers; others do not."""
    seen = history(({}, diagnosed(Bound.LAUNCHES, idle=0.6)))
    batch, mode = BY_NAME["batch_size"], BY_NAME["compile_mode"]
    precision, compiling = (BY_NAME["precision"], "bf16", "fp32"), (mode, "default", "off")
    compiled = bound_acted_on([precision, compiling], seen)
    assert "bound by launches (60% of its step)" in compiled
    assert bound_acted_on([precision], seen) is None
    assert bound_acted_on([(batch, 32, 16)], seen) == compiled
    assert bound_acted_on([(batch, 16, 32)], seen) is None
    assert bound_acted_on([(mode, "off", "default")], seen) is None
    proposals = list(Promising(hardware=GPU, gain=0.01, chance=0.1).candidates(seen))
    compiling = [p for p in proposals if p.plan["compile_mode"] != "off"]
    assert compiling
    assert all(proposal.reason.count("bound by launches") == 1 for proposal in compiling)


def test_a_diagnosis_is_not_expected_again():
    """The seconds of the baseline's diagnosis are not those of trials to come."""
    space = build_space(GPT, GPU)
    seen = history(({}, diagnosed(Bound.ARITHMETIC, total_s=12.0, took_s=5.0)), space=space)
    assert expected_s(space.baseline, seen, GPU) == pytest.approx(7.0)


def leader(bound, shares, speed=100.0, **more):
    """The settings and the result of a trial in bf16 whose step was diagnosed."""
    diagnosis = Diagnosis(bound=bound, causes=shares, shares=Shares(idle=shares[Bound.LAUNCHES]))
    return {"precision": "bf16"}, replace(ok(speed, **more), diagnosis=diagnosis)


def waiting_for_launches(idle, bandwidth=0.2):
    """The shares of a step by its bounds."""
    busy = 1.0 - idle - bandwidth
    return {Bound.LAUNCHES: idle, Bound.ARITHMETIC: busy, Bound.MEMORY_BANDWIDTH: bandwidth}


def test_a_leader_that_waits_for_launches_is_given_a_larger_batch():
    """Whatever limited the baseline, the bound of the fastest step that was diagnosed counts."""
    busy = history(({}, ARITHMETIC), leader(Bound.ARITHMETIC, waiting_for_launches(0.0)))
    idle = history(({}, ARITHMETIC), leader(Bound.LAUNCHES, waiting_for_launches(0.6)))
    larger = {"batch_size": 64, "precision": "bf16"}
    with_batch = [gains(seen, **larger)["batch_size", 64] for seen in (busy, idle)]
    assert with_batch[0] < 1.3
    assert with_batch[1] > 1.8
    assert "trial 2 is bound by launches (60%" in bound_acted_on(
        [(BY_NAME["batch_size"], 64, 16)], idle
    )


def test_the_compiler_gains_what_is_bound_by_memory_bandwidth():
    """It fuses what lies between matrix products, and hardly changes these."""

    def gain(bandwidth):
        shares = waiting_for_launches(0.0, bandwidth)
        seen = history(({}, ARITHMETIC), leader(Bound.MEMORY_BANDWIDTH, shares))
        return gains(seen, precision="bf16")["compile_mode", "default"]

    assert gain(0.8) > 1.8
    assert gain(0.1) < 1.15


def test_convolutions_gain_less_by_half_precision():
    """Torch lets them compute in tf32 already."""

    def gain(value, conv_share):
        space = build_space(replace(GPT, conv_share=conv_share), GPU)
        return gains(history(({}, ARITHMETIC), space=space))["precision", value]

    assert gain("bf16", 0.0) > 3.0
    assert gain("bf16", 1.0) < 2.5
    assert gain("tf32", 1.0) == pytest.approx(1.0, abs=0.01)


def test_trials_that_are_much_faster_are_diagnosed_briefly():
    """On one device, without a compiler, and above a speed that is told beforehand."""
    seen = history(({}, diagnosed(Bound.ARITHMETIC, speed=50.0, took_s=2.0)))

    def asked(changes, left_s=100.0):
        plan = seen.space.plan(changes)
        proposal = Proposal(plan=plan, purpose=Purpose.PRESET, reason="")
        return diagnosis_of(proposal, seen, 0.01, left_s)

    found = asked({"precision": "bf16"})
    assert found.brief
    assert found.above == pytest.approx(75.0)
    assert asked({"compile_mode": "default"}) is None
    assert asked({"precision": "bf16"}, left_s=30.0) is None


class DiagnosedWorld(World):
    """Answers with a diagnosis where one is asked for."""

    def __call__(self, request):
        result = super().__call__(request)
        if request.diagnosis is None:
            return result
        return replace(result, diagnosis=Diagnosis(bound=Bound.ARITHMETIC, evidence=("seen",)))


MIXED = Finding(kind=FindingKind.BATCH_LOSS, what="the loss is of pairs", advice="-")


@pytest.mark.parametrize(
    ("total", "findings", "told"),
    [
        (64, (), ""),
        (64, (MIXED,), "although GLOBAL_BATCH_SIZE is kept, as the loss is of pairs"),
        (None, (), "or keep it: set GLOBAL_BATCH_SIZE, or give --fix batch_size="),
        (None, (MIXED,), "or keep it: give --fix batch_size="),
    ],
)
def test_a_loss_that_depends_on_the_batch_changes_with_it(total, findings, told):
    """As many samples in an optimizer step do not keep it; nobody is told that they do."""
    space = build_space(replace(GPT, global_batch_size=total), GPU)
    found = Diagnosis(bound=Bound.ARITHMETIC, findings=findings)
    plan = space.plan({"batch_size": 32})
    seen = history(({}, replace(ok(50.0), diagnosis=found)), space=space)
    changes = [remark for remark in remarks(plan, seen) if "training changes" in remark]
    assert [told in remark for remark in changes] == [True] * bool(told)
    assert changes_training(plan, seen) == bool(told)


def test_the_baseline_and_the_leader_of_the_confirmation_are_diagnosed():
    """The winner has a diagnosis, and no plan spends the seconds of a second one."""
    table = Table(DiagnosedWorld(GPT_MODEL), GPT, budget_s=900)
    winner = table.search().run()
    asked = [request for request in table.world.requests if request.diagnosis is not None]
    assert asked[0].purpose is Purpose.BASELINE
    assert {request.purpose for request in asked[1:]} == {Purpose.CONFIRM}
    plans = [request.plan for request in asked]
    assert winner.plan in plans
    assert len(plans) == len(set(plans)) <= 3


def test_what_one_thread_did_in_the_baselines_process_is_expected_of_it():
    """Half the speed with one of four threads, so 0.7 of it with two; by itself one is a guess."""
    four = replace(CPU, num_cores=4)
    space = build_space(GPT, four)
    seen = replace(ARITHMETIC, diagnosis=replace(ARITHMETIC.diagnosis, one_thread_speedup=0.5))
    roofline = Roofline(history(({}, seen), space=space), four)

    def factor(threads):
        gained = roofline.gains(space.plan({"threads": threads}))
        return math.exp(gained["threads"])

    assert factor(1) == pytest.approx(0.5)
    assert factor(2) == pytest.approx(0.5**0.5)
    guess = Roofline(history(({}, ARITHMETIC), space=space), four)
    assert guess.gains(space.plan({"threads": 1}))["threads"] < 0
