"""Each proposer and rule by itself, from a history written down by hand."""

from dataclasses import replace

import optuna
import pytest

from autotune.agent.conclusion.confirm import flipped_back
from autotune.agent.conclusion.explain import changes as explained
from autotune.agent.conclusion.explain import remarks
from autotune.agent.conclusion.finalists import choose, finalists
from autotune.agent.done import Done
from autotune.agent.forecast.durations import (
    check_s,
    expected_first_step_s,
    expected_s,
    uncached_s,
)
from autotune.agent.forecast.loading import loading_of
from autotune.agent.forecast.memory import cannot_fit, chance_to_fit, predicted_bytes
from autotune.agent.forecast.soundness import chance_to_run
from autotune.agent.forecast.speed import Forecast
from autotune.agent.history import History
from autotune.agent.preview import first_trials
from autotune.agent.proposers.gate import Gate, Objection, TimeLeft
from autotune.agent.proposers.orders import SURE
from autotune.agent.proposers.promising import Promising
from autotune.agent.proposers.sampler import Sampler
from autotune.agent.settings import SearchSettings
from autotune.agent.stages import stages_of
from autotune.search_space.knobs import BY_NAME
from autotune.search_space.space import Narrowing, build_space
from autotune.trials.result import Outcome, Purpose, TrialResult
from tests.agent.world import CPU, GIB, GPT, GPU, ok, passed

SPACE = build_space(GPT, GPU)
PLENTY = TimeLeft(search_s=1e6, total_s=1e6)
OOM = TrialResult(outcome=Outcome.OOM, error="out of memory", total_s=5.0)
CRASH = TrialResult(outcome=Outcome.CRASH, error="died", total_s=5.0)


def history(*trials, space=SPACE, pending=()):
    """Return a history of `(changes, result)` pairs, the first one the baseline."""
    purposes = [Purpose.BASELINE] + [Purpose.PRESET] * len(trials)
    done = tuple(
        Done(number=n, plan=space.plan(changes), purpose=purpose, reason="", result=result)
        for n, ((changes, result), purpose) in enumerate(zip(trials, purposes, strict=False), 1)
    )
    return History(
        space=space, memory_cap_bytes=133 * GIB, done=done, pending=tuple(map(space.plan, pending))
    )


def changes(proposals):
    return [{k: v for k, (v, _) in p.plan.diff(SPACE.baseline).items()} for p in proposals]


def proposals(seen, hardware=GPU, chance=0.1):
    return list(Promising(hardware=hardware, gain=0.01, chance=chance).candidates(seen))


def test_what_promises_much_for_little_time_comes_first():
    """After the baseline several cheap settings together; compiling, which is dear, follows."""
    first = changes(proposals(history(({}, ok(50.0, batch=16)))))[0]
    assert first["precision"] == "bf16"
    assert first["optimizer_impl"] == "fused"
    assert "compile_mode" not in first
    assert "workers" not in first


def test_on_one_device_the_largest_expected_gain_comes_first():
    """A larger batch is not quite sure to gain; surer plans go first where shardings follow."""
    seen = history(({}, ok(50.0, memory=5 * GIB)))
    (stage,) = stages_of(SPACE, None, SearchSettings(budget_s=900.0), GPU)
    first = stage.next(seen, PLENTY)
    assert first.plan == proposals(seen, chance=0.0)[0].plan
    assert first.plan["batch_size"] == 128
    assert proposals(seen, chance=SURE)[0].plan["batch_size"] == 16


def test_a_loop_that_waits_for_data_gets_workers_first():
    """Nothing but loading matters where the loop waits nine tenths of the time."""
    first = changes(proposals(history(({}, ok(50.0, wait=0.9)))))[0]
    assert first["workers"] >= 8


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


@pytest.mark.parametrize("outcome", [Outcome.CRASH, Outcome.COMPILE_ERROR, Outcome.TIMEOUT])
def test_a_setting_that_never_ran_is_blamed_for_a_failure(outcome):
    """bf16 ran elsewhere, so compiling is to blame: this mode or this scope, or all of it."""
    failed = TrialResult(outcome=outcome, error="it failed", total_s=5.0)
    both = {"precision": "bf16", "compile_mode": "default"}
    seen = history(({}, ok(50.0)), ({"precision": "bf16"}, ok(90.0)), (both, failed))
    blocks = {"compile_mode": "reduce-overhead", "compile_scope": "block"}
    plans = [{"precision": "bf16", "workers": 1}, {"compile_mode": "default"}, blocks]
    chances = [chance_to_run(SPACE.plan(plan), seen) for plan in plans]
    assert chances == pytest.approx([1.0, 1 - 0.95, 1 - 0.95 / 3])
    half = {"compile_mode": "default", "compile_scope": "block"}
    assert chance_to_run(SPACE.plan(half), seen) == pytest.approx(1 - 0.95 * 2 / 3)


def test_one_setting_is_blamed_for_what_several_fell_short_by():
    """Half precision, which promised most on this CPU, and not the optimizer beside it."""
    space = build_space(GPT, CPU)
    own, both = ({}, ok(50.0)), {"precision": "bf16", "optimizer_impl": "fused"}
    plans = [space.plan({name: value}) for name, value in both.items()]
    half, fused = Forecast(history(own, space=space), CPU).of(plans)
    assert half.throughput > fused.throughput > 54
    half, fused = Forecast(history(own, (both, ok(35.0)), space=space), CPU).of(plans)
    assert half.throughput < 36
    assert fused.throughput > 54


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


def test_a_forecast_learns_what_settings_are_worth():
    """What was measured of a setting alone is expected of it beside others."""
    seen = history(({}, ok(50.0)), ({"precision": "bf16"}, ok(60.0)))
    plan = SPACE.plan({"precision": "bf16", "pin_memory": True})
    (unaware,) = Forecast(history(({}, ok(50.0))), GPU).of([plan])
    (aware,) = Forecast(seen, GPU).of([plan])
    assert unaware.throughput > 150
    assert aware.throughput == pytest.approx(60 * 1.03, rel=0.05)
    assert aware.spread < unaware.spread


def test_a_forecast_is_sure_of_what_was_measured():
    """A measured plan's outlook is its measurement."""
    seen = history(({}, ok(50.0)), ({"precision": "bf16"}, ok(300.0)))
    (outlook,) = Forecast(seen, GPU).of([SPACE.plan({"precision": "bf16"})])
    assert outlook.throughput == pytest.approx(300.0, rel=0.02)
    assert outlook.spread < 0.03


def test_running_plans_are_not_what_one_learns_from():
    """A plan under way makes its neighbours no faster and no slower, only better known soon."""
    plan = SPACE.plan({"precision": "bf16", "optimizer_impl": "fused"})
    (alone,) = Forecast(history(({}, ok(50.0))), GPU).of([plan])
    running = history(({}, ok(50.0)), pending=[{"precision": "bf16"}])
    (beside,) = Forecast(running, GPU).of([plan])
    assert beside.throughput == pytest.approx(alone.throughput)
    assert beside.spread < alone.spread


def test_workers_are_expected_to_share_the_loading():
    """Four of them quarter the time of a loop that does nothing but load."""
    seen = history(({}, ok(50.0, wait=0.99)))
    (outlook,) = Forecast(seen, GPU).of([SPACE.plan({"workers": 4})])
    assert outlook.throughput == pytest.approx(4 * 50.0, rel=0.1)


ONE_THREAD = Narrowing(fix=(("threads", "1"),))


@pytest.mark.parametrize(("cores", "expected"), [(2, 200.0), (8, 300.0)])
def test_on_a_cpu_workers_load_on_the_cores_that_computing_leaves(cores, expected):
    """Two of them, with a third of the time computing: all of it on two cores, or beside it."""
    space = build_space(GPT, replace(CPU, num_cores=cores), ONE_THREAD)
    seen = history(({}, ok(100.0, wait=2 / 3)), space=space)
    (outlook,) = Forecast(seen, CPU).of([space.plan({"workers": 2})])
    assert outlook.throughput == pytest.approx(expected, rel=0.05)


def test_workers_that_wait_need_no_cores():
    """Eight of them on two cores load eight samples in the time of one, beside the step."""
    space = build_space(replace(GPT, loader_busy_share=0.02), CPU, ONE_THREAD)
    seen = history(({}, ok(50.0, wait=0.98)), space=space)
    (outlook,) = Forecast(seen, CPU).of([space.plan({"workers": 8})])
    assert outlook.throughput == pytest.approx(8 * 50.0, rel=0.05)


def test_where_workers_lack_cores_faster_computing_helps_to_load():
    """On a CPU with as many processes as cores; a device leaves the cores alone."""
    waits = ({"workers": 2}, ok(200.0, wait=0.25))
    gains = []
    for machine in (CPU, replace(GPU, num_cores=2)):
        space = build_space(GPT, machine, ONE_THREAD)
        seen = history(({}, ok(100.0, wait=2 / 3)), waits, space=space)
        slow, fast = Forecast(seen, machine).of(
            [space.plan({"workers": 2, **more}) for more in ({}, {"precision": "bf16"})]
        )
        gains.append(fast.throughput / slow.throughput)
    on_cpu, on_gpu = gains
    assert on_cpu > 1.05
    assert on_gpu == pytest.approx(1.0, abs=0.01)


def test_a_loader_is_less_sure_the_further_its_batch_is_from_one_that_was_measured():
    """Each doubling may change what a batch costs to put together."""
    space = build_space(GPT, CPU, ONE_THREAD)
    waits = ({"workers": 2}, ok(110.0, wait=0.6))
    seen = history(({}, ok(100.0, wait=0.9)), waits, space=space)
    loading = loading_of(seen)
    doubts = [loading.doubt(space.plan({"workers": 2, "batch_size": n})) for n in (16, 32, 64)]
    assert doubts[0] == 0.0
    assert 0.0 < doubts[1] < doubts[2] < loading.doubt(space.plan({"workers": 1}))


def test_between_two_batches_a_loader_may_be_better_than_with_either():
    """What is not known is not taken to be worse than both."""
    ends = [({"workers": 2, "batch_size": n}, ok(speed, wait=0.9)) for n, speed in FAR_APART]
    seen = history(({}, ok(60.0, wait=0.9)), *ends)
    plans = [SPACE.plan({"workers": 2, "batch_size": n}) for n in (16, 32, 64)]
    small, between, large = Forecast(seen, GPU).of(plans)
    assert large.throughput < between.throughput < small.throughput
    assert between.chance(small.throughput) > 0.1
    assert between.spread > 5 * small.spread


FAR_APART = ((16, 110.0), (64, 70.0))


@pytest.mark.parametrize(("samples", "expected"), [(8 * 16, 8.0), (9 * 16, 4.5), (4 * 16, 4.0)])
def test_workers_wait_for_the_end_of_a_short_epoch(samples, expected):
    """Nine batches for eight workers take as long as sixteen, and four keep four of them busy."""
    space = build_space(replace(GPT, dataset_len=samples), GPU)
    seen = history(({}, ok(50.0, wait=0.99)), space=space)
    (outlook,) = Forecast(seen, GPU).of([space.plan({"workers": 8})])
    assert outlook.throughput == pytest.approx(expected * 50.0, rel=0.1)


@pytest.mark.parametrize(("throughput", "expected"), [(100_000.0, 1.6), (50.0, 4.0)])
def test_a_batch_four_times_as_large_takes_a_quick_loader_hardly_longer(throughput, expected):
    """Most of 80 us goes to putting together any batch; 160 ms are those of the samples."""
    seen = history(({}, ok(throughput, wait=0.5)))
    own, larger = (SPACE.plan({"batch_size": size}) for size in (16, 64))
    loading = loading_of(seen)
    batch_s = [loading.step_s(plan, 0.0) * int(plan["batch_size"]) for plan in (own, larger)]
    assert batch_s[0] == pytest.approx(8 / throughput)
    assert batch_s[1] / batch_s[0] == pytest.approx(expected, rel=0.01)


def test_a_loop_that_only_waits_is_no_division_by_zero():
    """A loader may take all of the time, to the last digit."""
    assert proposals(history(({}, ok(50.0, wait=1.0))))[0].plan["workers"] > 0


def test_a_noisy_machine_is_recognised_by_what_cannot_be_explained():
    """Changes that hardly matter and scatter widely show how much processes vary."""
    prefetch = [{"workers": 1, "prefetch": count} for count in (2, 4, 8)]
    speeds = (40.0, 70.0, 45.0)
    noisy = history(({}, ok(60.0)), *zip(prefetch, map(ok, speeds), strict=True))
    quiet = history(({}, ok(60.0)), *((change, ok(60.0)) for change in prefetch))
    plan = SPACE.plan({"workers": 1, "prefetch": 4})
    (in_noise,), (in_quiet,) = (Forecast(seen, GPU).of([plan]) for seen in (noisy, quiet))
    assert in_noise.throughput < 65
    assert in_noise.spread > 2 * in_quiet.spread


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


def test_a_batch_that_will_hardly_fit_is_worth_less():
    """One peak already tells: 16 samples in 40 GiB leave no room for 256."""
    seen = history(({}, ok(50.0, memory=40 * GIB)))
    chances = [chance_to_fit(SPACE.plan({"batch_size": b}), seen) for b in (8, 16, 32, 64, 256)]
    assert chances[:2] == [1.0, 1.0]
    assert chances[2] > 0.9 > chances[3] > chances[4]
    assert chances[4] < 0.01


def test_peaks_predict_what_cannot_fit():
    """Two measured batches give `a + b * batch`; what needs more than the cap is not run."""
    seen = history(
        ({}, ok(50.0, memory=40 * GIB)), ({"batch_size": 32}, ok(55.0, memory=72 * GIB))
    )
    assert predicted_bytes(SPACE.plan({"batch_size": 64}), seen) == 136 * GIB
    assert cannot_fit(SPACE.plan({"batch_size": 64}), seen)
    assert not cannot_fit(SPACE.plan({"batch_size": 32, "workers": 1}), seen)


def test_out_of_memory_speaks_for_plans_that_need_no_less():
    """bf16 out of memory rules out fp32; full checkpointing stays possible."""
    seen = history(({}, ok(50.0)), ({"batch_size": 64, "precision": "bf16"}, OOM))
    assert cannot_fit(SPACE.plan({"batch_size": 128, "workers": 2}), seen)
    saving = {"batch_size": 64, "precision": "bf16", "activation_checkpointing": "full"}
    assert not cannot_fit(SPACE.plan(saving), seen)


def test_padding_only_adds_to_what_is_needed():
    """What ran out of memory without does with it, too; a plan that pads may only owe it that."""
    space = build_space(replace(GPT, uneven_share=0.3), GPU)
    eager = {"batch_size": 64}
    measured = {**eager, "compile_mode": "reduce-overhead"}
    padded = {**measured, "shape_padding": "always"}

    def ruled_out_by(ran_out):
        seen = history(({}, ok(50.0)), (ran_out, OOM), space=space)
        others = (space.plan(one) for one in (eager, measured, padded) if one != ran_out)
        return [cannot_fit(plan, seen) for plan in others]

    assert ruled_out_by(eager) == [True, True]
    assert ruled_out_by(measured) == [True, True]
    assert ruled_out_by(padded) == [False, False]


def test_compilation_waits_for_time_that_can_pay():
    """An unknown compile mode needs more than its first step; a known one needs only itself."""
    gate = Gate(settings=SearchSettings(budget_s=600), hardware=GPU)
    plan = SPACE.plan({"compile_mode": "max-autotune"})
    seen = history(({}, ok(50.0)))
    short = TimeLeft(search_s=250, total_s=900)
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
    gate = Gate(settings=SearchSettings(budget_s=900.0), hardware=GPU)
    short = TimeLeft(search_s=0.9 * slow.trial_s, total_s=1e6)
    assert gate.objection(slow.plan, seen, short, slow.trial_s) is Objection.TIME
    assert gate.objection(slow.plan, seen, PLENTY, slow.trial_s) is None


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


def test_the_sampler_proposes_only_new_plans_and_repeats_itself():
    """Equal histories give equal proposals, and none was tried or is running."""
    seen = history(({}, ok(50.0)), ({"precision": "bf16"}, ok(300.0)), pending=[{"workers": 2}])
    first = [p.plan for p in Sampler(seed=1).candidates(seen)]
    assert first == [p.plan for p in Sampler(seed=1).candidates(seen)]
    assert len(first) == len(set(first)) > 20
    assert not set(first) & seen.tried


def test_the_sampler_is_told_failures_as_infeasible():
    """An out-of-memory trial stays in the study, as one that violates a constraint."""
    seen = history(({}, ok(50.0, memory=GIB)), ({"batch_size": 1024}, OOM))
    sampler = Sampler(seed=0)
    list(zip(range(1), sampler.candidates(seen), strict=False))
    from autotune.agent.proposers.sampler import _axes

    study = sampler._study(seen, _axes(seen))
    assert [t.state for t in study.trials] == [optuna.trial.TrialState.COMPLETE] * 2
    assert [t.constraints["runs"] > 0 for t in study.trials] == [False, True]


def test_a_small_space_is_enumerated_to_its_end():
    """What sampling leaves of a small space still gets its turn."""
    space = build_space(replace(GPT, dataset_len=16, num_blocks=0), CPU)
    seen = history(({}, ok(50.0)), space=space)
    proposed = {p.plan for p in Sampler(seed=0).candidates(seen)}
    assert proposed == set(space.enumerate()) - {space.baseline}


def test_the_preview_starts_with_the_baseline_and_the_checklist():
    """`--dry-run` shows what a run would start with."""
    planned = first_trials(SPACE, GPU, 900.0)
    assert [trial["purpose"] for trial in planned[:2]] == ["baseline", "preset"]
    assert "precision=bf16" in planned[1]["change"]


def ablated(seen, *flipped):
    """Return the history after plans of these values were run for what a setting is worth."""
    trials = tuple(
        Done(number=n, plan=SPACE.plan(values), purpose=Purpose.ABLATE, reason="", result=result)
        for n, (values, result) in enumerate(flipped, len(seen.done) + 1)
    )
    return replace(seen, done=seen.done + trials)


def test_the_cheapest_of_the_equally_fast_is_a_finalist():
    """Behind the fastest comes the equally fast with least memory, the own batch first."""
    seen = history(
        ({}, ok(50.0, memory=30 * GIB)),
        ({"workers": 1}, ok(100.0, memory=40 * GIB)),
        ({"workers": 2}, ok(99.9, memory=40 * GIB)),
        ({"workers": 4}, ok(99.8, memory=40 * GIB)),
        ({"activation_checkpointing": "full"}, ok(99.5, memory=20 * GIB)),
        ({"batch_size": 8}, ok(99.5, memory=10 * GIB)),
        ({"batch_size": 4}, ok(90.0, memory=5 * GIB)),
    )
    assert finalists(seen) == [
        SPACE.plan({"workers": 1}),
        SPACE.plan({"activation_checkpointing": "full"}),
        SPACE.plan({"workers": 2}),
    ]


def test_what_is_faster_without_a_setting_is_a_finalist():
    """An ablation that beats the whole search by more than noise; not one that is as fast."""
    seen = history(({}, ok(50.0)), ({"workers": 1}, ok(100.0)))
    flipped = ablated(seen, ({"workers": 2}, ok(100.5)), ({"workers": 4}, ok(104.0)))
    assert finalists(flipped) == [SPACE.plan({"workers": 4}), SPACE.plan({"workers": 1})]


def test_a_setting_that_hurts_is_told_where_no_time_was_left_to_confirm_it():
    """The winner stays what was confirmed; the user reads what a longer budget would find."""
    found = {"workers": 1, "pin_memory": True}
    seen = history(({}, ok(50.0)), (found, ok(100.0)))
    flipped = ablated(seen, ({"workers": 1}, ok(104.0)), ({"pin_memory": True}, ok(98.0)))
    told = explained(SPACE.plan(found), flipped)
    assert "no time was left to confirm" in told["pin_memory"]
    assert "no time" not in told["workers"]
    again = Done(
        number=20,
        plan=SPACE.plan({"workers": 1}),
        purpose=Purpose.CONFIRM,
        reason="",
        result=ok(99.0),
    )
    confirmed = replace(flipped, done=(*flipped.done, again))
    assert "no time" not in explained(SPACE.plan(found), confirmed)["pin_memory"]


def test_a_worth_that_processes_differ_by_anyway_is_told_as_such():
    """Of one process each, 1 % is nothing; 10 % is something."""
    found = {"workers": 1, "pin_memory": True}
    seen = history(({}, ok(50.0)), (found, ok(100.0)))
    flipped = ablated(seen, ({"workers": 1}, ok(99.0)), ({"pin_memory": True}, ok(90.0)))
    told = explained(SPACE.plan(found), flipped)
    assert "for no reason" in told["pin_memory"]
    assert "+11.1% over workers=0" in told["workers"]
    assert "for no reason" not in told["workers"]


def test_what_changes_the_numbers_proves_its_worth_first():
    """Before a loader's settings, and what other settings bring comes last."""
    found = {"workers": 1, "prefetch": 4, "precision": "bf16", "batch_size": 32}
    flips = [name for name, _ in flipped_back(SPACE.plan(found), history(({}, ok(50.0))))]
    assert flips == ["batch_size", "precision", "workers", "prefetch"]


def test_what_is_as_fast_in_less_memory_without_a_setting_is_a_finalist():
    """Behind the fastest, and with a batch that is the user's own before anything else."""
    found = {"workers": 1, "batch_size": 32, "pin_memory": True}
    seen = history(({}, ok(50.0)), (found, ok(100.0, memory=40 * GIB)))
    without_pinning = ({**found, "pin_memory": False}, ok(100.2, memory=30 * GIB))
    slower = ({"pin_memory": True}, ok(98.0, memory=5 * GIB))
    own_batch = ({"workers": 1, "pin_memory": True}, ok(99.3, memory=35 * GIB))
    flipped = ablated(seen, without_pinning, slower)
    assert finalists(flipped) == [SPACE.plan(found), SPACE.plan(without_pinning[0])]
    flipped = ablated(seen, without_pinning, slower, own_batch)
    assert finalists(flipped) == [SPACE.plan(found), SPACE.plan(own_batch[0])]


def test_of_two_as_good_the_checked_one_wins():
    """Until the other one is checked as well, which is tried for what it spares."""
    half, other = {"precision": "bf16", "workers": 2}, {"precision": "fp16"}
    seen = history(({}, ok(50.0)), (half, ok(100.0)), (other, ok(100.2)))
    rounds = [
        Done(number=n, plan=SPACE.plan(values), purpose=purpose, reason="", result=result)
        for n, (values, purpose, result) in enumerate(
            [
                (half, Purpose.NUMERICS, TrialResult(outcome=Outcome.OK, numerics=passed())),
                *(({}, Purpose.CONFIRM, ok(50.0)) for _ in range(2)),
                *((half, Purpose.CONFIRM, ok(speed)) for speed in (100.0, 100.1)),
                *((other, Purpose.CONFIRM, ok(speed)) for speed in (100.3, 100.4)),
            ],
            start=4,
        )
    ]
    seen = replace(seen, done=(*seen.done, *rounds))
    assert choose(seen, gain=0.01).plan == SPACE.plan(half)
    assert choose(seen, gain=0.01, checks_pass=True).plan == SPACE.plan(other)
    assert choose(seen, gain=0.001).plan == SPACE.plan(other)
    crash = TrialResult(outcome=Outcome.CRASH, error="died")
    in_vain = Done(
        number=20, plan=SPACE.plan(other), purpose=Purpose.NUMERICS, reason="", result=crash
    )
    after = replace(seen, done=(*seen.done, in_vain))
    assert choose(after, gain=0.01, checks_pass=True).plan == SPACE.plan(half)


@pytest.mark.parametrize("has_batch_norm", [True, False])
def test_another_micro_batch_is_remarked_where_norms_are_over_it(has_batch_norm):
    """A global batch keeps the rest of the training as it is."""
    facts = replace(GPT, global_batch_size=64, has_batch_norm=has_batch_norm)
    space = build_space(facts, GPU, Narrowing())
    seen = replace(history(({}, ok(50.0))), space=space)
    told = [
        remark for remark in remarks(space.plan({"batch_size": 32}), seen) if "norms" in remark
    ]
    assert len(told) == has_batch_norm
    assert all("see 32 samples at a time instead of 16" in remark for remark in told)
    assert not any("norms" in remark for remark in remarks(space.baseline, seen))


def test_a_setting_that_failed_alone_is_not_run_again():
    """Whoever proposes it, in whatever company; a failure with others to blame says less."""
    gate = Gate(settings=SearchSettings(budget_s=900.0), hardware=GPU)
    full = {"activation_checkpointing": "full"}
    seen = history(({}, ok(50.0)), ({"precision": "bf16"}, ok(60.0)), (full, CRASH))
    again = SPACE.plan({**full, "precision": "bf16"})
    assert gate.objection(again, seen, PLENTY) is Objection.FAILURE
    several = {"activation_checkpointing": "full", "workers": 2, "pin_memory": True}
    shared = history(({}, ok(50.0)), (several, CRASH))
    assert gate.objection(SPACE.plan(full), shared, PLENTY) is not Objection.FAILURE


def test_a_count_has_another_reason_each_way():
    """Fewer threads are not more of them."""
    threads, buckets = BY_NAME["threads"].reasons, BY_NAME["bucket_mb"].reasons
    assert "fewer threads" in threads.why(1, 2)
    assert "more threads" in threads.why(2, 1)
    assert "smaller messages" in buckets.why(1, 25)
    assert "larger messages" in buckets.why(100, 25)
    batch, accumulation = BY_NAME["batch_size"].memory, BY_NAME["accumulation"].memory
    assert batch.why(8, 16) == accumulation.why(4, 2) is not None
    assert batch.why(16, 8) is accumulation.why(2, 4) is None


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
