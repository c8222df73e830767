"""Runs whose trials have several devices: scouts on one device each, then all devices."""

import contextlib
import random
import threading
from dataclasses import replace

import pytest

from autotune.agent.focus import needs_ranks
from autotune.agent.history import SEARCH
from autotune.errors import NothingRanError, WorkloadError
from autotune.search_space.knobs import BY_NAME
from autotune.search_space.knobs.ranks import FSDP
from autotune.search_space.space import Narrowing
from autotune.storage.records import RunState
from autotune.storage.sql import open_store
from autotune.trials.result import Outcome, Phase, Purpose, TrialResult
from tests.agent.world import GPT, GPT_MODEL, GPU, Table, World, as_after

FOUR = replace(GPU, num_devices=4, num_cores=64)
AMONG_RANKS = {
    "sharding": {"zero1": 0.89, "fsdp_zero2": 0.75, "fsdp_zero3": 0.6, "hsdp": 0.7},
    "bucket_mb": {1: 0.8, 5: 0.9, 10: 0.95, 50: 1.01, 100: 1.03, 200: 1.02},
    "gradient_as_bucket_view": {True: 1.02},
    "comm_hook": {"bf16": 1.04, "fp16": 1.04},
}
SMALL = replace(GPT_MODEL, speeds={**GPT_MODEL.speeds, **AMONG_RANKS})
FSDP_WINS = {"sharding": {"zero1": 1.0, "fsdp_zero2": 1.15, "fsdp_zero3": 1.2, "hsdp": 1.1}}
LARGE = replace(
    GPT_MODEL, fixed_gib=200.0, sample_gib=0.5, speeds={**GPT_MODEL.speeds, **FSDP_WINS}
)
SHARDED = tuple(f"sharding={value} on top of" for value in FSDP)
GPT_1B = replace(GPT, num_parameters=1_300_000_000)


def run(model=SMALL, facts=GPT, *, hardware=FOUR, num_ranks=4, **values):
    return Table(World(model, hardware=hardware), facts, num_ranks=num_ranks, **values)


@pytest.mark.parametrize("smallest", [8, 16])
def test_a_sharding_that_cannot_run_is_not_the_users_fault(smallest):
    """The batch runs out of memory with DDP, and the model cannot be cut: a smaller batch may."""
    model = replace(SMALL, fixed_gib=20.0, sample_gib=8.0)
    fault = TrialResult(outcome=Outcome.INVALID, error="cannot wrap this", total_s=3.0)
    world = World(
        model,
        hardware=replace(GPU, num_devices=2, num_cores=32),
        fail=lambda r: fault if str(r.plan.get("sharding", "")).startswith("fsdp") else None,
    )
    fix = (("batch_size", "16"),) if smallest == 16 else ()
    table = Table(world, GPT, num_ranks=2, narrowing=Narrowing(fix=fix))
    told = pytest.raises(NothingRanError, match=r"may not vary; batch 16 with fsdp_zero3 cannot")
    with told if fix else contextlib.nullcontext():
        assert table.search().run().confirmed
    own = [r for r in table.store.trials(1) if r.purpose is Purpose.BASELINE and r.num_ranks == 2]
    tried = [(r.plan["batch_size"], r.plan["sharding"]) for r in own]
    assert tried == [(16, "ddp"), (16, "fsdp_zero3"), (8, "ddp")][: 3 if smallest == 8 else 2]


def throughput(record):
    return record.result.measurement.throughput if record.result.measurement else 0.0


def requests(table, num_ranks):
    return [r for r in table.world.requests if r.place.world_size == num_ranks]


@pytest.fixture(scope="module")
def tuned():
    """A finished run of ten minutes, and its winner."""
    table = run(budget_s=600, settings={})
    return table, table.search().run()


def test_scouts_go_first_and_the_ranks_begin_with_what_they_found(tuned):
    """The baseline on all devices, one-device trials side by side, then the best of those."""
    table, _ = tuned
    first, *after = [r.place.world_size for r in table.world.requests]
    num_scouts = after.index(4)
    assert first == 4
    assert num_scouts > 8
    assert set(after[num_scouts:]) == {4}
    assert max(in_use for size, in_use in table.runner.devices if size == 1) == 4
    adopted = table.store.trials(1)[1 + num_scouts]
    best = max(table.store.trials(1)[1 : 1 + num_scouts], key=throughput)
    assert adopted.reason == (
        f"best of {num_scouts} one-device trials (trial {best.number}), now on 4 devices"
    )


def test_the_plan_of_a_small_model_has_the_best_of_both_steps(tuned):
    """Precision and compilation from one device, buckets and hooks from four; ddp stays."""
    _, winner = tuned
    found = winner.plan.values
    assert winner.confirmed
    assert (found["precision"], found["optimizer_impl"]) == ("bf16", "fused")
    assert found["compile_mode"] != "off"
    assert (found["sharding"], found["gradient_as_bucket_view"]) == ("ddp", True)
    assert found["comm_hook"] != "none"
    assert found["bucket_mb"] >= 50
    assert found["batch_size"] > 16


def test_only_plans_measured_on_all_devices_are_confirmed_and_win(tuned):
    """Confirmation and numerics check run on four devices, alone."""
    table, winner = tuned
    assert "sharding" in winner.plan
    ending = [r for r in table.world.requests if r.purpose not in SEARCH]
    assert {r.purpose for r in ending} >= {Purpose.CONFIRM, Purpose.NUMERICS}
    assert {r.place.world_size for r in ending} == {4}
    assert {count for purpose, count in table.runner.at_once if purpose not in SEARCH} == {1}


def test_among_the_ranks_only_their_knobs_vary(tuned):
    """What scouts have tuned keeps the values of an adopted plan."""
    table, _ = tuned
    trials = [r for r in table.store.trials(1) if r.num_ranks == 4 and r.purpose in SEARCH]
    adopted = {r.plan for r in trials if "now on 4 devices" in r.reason}
    for trial in trials[1:]:
        # FSDP replaces CUDA graphs by a compile mode that it can run.
        own = {"compile_mode"} if trial.plan["sharding"] in FSDP else set()
        apart = [
            {n for n in trial.plan.diff(p) if not needs_ranks(BY_NAME[n])} - own for p in adopted
        ]
        assert set() in apart


def test_shardings_that_have_no_chance_are_not_tried(tuned):
    """A model that fits, and whose parts would only be sent more often, stays with ddp.

    The nearest other sharding may have one trial, if it may still surprise.
    """
    table, _ = tuned
    found = [r.plan.get("sharding", "ddp") for r in table.store.trials(1)]
    assert set(found) <= {"ddp", "fsdp_zero2"}
    assert found.count("fsdp_zero2") <= 1


def test_fsdp_is_tried_with_compiled_blocks_on_a_large_model():
    """Sharing out the optimizer's step may gain there, so a way to do that is tried, and wins."""
    large = replace(GPT_MODEL, speeds={**GPT_MODEL.speeds, **AMONG_RANKS, **FSDP_WINS})
    table = run(large, GPT_1B, budget_s=600, settings={})
    winner = table.search().run()
    fsdp = [r.plan for r in table.store.trials(1) if r.reason.startswith(SHARDED)]
    assert "fsdp_zero3" in {plan["sharding"] for plan in fsdp}
    assert {plan["compile_scope"] for plan in fsdp} == {"block"}
    assert winner.plan["sharding"] == "fsdp_zero3"


def test_the_remark_on_the_batch_counts_all_ranks(tuned):
    """What is trained with changes by the samples of a step on all devices."""
    _, winner = tuned
    batch = winner.plan["batch_size"]
    counted = f"so {4 * batch} samples in a step instead of 64"
    assert any(counted in remark for remark in winner.remarks)


def test_a_fast_scout_is_never_the_answer():
    """Stopped among the scouts, the run ends with the baseline of all devices."""
    stopped = threading.Event()
    table = run(is_stopped=stopped.is_set)
    table.observer.on_submit = lambda number, proposal: number == 5 and stopped.set()
    winner = table.search().run()
    assert winner.kept_baseline
    assert winner.plan == table.space.baseline
    assert table.record().state is RunState.INTERRUPTED


def test_scouts_leave_time_for_the_ranks():
    """Less than half of the time for searching goes into one-device trials, four at a time."""
    table = run(budget_s=200, settings={})
    table.search().run()
    assert any("one-device trials over" in note for note in table.observer.notes)
    lasted = {1: 0.0, 4: 0.0}
    for trial in (t for t in table.store.trials(1) if t.purpose in SEARCH):
        lasted[trial.num_ranks] += trial.result.total_s
    assert lasted[1] / 4 < lasted[4]


def test_a_model_that_one_device_cannot_hold_is_tuned_on_all():
    """Without scouts, every knob is explored on four devices, from the sharded baseline."""
    table = run(LARGE, GPT_1B, budget_s=900)
    winner = table.search().run()
    baselines = [r for r in table.store.trials(1) if r.purpose is Purpose.BASELINE]
    assert [(r.num_ranks, r.plan.get("sharding", "-")) for r in baselines[:2]] == [
        (4, "ddp"),
        (4, "fsdp_zero3"),
    ]
    assert all(r.outcome is Outcome.OOM for r in baselines[2:])
    assert any("does not fit on one device" in note for note in table.observer.notes)
    assert winner.confirmed
    assert winner.plan["precision"] == "bf16"
    assert winner.plan["sharding"] in FSDP
    assert any("the baseline is sharding=fsdp_zero3" in remark for remark in winner.remarks)


def test_a_baseline_that_fails_on_one_device_only_ends_the_scouting():
    """What cannot run on one device may run on four, so it is no error of the run."""

    def crash_alone(request):
        if request.place.world_size == 1:
            return TrialResult(outcome=Outcome.CRASH, error="died", total_s=3.0)
        return None

    table = Table(World(SMALL, hardware=FOUR, fail=crash_alone), GPT, num_ranks=4)
    winner = table.search().run()
    assert len(requests(table, 1)) == 1
    assert any("fails on one device (crash: died)" in note for note in table.observer.notes)
    assert winner.plan["precision"] == "bf16"


def test_a_baseline_that_fails_on_all_devices_ends_the_run():
    """The user's own code fails before any scout has run."""
    result = TrialResult(outcome=Outcome.CRASH, error="no", phase=Phase.BUILD, total_s=3.0)
    table = Table(World(SMALL, hardware=FOUR, fail=lambda _: result), GPT, num_ranks=4)
    with pytest.raises(WorkloadError):
        table.search().run()
    assert len(table.world.requests) == 1


def test_where_no_scouts_plan_compiles_on_the_ranks_less_is_compiled():
    """What the compiler cannot do around the ranks' communication costs no other finding."""

    def cannot_compile_the_model(request):
        if request.place.world_size > 1 and request.plan.get("compile_scope", "") == "model":
            return TrialResult(outcome=Outcome.COMPILE_ERROR, error="a graph break", total_s=5.0)
        return None

    world = World(SMALL, hardware=FOUR, fail=cannot_compile_the_model)
    winner = Table(world, GPT, num_ranks=4, settings={"max_trials": 30}).search().run()
    assert (winner.plan["compile_scope"], winner.plan["precision"]) == ("block", "bf16")


def test_devices_left_over_by_the_ranks_serve_the_scouts():
    """Five devices run five scouts side by side, then two trials of two devices."""
    table = run(hardware=replace(FOUR, num_devices=5), num_ranks=2, budget_s=300, settings={})
    winner = table.search().run()
    assert winner.confirmed
    in_use = {size: {n for s, n in table.runner.devices if s == size} for size in (1, 2)}
    assert max(in_use[1]) == 5
    assert in_use[2] == {2, 4}
    confirming = [count for purpose, count in table.runner.at_once if purpose not in SEARCH]
    assert set(confirming) == {1}


@pytest.mark.parametrize("seed", range(6))
def test_a_run_of_several_devices_ends_within_its_budget(seed):
    """However long trials take, on one device or on two."""
    rng = random.Random(seed)
    budget_s, longest_s = rng.uniform(30, 600), rng.uniform(5, 120)

    def unsteady(request):
        if request.purpose is Purpose.NUMERICS:
            return None
        return replace(calm(request), total_s=rng.uniform(1, longest_s))

    calm = World(SMALL, hardware=FOUR)
    world = World(SMALL, hardware=FOUR, fail=unsteady)
    table = Table(world, GPT, budget_s, num_ranks=2)
    with contextlib.suppress(NothingRanError):
        table.search().run()
    assert table.clock.now() <= budget_s


def test_trials_are_counted_over_both_steps():
    """`--trials 12` runs twelve search trials, part of them on one device."""
    table = run(budget_s=900, settings={"max_trials": 12})
    table.search().run()
    searched = [r.place.world_size for r in table.world.requests if r.purpose in SEARCH]
    assert len(searched) == 12
    assert searched.count(1) == 4


def test_few_trials_all_go_to_the_ranks():
    """`--trials 4` would leave the scouts a baseline alone, which shows nothing."""
    table = run(settings={"max_trials": 4})
    table.search().run()
    assert not requests(table, 1)


def test_nothing_to_scout_where_only_the_ranks_knobs_vary():
    """With `--knobs sharding,bucket_mb` no trial runs on one device."""
    narrowing = Narrowing(knobs=("sharding", "bucket_mb"))
    table = run(budget_s=900, narrowing=narrowing)
    table.search().run()
    assert not requests(table, 1)


class Metronome(World):
    """Every trial lasts as long as the others, so those that start together end together."""

    def __call__(self, request):
        result = super().__call__(request)
        return replace(result, total_s=10.0)


def key(record):
    return record.number, record.num_ranks, record.plan, record.purpose, record.outcome


def few_knobs(world, budget_s, settings, **more):
    """A run on four devices of knobs that one device shows, and of those that ranks alone have."""
    knobs = ("precision", "optimizer_impl", "compile_mode", "sharding", "bucket_mb")
    narrowing = Narrowing(knobs=knobs)
    return Table(world, GPT, budget_s, settings, narrowing, num_ranks=4, **more)


@pytest.fixture(scope="module")
def whole_run():
    """A finished run on four devices, and the budget used when each trial ended."""
    table, used = few_knobs(Metronome(SMALL, hardware=FOUR), 400, {}), []
    table.observer.on_finish = lambda *_: used.append(table.record().used_s)
    table.search().run()
    return table, used


@pytest.mark.parametrize("where", ["baseline", "scouts", "last_scout", "ranks", "ending"])
def test_a_killed_run_goes_on_in_the_stage_it_was_in(whole_run, where):
    """From the middle of any stage, and from between two, the same trials follow."""
    whole, used = whole_run
    records = whole.store.trials(1)
    last_scout = max(r.number for r in records if r.num_ranks == 1)
    ending = next(r.number for r in records if r.purpose not in SEARCH)
    ended = {
        "baseline": 1,
        "scouts": 6,  # the scouts' baseline, then the first four side by side
        "last_scout": last_scout,
        "ranks": last_scout + 2,
        "ending": ending + 1,
    }[where]
    assert ended < len(records)
    world = Metronome(SMALL, hardware=FOUR, requests=whole.world.requests[:ended])
    store = as_after(ended, whole.store, used[ended - 1])
    resumed = few_knobs(world, 400, {}, store=store)
    assert resumed.search().run() == whole.record().winner
    assert [key(r) for r in resumed.store.trials(1)] == [key(r) for r in records]


def test_a_longer_budget_does_not_bring_the_scouts_back(whole_run):
    """Once the ranks have begun with what was found, a resumed run stays with them."""
    whole, used = whole_run
    ended = 2 + max(r.number for r in whole.store.trials(1) if r.num_ranks == 1)
    store, stopped = as_after(ended, whole.store, used[ended - 1]), threading.Event()
    world = Metronome(SMALL, hardware=FOUR, requests=whole.world.requests[:ended])
    resumed = few_knobs(world, 4000, {"patience": 100}, store=store)
    resumed.is_stopped = stopped.is_set
    resumed.observer.on_submit = lambda number, proposal: number > ended + 3 and stopped.set()
    resumed.search().run()
    assert {r.num_ranks for r in resumed.store.trials(1)[ended:]} == {4}


def test_a_real_store_keeps_the_ranks_of_each_trial(tmp_path):
    """Resumed from SQLite, a run knows which trials were on one device and which on four."""
    store = open_store(str(tmp_path / "autotune.db"))
    stopped = threading.Event()
    first = run(store=store, is_stopped=stopped.is_set)
    first.observer.on_submit = lambda number, proposal: number == 8 and stopped.set()
    first.search().run()
    store.resume_run(first.run.id, budget_s=900, driver="host:2:0")
    resumed = run(store=store)
    assert resumed.search().run().confirmed
    trials = store.trials(first.run.id)
    assert [t.num_ranks for t in trials[:4]] == [4, 1, 1, 1]
    assert len([t for t in trials if t.purpose is Purpose.BASELINE]) == 2
    store.close()
