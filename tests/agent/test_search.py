"""The whole loop on a replayed machine and a fake clock."""

import threading
from dataclasses import replace

import pytest

from autotune.agent.history import SEARCH
from autotune.errors import DiskFullError, NothingRanError, WorkloadError
from autotune.search_space.plan import Plan
from autotune.search_space.space import Narrowing
from autotune.storage.records import RunState, TrialRecord
from autotune.storage.sql import open_store
from autotune.trials.cause import Cause
from autotune.trials.result import Outcome, Phase, Purpose, TrialResult
from tests.agent.world import (
    CPU,
    FIRST_STEP_S,
    GIB,
    GPT,
    GPT_MODEL,
    GPU,
    MLP,
    MLP_MODEL,
    Table,
    World,
    as_after,
    ok,
    passed,
)


@pytest.mark.parametrize("compile_s", [60.0, 100.0])
def test_a_compilation_that_takes_longer_than_expected_is_learnt_from(compile_s, monkeypatch):
    """The first that is given up says how long others take at least; they get the time."""
    longer = {mode: compile_s for mode in FIRST_STEP_S if mode != "off"}
    monkeypatch.setattr("tests.agent.world.FIRST_STEP_S", {**FIRST_STEP_S, **longer})
    table = Table(World(GPT_MODEL, seed=1), GPT, 1800.0)
    winner = table.search().run()
    assert winner.plan["compile_mode"] != "off"
    given_up = [t.result for t in search_trials(table) if t.outcome is Outcome.CANCELLED]
    assert given_up
    assert all(result.cause is Cause.TOO_SLOW for result in given_up)
    assert sum(result.total_s for result in given_up) < 0.1 * 1800.0


def test_a_compiler_that_hangs_is_left_alone():
    """After two tries; what failed in one mode is expected less of the others."""
    hung = TrialResult(
        outcome=Outcome.TIMEOUT, phase=Phase.FIRST_STEP, error="hung", total_s=600.0
    )
    fail = lambda request: hung if request.plan["compile_mode"] == "default" else None  # noqa: E731
    table = Table(World(GPT_MODEL, fail=fail, seed=1), GPT, 3600.0)
    table.search().run()
    hanging = [t for t in search_trials(table) if t.plan["compile_mode"] == "default"]
    assert 0 < sum(t.result.total_s for t in hanging) < 0.1 * 3600.0


def search_trials(table):
    return [r for r in table.store.trials(1) if r.purpose in SEARCH]


def key(record: TrialRecord):
    return record.number, record.plan, record.purpose, record.reason, record.outcome


def failing(outcome: Outcome, **values):
    return TrialResult(outcome=outcome, error="it went wrong", total_s=3.0, **values)


def test_finds_the_best_of_a_gpt_within_ten_minutes():
    """The confirmed winner of the GPT reaches 98 % of the best number anyone measured."""
    table = Table(World(GPT_MODEL), GPT, budget_s=600)
    winner = table.search().run()
    assert winner.confirmed
    assert not winner.kept_baseline
    assert GPT_MODEL.throughput(winner.plan)[0] > 0.98 * 410
    assert table.record().state is RunState.DONE
    assert table.record().winner == winner


def test_finds_the_best_of_a_launch_bound_mlp_at_the_same_batch():
    """CUDA graphs and the fused optimizer are found, and bf16, which hurts here, is dropped."""
    narrowing = Narrowing(fix=(("batch_size", "128"),))
    table = Table(World(MLP_MODEL), MLP, budget_s=600, narrowing=narrowing)
    winner = table.search().run()
    assert winner.plan["compile_mode"] == "reduce-overhead"
    assert winner.plan["optimizer_impl"] == "fused"
    assert winner.plan["precision"] not in ("bf16", "fp16")
    assert winner.speedup.low > 2.5


def test_an_input_bound_workload_gets_workers():
    """Where the loop waits for data, the winner loads in parallel."""
    slow_loader = replace(GPT_MODEL, loader_samples_per_s=60.0)
    winner = Table(World(slow_loader), GPT, budget_s=600).search().run()
    assert winner.plan["workers"] >= 8


def test_on_a_cpu_no_worker_is_tried_while_the_loop_never_waits():
    """Loader knobs stay out as long as waiting for data costs less than two percent.

    Fewer workers than a sampled plan has are one of its neighbours.
    """
    table = Table(World(GPT_MODEL, hardware=CPU), GPT, budget_s=300)
    table.search().run()
    most, guided = 0, 0
    for trial in search_trials(table):
        workers = int(trial.plan["workers"])
        if trial.purpose is Purpose.SAMPLER:
            most = max(most, workers)
        else:
            assert workers <= most
            guided += 1
    assert guided > 5


@pytest.fixture(scope="module")
def whole_run():
    """A finished run, and the budget used when each trial ended."""
    table, used = Table(World(GPT_MODEL), GPT, budget_s=300, settings={}), []
    table.observer.on_finish = lambda *_: used.append(table.record().used_s)
    table.search().run()
    return table, used


@pytest.mark.parametrize("ended", [1, 3, 8, 10, 12, 13, 15])
def test_a_killed_run_goes_on_as_if_nothing_had_happened(whole_run, ended):
    """From any prefix of the trials the same decisions follow, in search and confirmation."""
    whole, used = whole_run
    expected = [key(record) for record in whole.store.trials(1)]
    assert len(expected) > ended

    world = World(GPT_MODEL, requests=whole.world.requests[:ended])
    store = as_after(ended, whole.store, used[ended - 1])
    resumed = Table(world, GPT, 300, settings={}, store=store)
    assert resumed.search().run() == whole.record().winner
    assert [key(record) for record in resumed.store.trials(1)] == expected


def test_a_run_in_sqlite_goes_on_where_it_stopped(tmp_path):
    """What the real store gives back is enough to go on, the in-flight trial is run again."""
    store = open_store(str(tmp_path / "autotune.db"))
    world = World(GPT_MODEL)
    stopped = threading.Event()
    first = Table(world, GPT, store=store, is_stopped=stopped.is_set)
    first.observer.on_submit = lambda number, proposal: number == 5 and stopped.set()
    first.search().run()
    assert first.record().state is RunState.INTERRUPTED
    before = [r for r in store.trials(first.run.id) if r.outcome is not Outcome.CANCELLED]

    store.resume_run(first.run.id, budget_s=900, driver="host:2:0")
    winner = Table(world, GPT, store=store).search().run()
    assert winner.confirmed
    records = store.trials(first.run.id)
    assert [key(r) for r in records[: len(before)]] == [key(r) for r in before]
    assert records[len(before) + 1].plan == records[len(before)].plan
    store.close()


@pytest.mark.parametrize(("model", "facts"), [(GPT_MODEL, GPT), (MLP_MODEL, MLP)])
@pytest.mark.parametrize("hardware", [GPU, CPU])
def test_no_plan_is_measured_twice_except_to_confirm(model, facts, hardware):
    """Search and ablation never repeat a plan, whatever its outcome was."""
    table = Table(World(model, hardware=hardware), facts, budget_s=900, settings={})
    table.search().run()
    plans = [r.plan for r in table.store.trials(1) if r.purpose in {*SEARCH, Purpose.ABLATE}]
    assert len(plans) == len(set(plans))


def test_a_plan_that_needs_no_less_than_one_that_ran_out_of_memory_is_not_run():
    """After an OOM no plan follows that differs from it only in a larger batch."""
    small = replace(GPU, device_memory_bytes=40 * GIB)
    table = Table(World(GPT_MODEL, hardware=small), GPT, budget_s=900, settings={})
    table.search().run()
    trials = search_trials(table)
    for index, record in enumerate(trials):
        if record.outcome is not Outcome.OOM:
            continue
        larger = [
            later
            for later in trials[index + 1 :]
            if set(later.plan.diff(record.plan)) == {"batch_size"}
            and later.plan["batch_size"] > record.plan["batch_size"]
        ]
        assert not larger


def test_a_baseline_out_of_memory_is_halved_until_it_runs():
    """The largest half of the user's batch that runs is compared with, and the user is told."""
    small = replace(GPU, device_memory_bytes=12 * GIB)
    table = Table(World(GPT_MODEL, hardware=small), GPT, budget_s=600)
    winner = table.search().run()
    baselines = [r for r in table.store.trials(1) if r.purpose is Purpose.BASELINE]
    assert [r.plan["batch_size"] for r in baselines] == [16, 8, 4]
    assert any("batch_size=16 ran out of memory" in remark for remark in winner.remarks)


def test_a_halved_baseline_keeps_the_global_batch():
    """Accumulation doubles when the batch is halved, so the training stays the same."""
    small = replace(GPU, device_memory_bytes=17 * GIB)
    facts = replace(GPT, global_batch_size=64)
    table = Table(World(GPT_MODEL, hardware=small), facts, budget_s=600)
    table.search().run()
    trials = [r.plan for r in table.store.trials(1)]
    assert {p["batch_size"] * p["accumulation"] for p in trials} == {64}
    assert [p["batch_size"] for p in trials[:2]] == [16, 8]


def test_a_baseline_that_runs_only_with_a_smaller_batch_is_found_whatever_trials_may_be():
    """`--trials 1` is one answer, not none."""
    small = replace(GPU, device_memory_bytes=12 * GIB)
    table = Table(World(GPT_MODEL, hardware=small), GPT, settings={"max_trials": 1})
    assert table.search().run().kept_baseline
    assert [r.plan["batch_size"] for r in search_trials(table)] == [16, 8, 4]


def test_a_fixed_batch_that_does_not_fit_ends_the_run():
    """`--fix batch_size` is not overruled; the message says what to do."""
    small = replace(GPU, device_memory_bytes=12 * GIB)
    narrowing = Narrowing(fix=(("batch_size", "16"),))
    table = Table(World(GPT_MODEL, hardware=small), GPT, narrowing=narrowing)
    with pytest.raises(NothingRanError, match="batch_size=16, and batch_size may not vary"):
        table.search().run()
    assert table.record().state is RunState.FAILED


@pytest.mark.parametrize(
    "outcome", [Outcome.CRASH, Outcome.INVALID, Outcome.COMPILE_ERROR, Outcome.DIVERGED]
)
def test_a_baseline_that_fails_in_the_users_code_stops_the_run(outcome):
    """The user gets their own traceback, and the stored run says why it failed."""
    result = failing(outcome, traceback="File model.py, line 3", phase=Phase.FIRST_STEP)
    table = Table(World(GPT_MODEL, fail=lambda request: result), GPT)
    with pytest.raises(WorkloadError, match="it went wrong") as raised:
        table.search().run()
    assert raised.value.user_traceback == "File model.py, line 3"
    assert table.record().state is RunState.FAILED
    assert "it went wrong" in table.record().stop_reason


def test_a_baseline_that_takes_too_long_names_phase_time_and_budget():
    """A timeout before any measurement says where, after how long, and what budget would do."""
    result = replace(failing(Outcome.TIMEOUT, phase=Phase.WARM_UP), total_s=120.0)
    table = Table(World(GPT_MODEL, fail=lambda request: result), GPT, budget_s=300)
    with pytest.raises(NothingRanError, match=r"phase warm up after 120 s .* --budget 720s"):
        table.search().run()


def test_a_budget_shorter_than_the_baseline_says_so():
    """A baseline cut off by the budget ends the run with the budget to use."""
    world = World(GPT_MODEL, trial_s=50.0)
    with pytest.raises(NothingRanError, match=r"the budget ended.*--budget 162s"):
        Table(world, GPT, budget_s=30).search().run()


def overrunning(first, trial_s, narrowing):
    """A run of 45 s whose search trials never end from number `first` on."""

    def for_ever(request):
        overruns = request.purpose in SEARCH and request.number >= first
        return ok(300.0, total_s=1000.0) if overruns else None

    large = replace(CPU, device_memory_bytes=GPU.device_memory_bytes)
    world = World(GPT_MODEL, hardware=large, trial_s=trial_s, fail=for_ever)
    table = Table(world, GPT, 45.0, narrowing=narrowing)
    # A device is free again a moment after its trial was killed.
    table.observer.on_finish = lambda *_: table.clock.sleep(0.5)
    return table


def test_a_trial_cut_short_for_the_ending_says_so_and_is_not_run_again():
    """Its time was that of the search, not the budget, of which a second try could have enough."""
    table = overrunning(2, 5.5, Narrowing(knobs=("precision",)))
    table.search().run()
    cut, *later = table.store.trials(1)[1:]
    assert (cut.outcome, cut.result.cause) == (Outcome.CANCELLED, Cause.SEARCH_ENDED)
    assert cut.plan not in [record.plan for record in later]


def test_time_to_find_a_plan_is_kept_before_time_to_confirm_it_well():
    """Where the start took a third of the budget, more rounds would leave none to confirm."""
    world = World(GPT_MODEL, hardware=CPU, trial_s=4.0)
    table = Table(world, GPT, 59.0, narrowing=Narrowing(fix=(("compile_mode", "off"),)))
    table.observer.on_submit = lambda number, _: number == 1 and table.clock.sleep(18.0)
    assert table.search().run().confirmed
    assert len(search_trials(table)) > 2


def test_what_was_found_is_confirmed_although_a_trial_was_cut_short():
    """The time kept for the ending is not given back to the search that used up its own."""
    table = overrunning(3, 3.0, Narrowing(fix=(("compile_mode", "off"),)))
    winner = table.search().run()
    cut, *later = table.store.trials(1)[2:]
    assert cut.outcome is Outcome.CANCELLED
    assert later
    assert not any(r.purpose in SEARCH for r in later)
    assert winner.confirmed


@pytest.mark.parametrize("purpose", [Purpose.BASELINE, Purpose.PRESET, Purpose.CONFIRM])
def test_one_failure_of_the_infrastructure_is_retried(purpose):
    """`infra` says nothing about a plan, so the same plan runs again and the run goes on."""
    failed = []

    def fail_once(request):
        if request.purpose is purpose and not failed:
            failed.append(request)
            return failing(Outcome.INFRA)
        return None

    table = Table(World(GPT_MODEL, fail=fail_once), GPT, budget_s=600)
    assert table.search().run().confirmed
    again = [r for r in table.world.requests if r.plan == failed[0].plan]
    assert len(again) > 1


def test_a_machine_that_always_fails_ends_the_run():
    """Two failures of the infrastructure at the baseline are enough."""
    table = Table(World(GPT_MODEL, fail=lambda request: failing(Outcome.INFRA)), GPT)
    with pytest.raises(NothingRanError, match="failed the baseline 2 times"):
        table.search().run()
    assert len(table.store.trials(1)) == 2


def test_a_full_disk_ends_the_run_and_blames_no_plan():
    """The next trials would end so, too. The same run goes on when there is room again."""
    full = failing(Outcome.INFRA, cause=Cause.DISK_FULL)
    table = Table(
        World(GPT_MODEL, fail=lambda request: full if request.number == 4 else None), GPT
    )
    with pytest.raises(DiskFullError, match="free some space where trials write"):
        table.search().run()
    assert table.record().state is RunState.RUNNING
    again = Table(World(GPT_MODEL), GPT, store=table.store)
    assert again.search().run().confirmed
    failed = next(r for r in table.store.trials(1) if r.outcome is Outcome.INFRA)
    plans = [r.plan for r in table.store.trials(1) if r.purpose in SEARCH]
    assert plans.count(failed.plan) == 2


def test_what_ended_together_with_a_full_disk_is_kept():
    """Trials on three devices, the first of which finds the disk full."""
    crash = failing(Outcome.CRASH)
    full = failing(Outcome.INFRA, cause=Cause.DISK_FULL)
    ends = {2: full, 3: crash, 4: crash}
    three = replace(GPU, num_devices=3)
    table = Table(World(GPT_MODEL, hardware=three, fail=lambda r: ends.get(r.number)), GPT)
    with pytest.raises(DiskFullError, match="free some space"):
        table.search().run()
    outcomes = [trial.outcome for trial in table.store.trials(1)]
    assert outcomes == [Outcome.OK, Outcome.INFRA, Outcome.CRASH, Outcome.CRASH]


def test_search_trials_race_against_the_best():
    """Search trials may stop below 0.95 of the best; baseline and confirmation run to the end."""
    table = Table(World(GPT_MODEL), GPT, budget_s=600)
    table.search().run()
    best = 0.0
    for request, record in zip(table.world.requests, table.store.trials(1), strict=True):
        if request.purpose in SEARCH and request.purpose is not Purpose.BASELINE:
            assert request.interesting_above == pytest.approx(0.95 * best)
        else:
            assert request.interesting_above is None
        measurement = record.result.measurement
        fits = measurement and measurement.memory_bytes <= 0.95 * GPU.device_memory_bytes
        if request.purpose in SEARCH and fits and not measurement.raced:
            best = max(best, measurement.throughput)


def test_a_race_allows_for_what_processes_differ_by():
    """On a machine that others disturb, one unlucky process does not show a plan to be slow."""
    table = Table(World(GPT_MODEL, noise=0.2), GPT, budget_s=600)
    table.search().run()
    *_, last = (r for r in table.world.requests if r.purpose in SEARCH)
    measured = [r.result.measurement for r in search_trials(table)[:-1] if r.result.measurement]
    best = max(measurement.throughput for measurement in measured)
    assert 0.5 * best < last.interesting_above < 0.91 * best


def test_the_winner_leaves_memory_headroom():
    """A plan above 95 % of the memory runs, but does not win."""
    table = Table(World(GPT_MODEL), GPT, settings={"max_memory_bytes": 34 * GIB})
    winner = table.search().run()
    ran = [r.result.measurement for r in search_trials(table) if r.result.measurement]
    fastest = max(ran, key=lambda measurement: measurement.throughput)
    assert fastest.memory_bytes > 0.95 * 34 * GIB >= winner.own.memory_bytes
    assert all(r.memory_limit_bytes == 34 * GIB for r in table.world.requests)


def test_a_plan_that_fails_the_numerics_check_is_passed_over():
    """bf16 that trains differently does not win, and the user reads why."""

    def wrong_in_bf16(request):
        if request.purpose is Purpose.NUMERICS and request.plan["precision"] == "bf16":
            return TrialResult(outcome=Outcome.OK, numerics=passed(worst=0.5), total_s=8.0)
        return None

    winner = Table(World(GPT_MODEL, fail=wrong_in_bf16), GPT, budget_s=1800).search().run()
    assert winner.plan["precision"] != "bf16"
    assert any("gradients 50.0% away from eager fp32" in remark for remark in winner.remarks)


def test_the_numerics_check_compares_with_the_eager_fp32_twin():
    """The reference is the baseline at the winner's batch, eager and in fp32."""
    table = Table(World(GPT_MODEL), GPT, budget_s=600)
    winner = table.search().run()
    checks = [r for r in table.world.requests if r.purpose is Purpose.NUMERICS]
    assert any(r.plan["precision"] == winner.plan["precision"] for r in checks)
    for request in checks:
        twin = request.compare_with
        assert twin["compile_mode"] == "off"
        assert twin["precision"] == "fp32"
        assert twin["batch_size"] == request.plan["batch_size"]
        assert "compile_scope" not in twin


def test_a_check_out_of_memory_is_repeated_at_the_baselines_batch():
    """Eager fp32 may not fit where the winner does; then the smaller batch is compared."""

    def eager_does_not_fit(request):
        if request.purpose is Purpose.NUMERICS and request.plan["batch_size"] > 16:
            return failing(Outcome.OOM)
        return None

    table = Table(World(GPT_MODEL, fail=eager_does_not_fit), GPT, budget_s=900)
    winner = table.search().run()
    assert winner.plan["batch_size"] > 16
    assert any("by itself makes 1.0%), at batch 16" in remark for remark in winner.remarks)


def test_a_finalist_that_fails_when_run_again_does_not_win():
    """One crash in the confirmation disqualifies, and another finalist wins."""
    crashed = []

    def crash_the_first_finalist(request):
        if request.purpose is Purpose.CONFIRM and "compile_scope" in request.plan:
            crashed.append(crashed[0] if crashed else request.plan)
            if request.plan == crashed[0]:
                return failing(Outcome.CRASH)
        return None

    winner = Table(World(GPT_MODEL, fail=crash_the_first_finalist), GPT).search().run()
    assert winner.confirmed
    assert winner.plan != crashed[0]
    assert any("it failed when it was run again (crash" in remark for remark in winner.remarks)


def test_an_ablation_that_beats_the_winner_is_confirmed_and_wins():
    """Two settings may disturb each other, which shows when one is flipped back."""
    better = []

    def fast_without(request):
        if request.purpose is Purpose.ABLATE and not better:
            better.append(request.plan)
        is_measured = request.purpose is not Purpose.NUMERICS
        return ok(900.0, total_s=6.0) if request.plan in better and is_measured else None

    table = Table(World(GPT_MODEL, fail=fast_without), GPT, budget_s=3600)
    winner = table.search().run()
    assert (winner.plan, winner.confirmed) == (better[0], True)
    assert winner.own.throughput == pytest.approx(900.0, rel=0.01)


def test_a_batch_that_turns_out_to_be_worth_nothing_is_given_back():
    """A larger batch changes the training: where the user's own is as fast after all, it wins."""
    own_batch = []

    def as_fast_with_the_own_batch(request):
        plan = request.plan
        if request.purpose is Purpose.ABLATE and plan["batch_size"] == GPT.batch_size:
            own_batch.append(plan)
        if plan not in own_batch or request.purpose is Purpose.NUMERICS:
            return None
        twin = Plan.of({**plan.values, "batch_size": 128})
        return ok(0.998 * GPT_MODEL.throughput(twin)[0], memory=GPT_MODEL.memory(plan))

    world = World(GPT_MODEL, noise=0.001, fail=as_fast_with_the_own_batch)
    table = Table(world, GPT, budget_s=3600)
    winner = table.search().run()
    assert winner.plan in own_batch
    assert winner.confirmed
    assert not any("the training changes" in remark for remark in winner.remarks)


def test_the_confirmation_is_interleaved_and_ends():
    """Baseline and finalists take turns, five rounds at most however wide the interval is."""
    table = Table(World(GPT_MODEL, noise=0.03), GPT, budget_s=7200)
    winner = table.search().run()
    plans = [r.plan for r in table.store.trials(1) if r.purpose is Purpose.CONFIRM]
    field = list(dict.fromkeys(plans))
    assert field[0] == table.space.baseline
    assert plans == field * 5
    assert winner.plan in field


def test_devices_are_kept_busy_and_the_confirmation_is_alone():
    """Four devices search side by side; a confirming trial never has company."""
    world = World(GPT_MODEL, hardware=replace(GPU, num_devices=4))
    table = Table(world, GPT, budget_s=600)
    assert table.search().run().confirmed
    assert max(count for _, count in table.runner.at_once) == 4
    assert {count for purpose, count in table.runner.at_once if purpose not in SEARCH} == {1}
    plans = [r.plan for r in search_trials(table)]
    assert len(plans) == len(set(plans))


def test_a_baseline_beyond_the_memory_allowed_is_named():
    """With what it needs and the limit; silence would leave a plan that breaks it."""
    cap = {"max_memory_bytes": 2 * GIB}
    winner = Table(World(GPT_MODEL), GPT, settings=cap).search().run()
    assert winner.kept_baseline
    assert "your own configuration does not fit either: it needs" in winner.remarks[0]


def test_a_comparison_too_uncertain_to_tell_says_so():
    """Instead of an interval from a half to twice as fast without a word."""
    winner = Table(World(MLP_MODEL, noise=1.5, seed=0), MLP, budget_s=200).search().run()
    assert winner.kept_baseline
    assert "this is uncertain, as processes of one plan differ here" in winner.remarks[0]


def test_the_stop_flag_ends_the_run_with_the_best_so_far():
    """One Ctrl-C cancels what runs, confirms nothing, and keeps the best as not confirmed."""
    stopped = threading.Event()
    table = Table(World(GPT_MODEL), GPT, is_stopped=stopped.is_set)
    table.observer.on_submit = lambda number, proposal: number == 4 and stopped.set()
    winner = table.search().run()
    assert not winner.confirmed
    assert winner.speedup is None
    assert winner.own.throughput > 300
    assert table.store.trials(1)[-1].outcome is Outcome.CANCELLED
    assert table.record().state is RunState.INTERRUPTED
    assert not any(r.purpose is Purpose.CONFIRM for r in table.store.trials(1))


def test_the_stop_flag_before_any_measurement_concludes_nothing():
    """Stopped during the baseline there is no winner, and no error either."""
    stopped = threading.Event()
    table = Table(World(GPT_MODEL), GPT, is_stopped=stopped.is_set)
    table.observer.on_submit = lambda number, proposal: stopped.set()
    assert table.search().run() is None
    assert table.record().state is RunState.INTERRUPTED


def test_max_trials_counts_search_trials_only():
    """`--trials 4` runs four search trials, baseline included, and still confirms."""
    table = Table(World(GPT_MODEL), GPT, settings={"max_trials": 4})
    winner = table.search().run()
    assert len(search_trials(table)) == 4
    assert winner.confirmed
    assert table.record().stop_reason.startswith("the 4 trials of --trials were run")


def test_a_space_of_few_plans_is_exhausted():
    """When every plan was tried the run ends early and says so."""
    narrowing = Narrowing(knobs=("precision", "optimizer_impl"))
    table = Table(World(GPT_MODEL), GPT, 7200, settings={}, narrowing=narrowing)
    table.search().run()
    assert len(search_trials(table)) <= 12
    assert table.record().used_s < 1000


def test_an_interesting_error_of_ours_is_stored_and_not_hidden():
    """A bug of ours ends the run as failed and reaches the caller."""

    def broken(request):
        raise ZeroDivisionError("a bug")

    table = Table(World(GPT_MODEL, fail=broken), GPT)
    with pytest.raises(ZeroDivisionError):
        table.search().run()
    assert table.record().state is RunState.FAILED


def test_a_changed_batch_names_the_learning_rate_rule():
    """A larger batch changes the training, so the user reads how to scale the learning rate."""
    winner = Table(World(GPT_MODEL), GPT, budget_s=600).search().run()
    assert any("square-root rule" in remark for remark in winner.remarks)


def test_expensive_compilation_waits_for_a_budget_that_can_pay():
    """max-autotune is tried in two hours, and left out with a word in five minutes."""
    tried = {}
    for budget_s in (300, 7200):
        table = Table(World(GPT_MODEL), GPT, budget_s=budget_s, settings={})
        table.search().run()
        modes = {r.plan["compile_mode"] for r in search_trials(table)}
        tried[budget_s] = "max-autotune" in modes
        if budget_s == 300:
            assert "not tried for lack of time" in table.record().stop_reason
    assert tried == {300: False, 7200: True}


def test_each_setting_of_the_winner_is_explained():
    """Every changed knob has a line, most of them a measured worth."""
    winner = Table(World(GPT_MODEL), GPT, budget_s=1800).search().run()
    baseline = Table(World(GPT_MODEL), GPT).space.baseline
    changed = {n for n in winner.plan.diff(baseline) if n in baseline}
    assert changed <= set(winner.changes)
    assert "over compile_mode=off" in winner.changes["compile_mode"]


def test_a_setting_of_another_setting_is_flipped_back_as_well():
    """The baseline compiles nothing, so it pads nothing: it goes back to what compiling brings."""
    padded = {**GPT_MODEL.speeds, "shape_padding": {"always": 1.1}}
    world = World(replace(GPT_MODEL, speeds=padded))
    table = Table(world, replace(GPT, uneven_share=0.3), budget_s=1800)
    winner = table.search().run()
    assert winner.plan["shape_padding"] == "always"
    assert "over shape_padding=measured" in winner.changes["shape_padding"]
    ablated = [r.plan for r in table.store.trials(1) if r.purpose is Purpose.ABLATE]
    assert any(plan.get("shape_padding", "") == "measured" for plan in ablated)
