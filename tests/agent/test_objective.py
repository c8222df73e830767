"""What is looked for decides who wins, what is tried and when a trial may be cut short."""

import math
from dataclasses import replace

import pytest

from autotune.agent.conclusion.conclude import conclude
from autotune.agent.done import Done
from autotune.agent.forecast.memory import expected_peak
from autotune.agent.forecast.prospects import Prospects, cannot_win
from autotune.agent.forecast.speed import Outlook
from autotune.agent.history import SEARCH, History
from autotune.agent.objectives.least_memory import LeastMemory
from autotune.agent.objectives.objective import Expected, Figures
from autotune.agent.objectives.stored import objective_from
from autotune.agent.objectives.throughput import FASTEST
from autotune.agent.objectives.time_to_train import TimeToTrain, count_in_words
from autotune.agent.preview import first_trials
from autotune.agent.proposers.earlier import Found, compiled_earlier, found_earlier
from autotune.agent.proposers.gate import Gate, Objection, TimeLeft
from autotune.agent.proposers.promising import Promising
from autotune.agent.proposers.sampler import Sampler, _axes
from autotune.agent.request import TuneRequest
from autotune.agent.session import _key
from autotune.agent.settings import SearchSettings
from autotune.agent.startup import StartUps
from autotune.search_space.space import Narrowing, build_space
from autotune.storage.sql import open_store
from autotune.storage.testing import make_measurement, make_run
from autotune.trials.result import Purpose
from tests.agent.world import CPU, GIB, GPT, GPT_MODEL, GPU, Table, World, ok

SPACE = build_space(GPT, GPU)
PLENTY = TimeLeft(search_s=1e6, total_s=1e6)
COMPILED = {"compile_mode": "default"}
BASELINE = Figures(throughput=50.0, start_s=1.0, memory_bytes=20 * GIB)
COMPILED_FIRST_STEP_S = 10.0  # of `default` in the replayed world


def history(objective, *trials, earlier=()):
    """Return a history of `(changes, result)` or `(changes, result, purpose)`."""
    done = []
    for number, (changes, result, *purpose) in enumerate(trials, 1):
        usual = Purpose.BASELINE if number == 1 else Purpose.PRESET
        plan = SPACE.plan(changes)
        done.append(
            Done(
                number=number,
                plan=plan,
                purpose=purpose[0] if purpose else usual,
                reason="",
                result=result,
            )
        )
    return History(
        space=SPACE,
        memory_cap_bytes=133 * GIB,
        done=tuple(done),
        objective=objective,
        compiled_earlier=tuple(earlier),
    )


def run(objective, budget_s=600, world=None, **kwargs):
    settings = {"max_trials": 15, "objective": objective}
    table = Table(world or World(GPT_MODEL), GPT, budget_s, settings=settings, **kwargs)
    return table, table.search().run()


def changes(proposals):
    return [{k: v for k, (v, _) in p.plan.diff(SPACE.baseline).items()} for p in proposals]


# The value


@pytest.mark.parametrize(
    "objective",
    [
        FASTEST,
        TimeToTrain(samples=10_000_000),
        LeastMemory(min_throughput=250.0),
        LeastMemory(min_share=0.9),
    ],
)
def test_an_objective_is_what_it_was_written_down_as(objective):
    """What a store keeps of it gives it back."""
    assert objective_from(objective.to_dict()) == objective


def test_runs_of_before_there_was_a_choice_looked_for_throughput():
    """Their options say nothing of it."""
    assert objective_from(make_run().objective) == FASTEST


def test_compiling_pays_from_a_number_of_samples_on():
    """Twice as fast after a minute of compiling: sooner through from 6000 samples on."""
    own = Figures(throughput=100.0, start_s=61.0)
    for samples, is_better in ((5_900, False), (6_100, True)):
        objective = TimeToTrain(samples=samples)
        better = objective.value(own, BASELINE) > objective.value(BASELINE, BASELINE)
        assert better is objective.is_better(own, BASELINE, 2.0) is is_better
    # The low end of the speed-up's interval decides.
    assert not TimeToTrain(samples=6_100).is_better(own, BASELINE, 1.9)


def test_the_value_of_memory_counts_only_for_plans_that_are_fast_enough():
    """A smaller plan that is too slow is worth nothing, nor is one of unknown memory."""
    objective = LeastMemory(min_throughput=40.0)
    small = Figures(throughput=41.0, memory_bytes=10 * GIB)
    assert objective.value(small, BASELINE) == 2 * objective.value(BASELINE, BASELINE)
    assert objective.value(replace(small, throughput=39.0), BASELINE) == 0.0
    assert objective.value(replace(small, memory_bytes=None), BASELINE) == 0.0
    assert LeastMemory(min_share=0.9).value(small, BASELINE) == 0.0


@pytest.mark.parametrize(
    ("objective", "threshold"),
    [
        (FASTEST, 0.95 * 100.0),
        # 10 s of start-up and 10 s of steps: who needs more than 20 s / 0.95 for steps is late.
        (TimeToTrain(samples=1000), 0.95 * 50.0),
        (LeastMemory(min_throughput=80.0), 0.95 * 80.0),
        # Nothing is fast enough yet: what is faster than the best is interesting.
        (LeastMemory(min_throughput=300.0), 0.95 * 100.0),
    ],
)
def test_a_trial_is_cut_short_only_when_it_cannot_win(objective, threshold):
    """However short its start-up, and however small it is."""
    best = Figures(throughput=100.0, start_s=10.0, memory_bytes=GIB)
    assert objective.interesting_above(best, BASELINE, 0.95) == pytest.approx(threshold)


def test_one_device_is_asked_for_its_part():
    """Scouts on one of four devices have a quarter of the samples, and of the throughput."""
    assert TimeToTrain(samples=1000).for_part(0.25) == TimeToTrain(samples=250)
    assert LeastMemory(min_throughput=80.0).for_part(0.25) == LeastMemory(min_throughput=20.0)
    assert LeastMemory(min_share=0.9).for_part(0.25) == LeastMemory(min_share=0.9)


def test_start_up_makes_an_expected_speed_matter_less():
    """Half of the time is start-up, so half of the doubt about speed is left."""
    expected = Expected(speed=Outlook(log=math.log(100.0), spread=0.2), start_s=10.0)
    weighed = TimeToTrain(samples=1000).weigh(expected, BASELINE)
    assert weighed.log == pytest.approx(-math.log(20.0))
    assert weighed.spread == pytest.approx(0.1)


def test_numbers_of_samples_are_said_as_people_say_them():
    """Millions and billions by their letter, less in full."""
    counts = [2_000, 10_000_000, 1_500_000_000, 10_500_000]
    assert [count_in_words(n) for n in counts] == ["2,000", "10M", "1.5B", "10.5M"]


# The start-up


def process(plan, first_step_s):
    return SPACE.plan(plan), make_measurement(100.0, first_step_s=first_step_s)


def test_a_compiled_plan_starts_as_its_first_process_did():
    """Later processes find kernels in the compiler's cache, which says nothing of a cold start."""
    starts = StartUps([process(COMPILED, 30.0), process(COMPILED, 2.0), process(COMPILED, 3.0)])
    assert starts.of(SPACE.plan(COMPILED)) == pytest.approx(30.5)


def test_a_plan_whose_program_was_compiled_before_starts_as_that_one_did():
    """Another batch or loader finds the kernels of the first; another precision compiles anew."""
    loaded, other = {**COMPILED, "workers": 2}, {**COMPILED, "precision": "bf16"}
    starts = StartUps([process(COMPILED, 30.0), process(loaded, 2.0), process(other, 20.0)])
    assert starts.of(SPACE.plan(loaded)) == pytest.approx(30.5)
    assert starts.of(SPACE.plan(other)) == pytest.approx(20.5)


def test_what_earlier_runs_compiled_counts_as_well():
    """The cache outlives a run, so the second run of a workload may see no compilation at all."""
    starts = StartUps([process(COMPILED, 2.0)], earlier=[process(COMPILED, 30.0)])
    assert starts.of(SPACE.plan(COMPILED)) == pytest.approx(30.5)
    assert StartUps([], earlier=[process(COMPILED, 30.0)]).of(SPACE.plan(COMPILED)) is None


def test_a_plan_that_compiles_nothing_starts_as_its_shortest_process_did():
    """The first process of a run reads files for the first time, whatever its plan is."""
    assert StartUps([process({}, 9.0), process({}, 1.0)]).of(SPACE.baseline) == pytest.approx(1.5)


def test_earlier_runs_of_the_workload_tell_what_compiling_takes(tmp_path):
    """Only those of the same workload on an equal machine, on as many devices."""
    store = open_store(str(tmp_path / "autotune.db"))
    facts = {"hardware": GPU.to_dict(), "baseline": SPACE.baseline}
    plan = SPACE.plan(COMPILED)
    for number, workload in enumerate(("abc", "other"), 1):
        path = f"/w/{workload}.py"
        old = store.create_run(make_run(**facts, workload_hash=workload, workload_path=path))
        store.start_trial(old.id, 1, plan, Purpose.PRESET, "", "1.log")
        store.finish_trial(old.id, 1, ok(60.0, first_step_s=30.0 * number), used_s=1.0)
    new = store.create_run(make_run(**facts, workload_path="/w/abc.py"))
    ((found, measurement),) = compiled_earlier(store, new)
    assert (found, measurement.first_step_s) == (plan, 30.0)
    store.close()


# Whole runs


def test_for_few_samples_nothing_is_compiled():
    """Where compiling takes longer than the training, it is not even tried."""
    table, winner = run(TimeToTrain(samples=1000))
    assert winner.plan["compile_mode"] == "off"
    assert winner.own.train_s < winner.baseline.train_s
    assert {r.plan["compile_mode"] for r in table.store.trials(1)} == {"off"}


def test_for_many_samples_the_fastest_wins():
    """Seconds of compiling are nothing beside hours, and the user reads both times."""
    _, winner = run(TimeToTrain(samples=10_000_000))
    assert winner.plan["compile_mode"] != "off"
    assert winner.own.start_s > COMPILED_FIRST_STEP_S
    steps_s = 10_000_000 / winner.own.throughput
    assert winner.own.train_s == pytest.approx(winner.own.start_s + steps_s)
    assert winner.baseline.train_s == pytest.approx(
        winner.baseline.start_s + 10_000_000 / winner.baseline.throughput, rel=0.02
    )
    assert winner.remarks[0].endswith("instead of 1.5 s")
    assert "instead of 52h" in winner.remarks[0]
    assert "for 10M samples" in winner.remarks[0]


def test_confirmations_do_not_hide_what_compiling_took():
    """Warm processes of the winner leave its start-up what the cold one showed."""
    table, winner = run(TimeToTrain(samples=10_000_000))
    again = [
        r.result.measurement.first_step_s
        for r in table.store.trials(1)
        if r.purpose is Purpose.CONFIRM and r.plan == winner.plan
    ]
    assert max(again) < COMPILED_FIRST_STEP_S < winner.own.start_s


def test_where_compiling_is_all_there_is_few_samples_keep_the_baseline():
    """Compiling made it faster, and did not pay: keeping the baseline is the answer."""
    narrowing = Narrowing(knobs=("compile_mode", "compile_scope"))
    table, winner = run(TimeToTrain(samples=500), narrowing=narrowing)
    assert winner.kept_baseline
    assert winner.own.train_s == winner.baseline.train_s == pytest.approx(1.5 + 500 / 53, rel=0.1)
    speeds = [r.result.measurement.throughput for r in table.store.trials(1)]
    assert max(speeds) > 1.1 * winner.own.throughput
    assert "for 500 samples, 1.5 s of it start-up" in winner.remarks[0]


def test_where_another_plan_starts_too_slowly_the_user_reads_so():
    """It was measured, and is twice as fast, but not in time."""
    slow = ({"precision": "bf16"}, ok(100.0, first_step_s=20.0))
    winner = conclude(history(TimeToTrain(samples=500), ({}, ok(50.0)), slow), 0.01)
    assert winner.kept_baseline
    assert any("would train on 500 samples in less time" in line for line in winner.remarks)


def test_a_faster_plan_that_is_through_later_is_not_chosen():
    """Confirmed as faster, but compiled for longer than that saves: the baseline is kept."""
    confirm = Purpose.CONFIRM
    seen = history(
        TimeToTrain(samples=1000),
        ({}, ok(50.0)),
        (COMPILED, ok(60.0, first_step_s=4.0)),
        *(
            trial
            for _ in range(2)
            for trial in (
                ({}, ok(50.0), confirm),
                (COMPILED, ok(60.0, first_step_s=8.0), confirm),
            )
        ),
    )
    winner = conclude(seen, 0.01)
    assert winner.kept_baseline
    assert winner.confirmed
    kept = next(line for line in winner.remarks if line.startswith("keep your baseline"))
    assert "1.200 [" in kept
    assert "25.2 s instead of 21.5 s for 1,000 samples" in kept
    many = replace(seen, objective=TimeToTrain(samples=10_000))
    assert not conclude(many, 0.01).kept_baseline
    assert not conclude(replace(seen, objective=FASTEST), 0.01).kept_baseline


def test_the_least_memory_at_the_speed_asked_for():
    """The winner is the smallest confirmed plan that is fast enough, and small indeed."""
    table, winner = run(LeastMemory(min_throughput=300.0), budget_s=1200)
    assert winner.confirmed
    assert winner.own.throughput >= 300.0
    fast = [
        record.result.measurement.memory_bytes
        for record in table.store.trials(1)
        if record.purpose in SEARCH
        and record.result.measurement
        and record.result.measurement.throughput > 1.03 * 300.0
    ]
    assert winner.own.memory_bytes <= min(fast)
    assert winner.own.memory_bytes < 10 * GIB
    assert "GiB instead of 28.00 GiB" in winner.remarks[0]
    assert "300 samples/s was asked for" in winner.remarks[0]
    assert winner.own.train_s is None


def test_a_part_of_the_baselines_speed_may_be_asked_for():
    """90 % of the baseline's throughput leaves room for checkpointing and small batches."""
    _, winner = run(LeastMemory(min_share=0.9))
    assert winner.own.throughput >= 0.9 * winner.baseline.throughput
    assert winner.own.memory_bytes < 6 * GIB


def test_where_nothing_is_fast_enough_the_baseline_is_kept_and_says_so():
    """The user reads what the fastest gave, and what to do."""
    table, winner = run(LeastMemory(min_throughput=3000.0))
    assert winner.kept_baseline
    assert winner.plan == table.space.baseline
    assert any("no plan reaches 3,000 samples/s" in line for line in winner.remarks)
    assert any("lower --min-throughput" in line for line in winner.remarks)
    assert not any(r.purpose is Purpose.CONFIRM for r in table.store.trials(1))


def test_where_the_baseline_is_too_slow_a_larger_plan_may_win():
    """Fast enough comes before small: the baseline that is neither does not win."""
    narrowing = Narrowing(knobs=("batch_size",))
    model = replace(GPT_MODEL, half_batch=40.0)
    _, winner = run(LeastMemory(min_throughput=33.0), world=World(model), narrowing=narrowing)
    assert not winner.kept_baseline
    assert winner.own.memory_bytes > winner.baseline.memory_bytes
    assert winner.own.throughput >= 33.0 > winner.baseline.throughput
    assert "which it does not reach" in winner.remarks[0]


def test_a_finalist_that_turns_out_too_slow_does_not_win():
    """Fast enough in the search, too slow twice in the confirmation: passed over, with a word."""
    confirm, small = Purpose.CONFIRM, {"batch_size": 8}
    seen = history(
        LeastMemory(min_throughput=45.0),
        ({}, ok(50.0, memory=20 * GIB)),
        (small, ok(46.0, memory=10 * GIB)),
        ({}, ok(50.0, memory=20 * GIB), confirm),
        (small, ok(44.0, memory=10 * GIB), confirm),
    )
    winner = conclude(seen, 0.01)
    assert winner.kept_baseline
    (why,) = [line for line in winner.remarks if line.startswith("passed over")]
    assert why.startswith("passed over, although small: batch_size=8: it gives 44 samples/s")


def test_a_peak_that_is_hardly_smaller_keeps_the_baseline():
    """One percent less memory is what two processes of one plan differ by."""
    confirm, other = Purpose.CONFIRM, {"optimizer_impl": "foreach"}
    peak = int(19.8 * GIB)
    seen = history(
        LeastMemory(min_throughput=45.0),
        ({}, ok(50.0, memory=20 * GIB)),
        (other, ok(50.0, memory=peak)),
        ({}, ok(50.0, memory=20 * GIB), confirm),
        (other, ok(50.0, memory=peak), confirm),
    )
    assert conclude(seen, 0.01).kept_baseline
    # Nor is it a reason to name it where nothing could be confirmed.
    assert conclude(replace(seen, done=seen.done[:2]), 0.01).kept_baseline


def test_an_interrupted_run_names_the_best_by_its_objective():
    """Not confirmed, but what was looked for: the smallest that is fast enough."""
    seen = history(
        LeastMemory(min_throughput=45.0),
        ({}, ok(50.0, memory=20 * GIB)),
        ({"precision": "bf16"}, ok(300.0, memory=15 * GIB)),
        ({"batch_size": 8}, ok(46.0, memory=10 * GIB)),
        ({"batch_size": 4}, ok(30.0, memory=5 * GIB)),
    )
    assert conclude(seen, 0.01).plan["batch_size"] == 8


# The search


def test_what_can_only_be_faster_is_not_tried_for_memory():
    """A fused optimizer or workers need no less memory, so the gate keeps them out."""
    seen = history(LeastMemory(min_throughput=40.0), ({}, ok(50.0, memory=20 * GIB)))
    gate = Gate(settings=SearchSettings(budget_s=1e6), hardware=GPU)
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


def test_for_memory_checkpointing_is_worth_a_trial_by_itself():
    """For speed it only costs, for memory it comes with the first trial after the baseline."""
    trial = ({}, ok(50.0, memory=20 * GIB))
    promising = Promising(hardware=GPU, gain=0.01, chance=0.1)
    first, *others = changes(promising.candidates(history(LeastMemory(min_share=0.5), trial)))
    assert first["activation_checkpointing"] == "full"
    assert {"activation_checkpointing": "full"} in others
    for change in changes(promising.candidates(history(FASTEST, trial))):
        assert set(change) != {"activation_checkpointing"}


def test_a_speed_that_is_in_doubt_is_helped_by_what_is_faster():
    """Checkpointing that costs too much alone is tried beside a fused optimizer."""
    seen = history(LeastMemory(min_share=0.97), ({}, ok(50.0, memory=20 * GIB)))
    fits = {"activation_checkpointing": "full"}
    alone, beside = Prospects(seen, GPU).of(
        [SPACE.plan(fits), SPACE.plan({**fits, "optimizer_impl": "fused"})]
    )
    assert beside.allowed > alone.allowed
    assert beside.log > alone.log


def test_what_compiling_takes_is_weighed_against_what_it_gains():
    """The same plan is promising for many samples, and out of the question for few."""
    plan = SPACE.plan(COMPILED)
    trial = ({}, ok(50.0))
    for samples, pays in ((500, False), (1_000_000, True)):
        seen = history(TimeToTrain(samples=samples), trial)
        (prospect,) = Prospects(seen, GPU).of([plan])
        assert (prospect.value > seen.value(seen.best)) is pays
    gate = Gate(settings=SearchSettings(budget_s=1e6), hardware=GPU)
    slow = ({"compile_mode": "default", "workers": 1}, ok(60.0, first_step_s=60.0))
    seen = history(TimeToTrain(samples=500), trial, slow)
    assert gate.objection(plan, seen, PLENTY) is Objection.OBJECTIVE


def test_for_throughput_prospects_are_the_forecast():
    """Nothing is weighed that was not weighed before."""
    seen = history(FASTEST, ({}, ok(50.0)), ({"precision": "bf16"}, ok(300.0)))
    (one,) = Prospects(seen, GPU).of([SPACE.plan({"precision": "bf16", "pin_memory": True})])
    assert (one.log, one.allowed) == (one.speed.log, 1.0)
    assert one.gain(280.0) == one.speed.gain(280.0)
    assert one.chance(280.0) == one.speed.chance(280.0)


def test_memory_is_expected_from_what_was_measured():
    """A measured plan needs what it needed, half the batch less, checkpointing much less."""
    seen = history(
        LeastMemory(min_share=0.5),
        ({}, ok(50.0, memory=20 * GIB)),
        ({"batch_size": 32}, ok(50.0, memory=36 * GIB)),
    )
    plans = ({}, {"batch_size": 8}, {"activation_checkpointing": "full"})
    peaks = [math.exp(expected_peak(SPACE.plan(plan), seen, GPU)[0]) / GIB for plan in plans]
    assert peaks[0] == pytest.approx(20.0)
    assert peaks[1] == pytest.approx(12.0)
    assert 4.0 < peaks[2] < 12.0
    assert expected_peak(SPACE.baseline, history(FASTEST, ({}, ok(50.0))), GPU) is None


def test_without_a_device_torch_and_its_compiler_are_in_the_peak():
    """A small model's batch is a small part of its process, and compiling adds to it."""
    small = build_space(replace(GPT, num_parameters=1_000_000), GPU)
    seen = history(LeastMemory(min_share=0.5), ({}, ok(50.0, memory=420 * 2**20)))
    seen = replace(seen, space=small)
    plans = [SPACE.plan(plan) for plan in ({"batch_size": 8}, COMPILED)]
    on_cpu = [math.exp(expected_peak(plan, seen, CPU)[0]) / 2**20 for plan in plans]
    assert 380 < on_cpu[0] < 420 < on_cpu[1]
    assert math.exp(expected_peak(plans[0], seen, GPU)[0]) < 300 * 2**20


def test_on_a_cpu_the_eager_twin_of_a_compiled_plan_may_need_less():
    """It lacks the compiler; beside a device, fused kernels can only save."""
    full = {"activation_checkpointing": "full"}
    for hardware, ruled_out in ((CPU, False), (GPU, True)):
        space = build_space(GPT, hardware)
        seen = history(
            LeastMemory(min_share=0.5),
            ({}, ok(50.0, memory=600 * 2**20)),
            ({"compile_mode": "default", **full}, ok(45.0, memory=520 * 2**20)),
        )
        eager = space.plan(full)
        assert cannot_win(eager, replace(seen, space=space), hardware) is ruled_out


def test_the_sampler_is_told_the_objective():
    """Its values are the objective's, and a plan that is too slow violates a constraint."""
    objective = LeastMemory(min_throughput=45.0)
    seen = history(
        objective,
        ({}, ok(50.0, memory=20 * GIB)),
        ({"batch_size": 8}, ok(40.0, memory=10 * GIB)),
    )
    study = Sampler(seed=0)._study(seen, _axes(seen))
    assert [t.constraints["runs"] > 0 for t in study.trials] == [False, True]
    assert study.trials[0].value == pytest.approx(math.log(1 / 20))


def test_scouts_look_for_the_same():
    """One-device trials are judged by their part of what all devices are asked for."""
    settings = {"max_trials": 15, "objective": LeastMemory(min_throughput=600.0)}
    world = World(GPT_MODEL, hardware=replace(GPU, num_devices=2))
    table = Table(world, GPT, 1200, settings=settings, num_ranks=2)
    winner = table.search().run()
    assert winner.own.throughput >= 600.0
    scouting = [r.interesting_above for r in world.requests if r.place.world_size == 1]
    assert max(above for above in scouting if above) <= 300.0


@pytest.mark.parametrize("objective", [TimeToTrain(samples=100_000), LeastMemory(min_share=0.9)])
def test_a_preview_has_the_objective(objective):
    """`--dry-run` starts with the baseline and goes on with what the objective asks for."""
    planned = first_trials(SPACE, GPU, 900.0, objective=objective)
    assert planned[0]["purpose"] == "baseline"
    assert len(planned) > 1
    assert "of the" in planned[1]["reason"]


def test_a_run_with_another_objective_does_not_go_on():
    """What makes runs the same has the objective with all its numbers in it."""
    objectives = (
        FASTEST,
        TimeToTrain(samples=1000),
        TimeToTrain(samples=2000),
        LeastMemory(min_throughput=10.0),
        LeastMemory(min_share=0.1),
    )
    asked = [
        TuneRequest(workload="/w/model.py", budget_s=60.0, objective=one) for one in objectives
    ]
    keys = {_key(request, GPU, SPACE) for request in (*asked, *asked)}
    assert len(keys) == len(objectives)


@pytest.mark.parametrize(
    ("objective", "helps"), [(FASTEST, False), (LeastMemory(min_share=1.0), True)]
)
def test_what_is_small_is_no_start_for_what_is_to_be_fast(tmp_path, objective, helps):
    """A run begins with the winners of earlier runs that looked for something alike."""
    store = open_store(str(tmp_path / "autotune.db"))
    facts = {"hardware": GPU.to_dict(), "baseline": SPACE.baseline}
    sparing = {"objective": LeastMemory(min_throughput=9.0).to_dict()}
    plan = SPACE.plan({"batch_size": 8})
    old = store.create_run(make_run(**facts, options=sparing))
    store.start_trial(old.id, 1, plan, Purpose.PRESET, "", "1.log")
    store.finish_trial(old.id, 1, ok(60.0), used_s=1.0)
    new = store.create_run(make_run(**facts, options={"objective": objective.to_dict()}))
    same = "the same workload on this machine"
    found = (Found(plan=plan, run_name=old.name, how_alike=same),)
    assert found_earlier(store, new) == (found if helps else ())
    store.close()
