"""What a run keeps for the trend of its workload."""

from contextlib import closing

import pytest

from autotune.agent.check.points import origin_of, points_of_run
from autotune.search_space.command import Command
from autotune.search_space.hardware import Hardware
from autotune.search_space.target import Target
from autotune.storage.sql import open_store
from autotune.trials.result import Purpose


@pytest.fixture
def points(h200, tmp_path):
    """The points of a real run, of which the winner was confirmed; its trials beside them."""
    with closing(open_store(str(h200))) as store:
        run = store.run("1")
        trials = store.trials(run.id)
    assert run.winner.confirmed
    hardware = Hardware.from_dict(run.new.hardware)
    found = list(
        points_of_run(run, trials, origin_of(Target(path=tmp_path / "model.py")), hardware)
    )
    return run, trials, found


def test_baseline_and_confirmed_winner_are_kept(points):
    run, _, (baseline, winner) = points
    assert (baseline.plan, winner.plan) == (run.new.baseline, run.winner.plan)
    assert baseline.series.plan_digest != winner.series.plan_digest
    assert baseline.series.workload == winner.series.workload == "model.py"
    assert winner.commit_hash is None  # the folder is in no repository


def test_only_processes_that_ran_alone_count(points):
    run, trials, (_, winner) = points
    again = [t for t in trials if t.plan == run.winner.plan and t.purpose is Purpose.CONFIRM]
    assert winner.num_processes == len(again)
    rates = [trial.result.measurement.throughput for trial in again]
    assert winner.throughput == pytest.approx(sum(rates) / len(rates))


def test_a_command_is_named_by_its_words(tmp_path):
    command = Command(argv=("python", "train.py", "--name", "a b"))
    origin = origin_of(Target(path=tmp_path / "train.py", command=command))
    assert origin.workload == "python train.py --name 'a b'"
