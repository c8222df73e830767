"""The whole loop on a replayed machine and a fake clock."""

from dataclasses import replace

import pytest

from autotune.agent.history import SEARCH
from autotune.search_space.space import Narrowing
from autotune.storage.records import RunState
from autotune.trials.cause import Cause
from autotune.trials.result import Outcome, Phase, Purpose, TrialResult
from tests.agent.world import (
    CPU,
    FIRST_STEP_S,
    GPT,
    GPT_MODEL,
    GPU,
    MLP,
    MLP_MODEL,
    Table,
    World,
    failing,
    search_trials,
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


def test_finds_the_best_of_a_gpt_within_ten_minutes(gpt_run):
    """The confirmed winner of the GPT reaches 98 % of the best number anyone measured."""
    winner = gpt_run.record().winner
    assert winner.confirmed
    assert not winner.kept_baseline
    assert GPT_MODEL.throughput(winner.plan)[0] > 0.98 * 410
    assert gpt_run.record().state is RunState.DONE
    assert gpt_run.clock.now() <= 600


def test_finds_the_best_of_a_launch_bound_mlp_at_the_same_batch():
    """CUDA graphs and the fused optimizer are found, and bf16, which hurts here, is dropped."""
    narrowing = Narrowing(fix=(("batch_size", "128"),))
    table = Table(World(MLP_MODEL), MLP, budget_s=600, narrowing=narrowing)
    winner = table.search().run()
    assert winner.plan["compile_mode"] == "reduce-overhead"
    assert winner.plan["optimizer_impl"] == "fused"
    assert winner.plan["precision"] not in ("bf16", "fp16")
    assert winner.speedup.low > 2.5


def test_what_disturbed_a_run_is_kept_with_its_winner():
    """Whoever reads the plan later sees that the machine was not quiet."""
    busy = "other programs used 1.9 of 2 cores as the run began"
    settings = {"max_trials": 3, "disturbances": (busy,)}
    table = Table(World(GPT_MODEL), GPT, budget_s=600, settings=settings)
    winner = table.search().run()
    assert winner.remarks[-1] == busy
    assert table.record().winner == winner


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


def test_a_plan_that_needs_no_less_than_one_that_ran_out_of_memory_is_not_run():
    """After an OOM, which no peak announced, nothing follows that has a larger batch only."""

    def spikes(request):
        return failing(Outcome.OOM) if request.plan["batch_size"] >= 64 else None

    table = Table(World(GPT_MODEL, fail=spikes), GPT, budget_s=900)
    table.search().run()
    trials = search_trials(table)
    ran_out = [trial for trial in trials if trial.outcome is Outcome.OOM]
    assert ran_out
    for first in ran_out:
        for later in trials[trials.index(first) + 1 :]:
            if set(later.plan.diff(first.plan)) == {"batch_size"}:
                assert later.plan["batch_size"] < first.plan["batch_size"]


def test_what_is_expected_of_a_search_trial_is_kept(gpt_run):
    """To be held against its result; of the baseline and of the ending nothing is expected."""
    for record in gpt_run.store.trials(1):
        is_choice = record.purpose in SEARCH and record.purpose is not Purpose.BASELINE
        assert (record.promise is not None) == is_choice
        if record.promise is not None:
            assert 0.0 <= record.promise.chance <= 1.0
            assert record.promise.throughput > 0.0
            assert record.promise.seconds > 1.0


def test_search_trials_race_against_the_best(gpt_run):
    """Search trials may stop below 0.95 of the best; baseline and confirmation run to the end."""
    best = 0.0
    for request, record in zip(gpt_run.world.requests, gpt_run.store.trials(1), strict=True):
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
    table = Table(World(GPT_MODEL, noise=0.2, seed=2), GPT, budget_s=600)
    table.search().run()
    *_, last = (r for r in table.world.requests if r.purpose in SEARCH)
    measured = [r.result.measurement for r in search_trials(table)[:-1] if r.result.measurement]
    best = max(measurement.throughput for measurement in measured)
    assert 0.5 * best < last.interesting_above < 0.91 * best


def test_devices_are_kept_busy_and_the_confirmation_is_alone():
    """Four devices search side by side; a confirming trial never has company."""
    world = World(GPT_MODEL, hardware=replace(GPU, num_devices=4))
    table = Table(world, GPT, budget_s=600)
    assert table.search().run().confirmed
    assert max(count for _, count in table.runner.at_once) == 4
    assert {count for purpose, count in table.runner.at_once if purpose not in SEARCH} == {1}
    plans = [r.plan for r in search_trials(table)]
    assert len(plans) == len(set(plans))


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


def test_expensive_compilation_waits_for_a_budget_that_can_pay():
    """max-autotune is tried in two hours, and left out in five minutes."""
    knobs = Narrowing(knobs=("precision", "compile_mode", "optimizer_impl"))
    short, long = (Table(World(GPT_MODEL), GPT, s, {}, knobs) for s in (300, 7200))
    for table in (short, long):
        table.search().run()
    tried = [{r.plan["compile_mode"] for r in search_trials(table)} for table in (short, long)]
    assert ["max-autotune" in modes for modes in tried] == [False, True]
