"""The first trial: smaller batches where it does not fit, and what ends the run."""

from dataclasses import replace

import pytest

from autotune.errors import NothingRanError, WorkloadError
from autotune.search_space.space import Narrowing
from autotune.storage.records import RunState
from autotune.trials.result import Outcome, Phase, Purpose
from tests.agent.world import (
    GIB,
    GPT,
    GPT_MODEL,
    GPU,
    Table,
    World,
    failing,
    search_trials,
)


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


@pytest.mark.parametrize(("num_blocks", "is_told"), [(12, True), (0, False)])
def test_a_model_that_fits_with_no_batch_may_be_kept_on_the_host(num_blocks, is_told):
    """Where it has blocks for FSDP to move; the run does not do that by itself."""
    small = replace(GPU, device_memory_bytes=2 * GIB)
    facts = replace(GPT, num_blocks=num_blocks)
    table = Table(World(GPT_MODEL, hardware=small), facts, budget_s=600)
    with pytest.raises(NothingRanError, match="needs more memory than there is") as raised:
        table.search().run()
    assert ("--fix parameter_offload=host" in str(raised.value)) is is_told


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
