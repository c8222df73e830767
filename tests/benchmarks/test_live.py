"""What is told of a run of the command follows from what its store holds."""

import importlib
import sqlite3
import sys
from contextlib import closing
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from autotune.search_space.plan import Plan
from autotune.storage.figures import Interval, PlanFigures
from autotune.storage.records import Promise, RunState, Winner
from autotune.storage.sql import open_store
from autotune.storage.testing import make_measurement, make_run
from autotune.trials.diagnosis import Diagnosis, undiagnosed
from autotune.trials.result import NumericsReport, Outcome, Purpose, TrialResult

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")
BEGIN = datetime(2026, 11, 23, 12, tzinfo=UTC)
BASELINE, FASTER = Plan.of({"precision": "fp32"}), Plan.of({"precision": "bf16"})


@pytest.fixture(scope="module")
def scripts():
    """The scripts, which import each other from their folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [BENCHMARKS, *sys.path])
        yield SimpleNamespace(
            live=importlib.import_module("live"),
            accounts=importlib.import_module("live_accounts"),
        )


@pytest.fixture
def store_file(tmp_path):
    """A store with a run of six trials on two devices, at known times, that ended after 90 s."""
    file = tmp_path / "autotune.db"
    store = open_store(str(file))
    machine = {"device_name": "H200", "num_devices": 2, "versions": {"torch": "2.11.0"}}
    run = store.create_run(make_run(hardware=machine, baseline=BASELINE, budget_s=120.0))
    for number, (purpose, plan, result, *_) in enumerate(TRIALS, start=1):
        ranks = 2 if purpose is Purpose.CONFIRM else 1
        store.start_trial(
            run.id,
            number,
            plan,
            purpose,
            "because",
            "log",
            num_ranks=ranks,
            promise=PROMISES.get(number),
        )
        store.finish_trial(run.id, number, result, 0.0)
    store.finish_run(run.id, RunState.DONE, stop_reason="", used_s=88.0, winner=WINNER)
    store.close()
    set_times(file)
    return file


def measured(throughput, diagnosis=None):
    """A trial of 5 s in its own phases, besides the seconds of a diagnosis."""
    measurement = make_measurement(throughput)
    return TrialResult(outcome=Outcome.OK, measurement=measurement, diagnosis=diagnosis)


COMPARED = NumericsReport(reference_losses=(1.0,), plan_losses=(1.0,))
TRIALS = [
    (Purpose.BASELINE, BASELINE, measured(100.0, Diagnosis(took_s=3.0)), 10, 20),
    (Purpose.PRESET, FASTER, measured(150.0, undiagnosed("late")), 20, 27),
    (Purpose.LADDER, FASTER, TrialResult(outcome=Outcome.OOM, error="no memory"), 20, 24),
    (Purpose.SAMPLER, FASTER, measured(151.0), 27, 33),
    (Purpose.NUMERICS, FASTER, TrialResult(outcome=Outcome.OK, numerics=COMPARED), 40, 48),
    (Purpose.CONFIRM, FASTER, measured(290.0), 50, 80),
]
# Of the second, third and fourth trial.
PROMISES = {
    2: Promise(throughput=200.0, chance=0.9, seconds=7.0),
    3: Promise(throughput=180.0, chance=0.4, seconds=5.0),
    4: Promise(throughput=151.0, chance=0.2, seconds=6.0),
}
WINNER = Winner(
    plan=FASTER,
    kept_baseline=False,
    confirmed=True,
    speedup=Interval(ratio=1.5, low=1.4, high=1.6),
    own=PlanFigures(throughput=290.0),
    baseline=PlanFigures(throughput=190.0),
    how="confirmed",
)


def at(seconds):
    return BEGIN + timedelta(seconds=seconds)


def set_times(file):
    with closing(sqlite3.connect(file)) as connection, connection:
        for number, (*_, started, finished) in enumerate(TRIALS, start=1):
            times = [str(at(seconds).replace(tzinfo=None)) for seconds in (started, finished)]
            connection.execute(
                "UPDATE trials SET started_at = ?, finished_at = ? WHERE number = ?",
                (*times, number),
            )


@pytest.fixture
def watched(scripts, store_file):
    return scripts.live.watch(store_file, BEGIN, BEGIN + timedelta(seconds=90))


def test_the_phases_add_up_to_the_wall_clock(scripts, watched):
    """Each second of the command is in one phase, what is unused of the budget besides."""
    seconds = scripts.accounts.seconds_by_phase(watched)
    assert seconds.pop("unused") == pytest.approx(30)
    assert sum(seconds.values()) == pytest.approx(90)


def test_a_trial_on_one_of_two_devices_counts_half(scripts, watched):
    """One on both counts whole; what no trial ran on was idle."""
    seconds = scripts.accounts.seconds_by_phase(watched)
    assert seconds["start-up"] == pytest.approx(10)
    assert seconds["build"] == pytest.approx(3 * 0.5 / 2)
    assert seconds["windows"] == pytest.approx(3 * 2.0 / 2)
    assert seconds["diagnosis"] == pytest.approx(3.0 / 2)
    assert seconds["start of trials"] == pytest.approx((2 + 2 + 1) / 2)
    assert seconds["failed trials"] == pytest.approx(4 / 2)
    assert seconds["numerics check"] == pytest.approx(8 / 2)
    assert seconds["confirmation"] == pytest.approx(30)
    assert seconds["conclusion"] == pytest.approx(10)


def test_gains_are_counted_over_the_best_before(scripts, watched):
    """One per cent is the least; neither the baseline nor proving what was found is a search."""
    found = scripts.accounts.gains(watched.trials)
    assert (found.num_trials, found.num_ok, found.num_gained) == (4, 3, 1)
    assert (found.gained_s, found.other_s) == (pytest.approx(7), pytest.approx(4 + 6))


def record(throughput, **changes):
    values = {"workload": "gpt", "device": "H200", "num_devices": 1, "throughput": throughput}
    return {**values, **changes}


def test_the_best_known_is_the_fastest_on_each_device(scripts):
    """Of the same workload on the same kind of device; failures are none."""
    records = [
        record(150.0),
        record(280.0, num_devices=2),
        record(None),
        record(900.0, device="B200"),
        record(900.0, workload="resnet"),
    ]
    assert scripts.accounts.best_known(records, "gpt", "H200") == records[0]
    assert scripts.accounts.best_known(records[2:], "gpt", "H200") is None


def test_the_score_holds_the_winner_against_the_best_known(scripts, watched):
    """Where the run found more than anyone before, its own winner is the best known."""
    slower, faster = record(100.0), record(320.0, setting={"compile": "default"})
    run = scripts.live.score(watched, "gpt", [slower])
    assert run["score"] == 290.0 / run["best_known"] == 1.0
    assert run["best_setting"] == FASTER.values
    against = scripts.live.score(watched, "gpt", [slower, faster])
    assert against["score"] == pytest.approx(290 / 320)
    assert against["best_setting"] == {"compile": "default"}


def test_a_winner_that_was_not_confirmed_counts_as_the_baseline(scripts, watched):
    """And nothing counts where there is no winner."""
    guessed = replace(watched.run, winner=replace(WINNER, confirmed=False))
    assert scripts.accounts.confirmed_throughput(replace(watched, run=guessed)) == 190.0
    stopped = replace(watched.run, winner=None)
    assert scripts.accounts.confirmed_throughput(replace(watched, run=stopped)) is None


def test_a_run_that_ended_before_its_first_trial_was_all_start_up(scripts, watched):
    """The rest of its budget was unused."""
    seconds = scripts.accounts.seconds_by_phase(replace(watched, trials=()))
    assert seconds == {"start-up": 90, "unused": 30}


def test_a_run_is_told_in_words(scripts, watched):
    """Its winner, the best known, its trials and its seconds."""
    run = {"workload": "gpt", "budget_s": 120.0, "wall_s": 90.0, "exit_code": 0, "output": None}
    words = "\n".join(
        scripts.live.lines_of({**run, **scripts.live.score(watched, "gpt", [record(320.0)])})
    )
    assert "290.0 samples/s, 1.50 (1.40 to 1.60) times the baseline's 190.0" in words
    assert "best known  320.0 samples/s, ratio 0.91" in words
    assert "4, 3 measured; 1 gained" in words
    assert "start-up 10.0" in words


def test_a_run_without_a_store_is_told_with_its_output(scripts):
    """It scores nothing."""
    run = {"workload": "gpt", "budget_s": 120.0, "wall_s": 1.0, "exit_code": 3}
    words = list(scripts.live.lines_of({**run, "output": "no such file", **scripts.live.NOTHING}))
    assert words[-1] == "no such file"
    assert scripts.live.summary(120.0, {"a": 0.5, "b": None}) == (
        "120 s: mean 0.25, worst 0.00 (b)"
    )


def test_trials_are_held_against_what_was_expected_of_them(watched, scripts):
    """One of three gained, where 1.5 were expected to; a failed one has no throughput."""
    found = scripts.accounts.kept(watched.trials)
    assert (found.num_trials, found.num_gained) == (3, 1)
    assert found.expected_gains == pytest.approx(1.5)
    assert found.of_throughput == pytest.approx((0.75 + 1.0) / 2)
    words = scripts.live.kept_words(vars_of(found))
    assert words.startswith("1 of 3 gained, 1.5 expected; measured over expected in the median")


def vars_of(record):
    return {field.name: getattr(record, field.name) for field in fields(record)}
