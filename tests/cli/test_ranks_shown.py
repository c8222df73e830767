"""A run whose trials have several devices, as the reading commands show it."""

import json
from functools import partial

import pytest

from autotune.export.plan_file import load_plan_file
from autotune.search_space.plan import Plan
from autotune.storage.sql import open_store
from autotune.storage.testing import make_run
from autotune.trials.result import Purpose
from tests.agent.world import ok

ALONE = Plan.of({"precision": "fp32", "batch_size": 16})
SCOUT = Plan.of({"precision": "bf16", "batch_size": 16})
BASELINE = Plan.of({**ALONE.values, "sharding": "ddp", "bucket_mb": 25})
SHARDED = Plan.of({**SCOUT.values, "sharding": "fsdp_zero3"})


@pytest.fixture
def autotune(tmp_path, type_command):
    """Type `autotune` and more where a run on four devices is: give stdout."""
    store = open_store(str(tmp_path / "autotune.db"))
    run = store.create_run(make_run(baseline=BASELINE, options={"num_ranks": 4}))
    tried = [
        (BASELINE, 4, Purpose.BASELINE, 200.0),
        (ALONE, 1, Purpose.BASELINE, 60.0),
        (SCOUT, 1, Purpose.PRESET, 240.0),
        (SHARDED, 4, Purpose.PRESET, 900.0),
    ]
    for number, (plan, num_ranks, purpose, speed) in enumerate(tried, start=1):
        store.start_trial(run.id, number, plan, purpose, "because", "log", num_ranks=num_ranks)
        store.finish_trial(run.id, number, ok(speed, memory=2**30), 10.0 * number)
    store.close()
    return partial(type_command, "autotune")


def test_trials_are_listed_with_their_ranks(autotune):
    """People read it of those on several, programs get a number."""
    _, table, _ = autotune("trials", "last")
    rows = [" ".join(line.split()) for line in table.splitlines()[1:]]
    assert rows == [
        "1 - 200 1.00 1.00 GiB ok on 4 devices: your own configuration",
        "2 - 60 1.00 1.00 GiB ok your own configuration",
        "3 2 240 4.00 1.00 GiB ok precision=bf16",
        "4 1 900 4.50 1.00 GiB ok on 4 devices: precision=bf16 sharding=fsdp_zero3",
    ]
    listed = json.loads(autotune("trials", "last", "--json")[1])
    assert [trial["num_ranks"] for trial in listed] == [4, 1, 1, 4]
    _, where, _ = autotune("trials", "last", "--csv", "--where", "num_ranks = 1")
    assert len(where.splitlines()) == 3


def test_a_scout_changes_nothing_that_only_ranks_have(autotune):
    """It is compared with the baseline in the knobs that it has."""
    trials = json.loads(autotune("trials", "last", "--json")[1])
    assert set(trials[1]["changes"]) == set()
    assert set(trials[2]["changes"]) == {"precision"}


def test_a_run_says_for_how_many_ranks_its_plan_is(autotune):
    """Its fastest trials are those on all devices."""
    _, shown, _ = autotune("show", "last")
    assert "4 in each trial; the plan is for as many" in shown
    view = json.loads(autotune("show", "last", "--json")[1])
    assert view["run"]["num_ranks"] == 4
    assert [trial["num_ranks"] for trial in view["front"]] == [4]


@pytest.mark.parametrize(
    ("number", "ranks", "speedup", "baseline"), [(4, 4, 4.5, BASELINE), (3, 1, 4.0, ALONE)]
)
def test_an_exported_trial_is_for_its_own_ranks(
    autotune, tmp_path, number, ranks, speedup, baseline
):
    """A scout's plan is for one rank, and is compared with the baseline on one."""
    assert autotune("export", "last", "--trial", str(number), "-o", "trial.yaml")[0] == 0
    file = load_plan_file(tmp_path / "trial.yaml")
    assert (file.ranks, file.speedup.ratio, file.baseline) == (ranks, speedup, baseline)
