"""The tests that every store of runs and trials must pass, for pytest.

A store of your own is tested by a subclass that makes one:

    class TestMyStore(StoreContract):
        @pytest.fixture
        def store(self) -> Iterator[TrialStore]:
            with closing(MyStore()) as store:
                yield store

Each test gets an empty store. Needs pytest, which autotune itself does not.
"""

import math
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import psutil
import pytest

from autotune.errors import NotFoundError, UsageError
from autotune.search_space.bound import Bound
from autotune.search_space.plan import Plan
from autotune.storage.driver import this_driver
from autotune.storage.figures import Interval, PlanFigures
from autotune.storage.records import NewRun, Promise, RunState, Winner
from autotune.storage.store import TrialStore
from autotune.storage.trends import Series, TrendPoint
from autotune.trials.cause import Cause
from autotune.trials.diagnosis import Diagnosis, Finding, FindingKind, Shares
from autotune.trials.numerics_report import Deviation, NumericsReport, Part
from autotune.trials.quality import QualityCurve, QualityPoint
from autotune.trials.result import (
    Measurement,
    Outcome,
    Phase,
    Purpose,
    TrialResult,
    Window,
)

PLAN = Plan.of({"precision": "bf16", "workers": 4, "pin_memory": True, "prefetch": 2})
WINNER = Winner(
    plan=PLAN,
    kept_baseline=False,
    confirmed=True,
    speedup=Interval(ratio=1.5, low=1.4, high=1.6),
    own=PlanFigures(throughput=150.0, memory_bytes=2**31),
    baseline=PlanFigures(throughput=100.0),
    how="3 fresh processes each",
    changes={"precision": "worth 20 %"},
    remarks=("the batch size changed",),
)


def make_run(**changes: Any) -> NewRun:
    """Return a run of a small workload; keywords change its fields."""
    values: dict[str, Any] = {
        "key": "key",
        "name": None,
        "workload_path": "/home/me/model.py",
        "workload_hash": "abc",
        "hardware": {"device_name": "cpu", "num_cores": 2},
        "facts": {"batch_size": 32},
        "options": {"numerics": "precision"},
        "baseline": Plan.of({"precision": "fp32", "workers": 0, "pin_memory": False}),
        "budget_s": 60.0,
        "driver": "host:1:1",
    }
    return NewRun(**{**values, **changes})


def make_measurement(throughput: float, **changes: Any) -> Measurement:
    """Return a complete measurement with two windows; keywords change its fields."""
    window = Window(steps=10, samples=320, seconds=0.25, data_wait_s=0.01)
    values: dict[str, Any] = {
        "throughput": throughput,
        "throughput_low": throughput * 0.99,
        "throughput_high": throughput * 1.01,
        "step_ms": 25.0,
        "step_ms_spread": 0.01,
        "data_wait_share": 0.04,
        "build_s": 0.5,
        "first_step_s": 1.5,
        "warm_up_s": 1.0,
        "measure_s": 2.0,
        "first_loss": 2.5,
        "last_loss": 1.5,
        "settled": True,
        "peak_reserved_overall_bytes": 3 * 2**30,
        "peak_host_bytes": 2**40,
        "windows": (window, Window(steps=9, samples=288, seconds=0.26, data_wait_s=0.0)),
    }
    return Measurement(**{**values, **changes})


def make_trend_point(
    throughput: float, *, workload: str = "model.py", **changes: Any
) -> TrendPoint:
    """Return a complete point; keywords change its fields."""
    values: dict[str, Any] = {
        "series": Series(workload=workload, machine="abc", plan_digest="123", num_ranks=1),
        "hardware": {"device_name": "a device", "versions": {"torch": "2.13.0"}},
        "plan": Plan.of({"batch_size": 32}),
        "measured_at": datetime(2026, 11, 23, 12, tzinfo=UTC),
        "commit_hash": "0123456789abcdef",
        "committed_at": datetime(2026, 11, 22, 12, tzinfo=UTC),
        "commit_subject": "A change",
        "is_changed": False,
        "num_processes": 3,
        "throughput": throughput,
        "throughput_low": throughput * 0.99,
        "throughput_high": throughput * 1.01,
        "memory_bytes": 3 * 2**30,
        "first_step_s": 1.5,
    }
    return TrendPoint(**{**values, **changes})


def finish(
    store: TrialStore,
    run_id: int,
    number: int,
    result: TrialResult,
    purpose: Purpose = Purpose.SAMPLER,
) -> None:
    """Store a whole trial of `PLAN`, after which the run has used `number` seconds."""
    store.start_trial(run_id, number, PLAN, purpose, "because", f"logs/{number}.log")
    store.finish_trial(run_id, number, result, used_s=float(number))


def stored(store: TrialStore, *results: TrialResult) -> list[TrialResult]:
    """Return the results of trials after they were stored in a new run, and read again."""
    run = store.create_run(make_run())
    for number, result in enumerate(results, 1):
        finish(store, run.id, number, result)
    found = [trial.result for trial in store.trials(run.id)]
    return [result for result in found if result is not None]


class StoreContract:
    """What a `TrialStore` promises; subclasses have a fixture `store` that gives an empty one."""

    def test_a_measured_trial_comes_back_as_it_was(self, store: TrialStore) -> None:
        """Every field of a trial and its result survives, the windows included."""
        run = store.create_run(make_run())
        result = TrialResult(
            outcome=Outcome.OK,
            measurement=make_measurement(
                100.0, raced=True, alloc_retries=3, peak_reserved_bytes=2**40
            ),
            phase=Phase.MEASURE,
            log_tail="step 1\n",
            overhead_s=1.25,
            total_s=9.5,
        )
        before = datetime.now(UTC)
        finish(store, run.id, 1, result)
        (trial,) = store.trials(run.id)
        assert (trial.plan, trial.purpose, trial.reason) == (PLAN, Purpose.SAMPLER, "because")
        assert trial.result == result
        assert trial.log_path == "logs/1.log"
        assert trial.finished_at is not None
        assert before <= trial.started_at <= trial.finished_at <= datetime.now(UTC)

    def test_a_failed_trial_comes_back_as_it_was(self, store: TrialStore) -> None:
        """An out-of-memory keeps its error, traceback, phase and the memory it asked for."""
        result = TrialResult(
            outcome=Outcome.OOM,
            error="tried to allocate 90 GiB",
            traceback="File model.py, line 3",
            user_error=True,
            phase=Phase.FIRST_STEP,
            requested_bytes=90 * 2**30,
        )
        assert stored(store, result) == [result]

    def test_why_trials_were_ended_comes_back(self, store: TrialStore) -> None:
        """A run that goes on decides by it, so every cause survives, and none stays none."""
        results = [TrialResult(outcome=Outcome.CANCELLED, cause=cause) for cause in (*Cause, None)]
        assert stored(store, *results) == results

    def test_a_numerics_check_comes_back_as_it_was(self, store: TrialStore) -> None:
        """Losses and deviations survive, and one that is not finite fails the check."""
        near, far = (
            Deviation(part=Part.LOSS, what="loss", seen=seen, allowed=0.1, by_itself=0.01)
            for seen in (0.07, math.inf)
        )
        good = NumericsReport(
            reference_losses=(2.0, 1.5),
            plan_losses=(2.0, 1.6),
            deviations=(near,),
            format="bf16",
            seconds=3.0,
        )
        bad = NumericsReport(
            reference_losses=(2.0,), plan_losses=(math.nan,), deviations=(near, far)
        )
        reports = [TrialResult(outcome=Outcome.OK, numerics=report) for report in (good, bad)]
        first, second = (result.numerics for result in stored(store, *reports))
        assert first == good
        assert second is not None
        assert math.isnan(second.plan_losses[0])
        assert not second.passed

    def test_a_training_to_a_target_comes_back_as_it_was(self, store: TrialStore) -> None:
        """Each point of its curve survives; most trials have none."""
        points = tuple(
            QualityPoint(train_s=seconds, samples=320, value=value)
            for seconds, value in ((1.5, 0.5), (3.0, 0.92))
        )
        trained = TrialResult(outcome=Outcome.OK, quality=QualityCurve(target=0.9, points=points))
        assert stored(store, trained) == [trained]

    def test_a_diagnosis_comes_back_as_it_was(self, store: TrialStore) -> None:
        """Shares, findings with their lines and what is unknown survive; most trials have none."""
        diagnosis = Diagnosis(
            bound=Bound.MEMORY_BANDWIDTH,
            evidence=("of a step: other kernels 70%",),
            advice=("compile_mode: fused",),
            shares=Shares(data=0.1, forward=0.9),
            findings=(
                Finding(kind=FindingKind.PRINT, what="w", advice="a", file="/m.py", line=3),
            ),
            unknown={"communication": "there is one rank"},
            mfu=0.25,
        )
        measured = TrialResult(outcome=Outcome.OK, measurement=make_measurement(100.0))
        results = [replace(measured, diagnosis=diagnosis), measured]
        assert stored(store, *results) == results

    def test_a_trial_remembers_its_ranks(self, store: TrialStore) -> None:
        """One-device trials and those on several of the same run stay apart."""
        run = store.create_run(make_run(options={"num_ranks": 4}))
        store.start_trial(run.id, 1, PLAN, Purpose.BASELINE, "first", "1.log", num_ranks=4)
        store.start_trial(run.id, 2, PLAN, Purpose.PRESET, "scout", "2.log")
        assert store.run("last").new.num_ranks == 4
        assert [trial.num_ranks for trial in store.trials(run.id)] == [4, 1]

    def test_what_was_expected_of_a_trial_is_kept(self, store: TrialStore) -> None:
        """Also while it runs; of some trials nothing is expected."""
        run, promise = store.create_run(make_run()), Promise(throughput=3.5, chance=0.8, seconds=9)
        store.start_trial(run.id, 1, PLAN, Purpose.BASELINE, "first", "1.log")
        store.start_trial(run.id, 2, PLAN, Purpose.PRESET, "next", "2.log", promise=promise)
        assert [trial.promise for trial in store.trials(run.id)] == [None, promise]

    def test_trials_come_by_number_and_by_run(self, store: TrialStore) -> None:
        """Whatever the order in which they were started, and whatever other runs have."""
        first, second = store.create_run(make_run()), store.create_run(make_run())
        for number in (2, 10, 1):
            store.start_trial(first.id, number, PLAN, Purpose.SAMPLER, "because", "")
        assert [trial.number for trial in store.trials(first.id)] == [1, 2, 10]
        assert store.trials(second.id) == []
        assert [run.num_trials for run in store.runs()] == [0, 3]

    def test_a_run_comes_back_as_it_was(self, store: TrialStore) -> None:
        """A run's description survives, and its times are in UTC."""
        created = store.create_run(make_run(name="mine"))
        found = store.run("mine")
        assert found == created
        assert found.new == make_run(name="mine")
        assert found.created_at.tzinfo is UTC
        assert (found.state, found.num_trials, found.winner) == (RunState.RUNNING, 0, None)

    def test_a_run_without_a_name_is_named_after_its_id(self, store: TrialStore) -> None:
        """The default name is `run-<id>`, and the record still says that the user gave none."""
        run = store.create_run(make_run())
        assert run.name == f"run-{run.id}"
        assert store.run(run.name).new.name is None

    @pytest.mark.parametrize("key", ["key", "another"])
    def test_a_name_is_taken_once(self, store: TrialStore, key: str) -> None:
        """A second run of the same name is refused, whatever its workload."""
        store.create_run(make_run(name="mine"))
        with pytest.raises(UsageError, match="--name 'mine' is taken"):
            store.create_run(make_run(name="mine", key=key))
        assert len(store.runs()) == 1

    @pytest.mark.parametrize("name", ["last", "12", "run-12", ""])
    def test_names_that_stand_for_runs_are_reserved(self, store: TrialStore, name: str) -> None:
        """A name that would hide another way to name a run is refused."""
        with pytest.raises(UsageError, match="choose another name"):
            store.create_run(make_run(name=name))

    def test_runs_are_found_by_id_by_name_and_as_last(self, store: TrialStore) -> None:
        """`RUN` may be an id, a name or `last`; runs are listed newest first, also in pages."""
        first = store.create_run(make_run(name="first"))
        second = store.create_run(make_run())
        assert store.run(str(first.id)).name == "first"
        assert store.run("first").id == first.id
        assert store.run("last").id == second.id
        assert [run.id for run in store.runs()] == [second.id, first.id]
        assert [run.id for run in store.runs(limit=1)] == [second.id]
        assert [run.id for run in store.runs(limit=1, offset=1)] == [first.id]

    def test_an_unknown_run_is_named_with_the_nearest(self, store: TrialStore) -> None:
        """A misspelt name is answered with the one that was meant."""
        store.create_run(make_run(name="baseline-a"))
        with pytest.raises(NotFoundError, match="did you mean 'baseline-a'"):
            store.run("baselin-a")

    def test_an_empty_store_says_so(self, store: TrialStore) -> None:
        """Asking for a run before there is one names the command that makes one."""
        with pytest.raises(NotFoundError, match="has no run yet; `autotune run MODEL`"):
            store.run("last")

    def test_a_run_whose_driver_was_killed_is_read_as_killed(self, store: TrialStore) -> None:
        """Where that can be seen: not of another machine's driver, not of one that lives."""
        with _process() as process:
            gone = f"{platform.node()}:{process.pid}:{process.create_time()}"
            run = store.create_run(make_run(driver=gone))
            elsewhere = store.create_run(make_run(driver=f"elsewhere:{process.pid}:1.0"))
            reused = store.create_run(make_run(driver=f"{platform.node()}:{process.pid}:1.0"))
            ours = store.create_run(make_run(driver=this_driver()))
            assert store.run(run.name).state is RunState.RUNNING
        states = {record.id: record.state for record in store.runs()}
        alive, killed = RunState.RUNNING, RunState.KILLED
        assert states == {run.id: killed, elsewhere.id: alive, reused.id: killed, ours.id: alive}
        assert store.find_unfinished(make_run().key) is not None
        resumed = store.resume_run(run.id, budget_s=120.0, driver=this_driver())
        assert resumed.state is RunState.RUNNING
        store.finish_run(run.id, RunState.DONE, stop_reason="done", used_s=9.0, winner=WINNER)
        assert store.run(run.name).state is RunState.DONE

    def test_only_unfinished_runs_of_the_key_go_on(self, store: TrialStore) -> None:
        """Running and interrupted runs are found, one of a name or the latest; ended ones not."""
        runs = [store.create_run(make_run()) for _ in range(4)]
        states = (RunState.INTERRUPTED, RunState.RUNNING, RunState.DONE, RunState.FAILED)
        for run, state in zip(runs, states, strict=True):
            if state is not RunState.RUNNING:
                store.finish_run(run.id, state, stop_reason="", used_s=1.0, winner=None)
        found = store.find_unfinished("key")
        assert found is not None
        assert found.id == runs[1].id
        named = store.find_unfinished("key", runs[0].name)
        assert named is not None
        assert named.id == runs[0].id
        assert store.find_unfinished("key", "of no run") == found
        assert store.find_unfinished("other") is None

    def test_resuming_drops_what_was_in_flight(self, store: TrialStore) -> None:
        """Finished trials stay, the ones in flight may be tried again under the same number."""
        run = store.create_run(make_run())
        finish(store, run.id, 1, TrialResult(outcome=Outcome.CRASH))
        store.start_trial(run.id, 2, PLAN, Purpose.SAMPLER, "again", "2.log")
        assert store.trials(run.id)[1].result is None
        store.finish_run(
            run.id, RunState.INTERRUPTED, stop_reason="Ctrl-C", used_s=5.0, winner=None
        )
        resumed = store.resume_run(run.id, budget_s=120.0, driver="host:2:2")
        assert (resumed.state, resumed.num_trials, resumed.used_s) == (RunState.RUNNING, 1, 5.0)
        assert (resumed.new.budget_s, resumed.new.driver) == (120.0, "host:2:2")
        assert (resumed.finished_at, resumed.stop_reason) == (None, None)
        store.start_trial(run.id, 2, PLAN, Purpose.SAMPLER, "again", "2.log")

    def test_finishing_a_trial_books_the_budget(self, store: TrialStore) -> None:
        """The budget used is stored with each trial, so a killed run goes on with what is left."""
        run = store.create_run(make_run())
        finish(store, run.id, 3, TrialResult(outcome=Outcome.CRASH))
        assert store.run("last").used_s == 3.0

    def test_the_conclusion_comes_back_and_is_replaced(self, store: TrialStore) -> None:
        """A run has one conclusion: that of its last end."""
        run = store.create_run(make_run())
        for state, winner in ((RunState.INTERRUPTED, None), (RunState.DONE, WINNER)):
            store.finish_run(run.id, state, stop_reason="why", used_s=9.0, winner=winner)
            found = store.run("last")
            assert (found.state, found.winner, found.stop_reason) == (state, winner, "why")
        assert found.finished_at is not None
        store.finish_run(run.id, RunState.FAILED, stop_reason="", used_s=9.0, winner=None)
        assert store.run("last").winner is None

    def test_a_conclusion_without_a_confirmation_comes_back(self, store: TrialStore) -> None:
        """Its speed-up is unknown, which is not the same as one of zero."""
        run = store.create_run(make_run())
        winner = replace(WINNER, confirmed=False, speedup=None)
        store.finish_run(run.id, RunState.DONE, stop_reason="", used_s=9.0, winner=winner)
        assert store.run("last").winner == winner

    def test_a_conclusion_remembers_how_long_the_training_takes(self, store: TrialStore) -> None:
        """Where that was looked for; with what was looked for, and None where it was not."""
        objective = {"name": "time-to-train", "train_samples": 10_000_000}
        timed = replace(
            WINNER,
            own=replace(WINNER.own, train_s=7e4, start_s=30.5),
            baseline=replace(WINNER.baseline, train_s=1e5, start_s=1.5),
        )
        for options, winner in (({"objective": objective}, timed), ({"seed": 1}, WINNER)):
            run = store.create_run(make_run(options=options))
            store.finish_run(run.id, RunState.DONE, stop_reason="", used_s=9.0, winner=winner)
            assert store.run("last").winner == winner
        looked_for = [run.new.objective for run in store.runs()]
        assert looked_for == [{"name": "throughput"}, objective]


@contextmanager
def _process() -> Iterator[psutil.Popen]:
    """Give a process that lives until the block ends."""
    process = psutil.Popen(["sleep", "60"])
    try:
        yield process
    finally:
        process.kill()
        process.wait()
