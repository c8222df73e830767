"""A run begins with what earlier ones found, and believes none of it unmeasured."""

from dataclasses import replace

import pytest

from autotune.agent.objectives.least_memory import LeastMemory
from autotune.agent.objectives.throughput import FASTEST
from autotune.agent.proposers.earlier import EarlierBest, compiled_earlier, found_earlier
from autotune.search_space.space import Narrowing
from autotune.storage.figures import Interval, PlanFigures
from autotune.storage.records import RunState, Winner
from autotune.storage.sql import open_store
from autotune.storage.testing import make_run
from autotune.trials.result import Purpose
from tests.agent.histories import SPACE
from tests.agent.world import GPT, GPT_MODEL, GPU, Table, World, ok

TABLE = Table(World(GPT_MODEL), GPT)
FAST = TABLE.space.plan({"precision": "bf16", "compile_mode": "default", "batch_size": 64})


@pytest.fixture
def store(tmp_path):
    opened = open_store(str(tmp_path / "autotune.db"))
    yield opened
    opened.close()


def winner(plan, *, kept_baseline=False):
    return Winner(
        plan=plan,
        kept_baseline=kept_baseline,
        confirmed=True,
        speedup=Interval(ratio=9.0, low=8.9, high=9.1),
        own=PlanFigures(throughput=450.0),
        baseline=PlanFigures(throughput=50.0),
        how="",
    )


def ended_run(store, found=None, **changes):
    """Store a finished run that differs from the others as `changes` say."""
    run = store.create_run(replace(TABLE.run.new, **changes))
    end = {"stop_reason": "", "used_s": 1.0, "winner": found}
    store.finish_run(run.id, RunState.DONE, **end)
    return store.run(str(run.id))


def test_the_winner_of_the_same_workload_is_found(store):
    """Newest first, each plan once, with the name of its run; the run itself is none of them."""
    other = TABLE.space.plan({"precision": "tf32"})
    for plan in (FAST, other, FAST):
        ended_run(store, winner(plan))
    found = found_earlier(store, ended_run(store, winner(FAST)))
    assert [(one.plan, one.run_name) for one in found] == [(FAST, "run-3"), (other, "run-2")]
    assert {one.how_alike for one in found} == {"the same workload on this machine"}


def test_an_earlier_version_of_the_file_counts_and_is_called_so(store):
    """Its best plan is likely to be good still."""
    ended_run(store, winner(FAST), workload_hash="another")
    (found,) = found_earlier(store, ended_run(store))
    assert found.how_alike == "an earlier version of the file on this machine"


@pytest.mark.parametrize(
    "changes",
    [
        {"workload_hash": "another", "workload_path": "/w/other.py"},
        {"hardware": replace(GPU, device_name="another GPU").to_dict()},
        {"hardware": replace(GPU, versions=(("torch", "1.0"),)).to_dict()},
        {"options": {"num_ranks": 4}},
    ],
)
def test_other_workloads_machines_versions_and_ranks_do_not_count(store, changes):
    """What is fast there says little about here."""
    ended_run(store, winner(FAST), **changes)
    assert found_earlier(store, ended_run(store)) == ()


def test_a_run_without_a_winner_gives_its_fastest_plan(store):
    """A run that was killed has measured, too; one that kept its baseline found nothing."""
    ended_run(store, winner(TABLE.space.baseline, kept_baseline=True))
    killed = store.create_run(TABLE.run.new)
    for number, (plan, speed) in enumerate([(TABLE.space.baseline, 50.0), (FAST, 400.0)], 1):
        store.start_trial(killed.id, number, plan, Purpose.PRESET, "", "")
        store.finish_trial(killed.id, number, ok(speed), 1.0)
    (found,) = found_earlier(store, ended_run(store))
    assert (found.plan, found.run_name) == (FAST, "run-2")


def test_what_was_found_is_measured_right_after_the_baseline():
    """Its reason names the run; settings that this run may not vary stay as they are."""
    found = EarlierBest(
        plan=FAST, run_name="nightly", how_alike="the same workload on this machine"
    )
    narrowing = Narrowing(fix=(("batch_size", "16"),))
    table = Table(World(GPT_MODEL), GPT, narrowing=narrowing, earlier=(found,))
    table.search().run()
    first, second = table.observer.proposals[:2]
    assert first.purpose is Purpose.BASELINE
    assert second.plan == table.space.plan({"precision": "bf16", "compile_mode": "default"})
    expected = "the best plan of nightly, which tuned the same workload on this machine"
    assert second.reason == expected


def test_a_plan_that_is_fast_no_longer_does_not_win():
    """Only what is measured in this run counts."""
    slow = Table(World(GPT_MODEL), GPT).space.plan({"activation_checkpointing": "full"})
    found = EarlierBest(
        plan=slow, run_name="nightly", how_alike="the same workload on this machine"
    )
    result = Table(World(GPT_MODEL), GPT, earlier=(found,)).search().run()
    assert result.plan["activation_checkpointing"] == "none"


def test_earlier_runs_of_the_workload_tell_what_compiling_takes(tmp_path):
    """Only those of the same workload on an equal machine, on as many devices."""
    store = open_store(str(tmp_path / "autotune.db"))
    facts = {"hardware": GPU.to_dict(), "baseline": SPACE.baseline}
    plan = SPACE.plan({"compile_mode": "default"})
    for number, workload in enumerate(("abc", "other"), 1):
        path = f"/w/{workload}.py"
        old = store.create_run(make_run(**facts, workload_hash=workload, workload_path=path))
        store.start_trial(old.id, 1, plan, Purpose.PRESET, "", "1.log")
        store.finish_trial(old.id, 1, ok(60.0, first_step_s=30.0 * number), used_s=1.0)
    new = store.create_run(make_run(**facts, workload_path="/w/abc.py"))
    ((found, measurement),) = compiled_earlier(store, new)
    assert (found, measurement.first_step_s) == (plan, 30.0)
    store.close()


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
    found = (EarlierBest(plan=plan, run_name=old.name, how_alike=same),)
    assert found_earlier(store, new) == (found if helps else ())
    store.close()
