import math
import platform
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime

import psutil
import pytest

from autotune.errors import UsageError
from autotune.search_space.plan import Plan
from autotune.storage.database import Database
from autotune.storage.driver import this_driver
from autotune.storage.location import locate
from autotune.storage.query import read_only_query
from autotune.storage.records import RunState, Winner
from autotune.storage.sql import open_store
from autotune.trials.diagnosis import Bound, Diagnosis, Finding, FindingKind, Shares
from autotune.trials.numerics_report import Deviation, NumericsReport, Part
from autotune.trials.result import Outcome, Phase, Purpose, TrialResult

BF16 = Plan.of({"precision": "bf16", "workers": 4, "pin_memory": True, "prefetch": 2})
WINNER = Winner(
    plan=BF16,
    kept_baseline=False,
    confirmed=True,
    speedup=1.5,
    speedup_low=1.4,
    speedup_high=1.6,
    throughput=150.0,
    baseline_throughput=100.0,
    memory_bytes=2**31,
    baseline_memory_bytes=None,
    how="3 fresh processes each",
    changes={"precision": "worth 20 %"},
    remarks=("the batch size changed",),
)


def _finish(store, run_id, number, plan, result, purpose=Purpose.SAMPLER):
    store.start_trial(run_id, number, plan, purpose, "because", f"logs/{number}.log")
    store.finish_trial(run_id, number, result, used_s=float(number))


def test_a_measured_trial_comes_back_as_it_was(store, new_run, measurement):
    """Every field of a result, its windows included, survives the database."""
    run = store.create_run(new_run())
    result = TrialResult(
        outcome=Outcome.OK,
        measurement=measurement(100.0, raced=True, alloc_retries=3, peak_reserved_bytes=2**40),
        phase=Phase.MEASURE,
        log_tail="step 1\n",
        overhead_s=1.25,
        total_s=9.5,
    )
    before = datetime.now(UTC)
    _finish(store, run.id, 1, BF16, result)
    (trial,) = store.trials(run.id)
    assert (trial.plan, trial.purpose, trial.reason) == (BF16, Purpose.SAMPLER, "because")
    assert trial.result == result
    assert trial.log_path == "logs/1.log"
    assert before <= trial.started_at <= trial.finished_at <= datetime.now(UTC)


def test_a_conclusion_remembers_how_long_the_training_takes(store, new_run):
    """Where that was looked for; with what was looked for, and None where it was not."""
    objective = {"name": "time-to-train", "train_samples": 10_000_000}
    times = {"train_s": 7e4, "baseline_train_s": 1e5, "start_s": 30.5, "baseline_start_s": 1.5}
    for options, winner in (
        ({"objective": objective}, replace(WINNER, **times)),
        ({"numerics": "exact"}, WINNER),
    ):
        run = store.create_run(new_run(options=options))
        store.finish_run(run.id, RunState.DONE, stop_reason="done", used_s=9.0, winner=winner)
        assert store.run("last").winner == winner
    looked_for = [run.new.objective for run in store.runs()]
    assert looked_for == [{"name": "throughput"}, objective]


def test_a_trial_remembers_its_ranks(store, new_run):
    """One-device trials and those on several of the same run stay apart."""
    run = store.create_run(new_run(options={"num_ranks": 4}))
    store.start_trial(run.id, 1, BF16, Purpose.BASELINE, "first", "1.log", num_ranks=4)
    store.start_trial(run.id, 2, BF16, Purpose.PRESET, "scout", "2.log")
    assert store.run("last").new.num_ranks == 4
    assert [trial.num_ranks for trial in store.trials(run.id)] == [4, 1]


def test_a_failed_trial_comes_back_as_it_was(store, new_run):
    """An out-of-memory keeps its error, traceback, phase and the memory it asked for."""
    run = store.create_run(new_run())
    result = TrialResult(
        outcome=Outcome.OOM,
        error="tried to allocate 90 GiB",
        traceback="File model.py, line 3",
        user_error=True,
        phase=Phase.FIRST_STEP,
        requested_bytes=90 * 2**30,
    )
    _finish(store, run.id, 1, BF16, result)
    assert store.trials(run.id)[0].result == result


def test_a_numerics_check_comes_back_as_it_was(store, new_run):
    """Losses and deviations survive, and one that is not finite fails the check."""
    run = store.create_run(new_run())
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
    bad = NumericsReport(reference_losses=(2.0,), plan_losses=(math.nan,), deviations=(near, far))
    for number, report in enumerate((good, bad), start=1):
        result = TrialResult(outcome=Outcome.OK, numerics=report)
        _finish(store, run.id, number, BF16, result, Purpose.NUMERICS)
    first, second = (trial.result.numerics for trial in store.trials(run.id))
    assert first == good
    assert math.isnan(second.plan_losses[0])
    assert not second.passed


def test_a_diagnosis_comes_back_as_it_was(store, new_run, measurement):
    """Shares, findings with their lines and what is unknown survive; most trials have none."""
    run = store.create_run(new_run())
    diagnosis = Diagnosis(
        bound=Bound.MEMORY_BANDWIDTH,
        evidence=("of a step: other kernels 70%",),
        advice=("compile_mode: fused",),
        shares=Shares(data=0.1, forward=0.9),
        findings=(Finding(kind=FindingKind.PRINT, what="w", advice="a", file="/m.py", line=3),),
        unknown={"communication": "there is one rank"},
        mfu=0.25,
    )
    result = TrialResult(
        outcome=Outcome.OK,
        measurement=measurement(100.0),
        diagnosis=diagnosis,
        phase=Phase.MEASURE,
    )
    _finish(store, run.id, 1, BF16, result, Purpose.BASELINE)
    _finish(store, run.id, 2, BF16, replace(result, diagnosis=None))
    first, second = (trial.result.diagnosis for trial in store.trials(run.id))
    assert first == diagnosis
    assert second is None


def test_what_no_database_holds_is_replaced(store, new_run, measurement):
    """A NUL or half a character in a log, and a loss that is not finite, do not end the run."""
    run = store.create_run(new_run(facts={"flops": math.inf}))
    measured = measurement(100.0, last_loss=math.inf)
    result = TrialResult(outcome=Outcome.OK, measurement=measured, log_tail="a\0b\udc80c")
    _finish(store, run.id, 1, BF16, result)
    found = store.trials(run.id)[0].result
    assert found.log_tail == "a\N{REPLACEMENT CHARACTER}b?c"
    assert math.isnan(found.measurement.last_loss)
    assert store.run("last").new.facts == {"flops": None}


def test_a_run_comes_back_as_it_was(store, new_run):
    """A run's description survives, and its times are in UTC."""
    created = store.create_run(new_run(name="mine"))
    found = store.run("mine")
    assert found == created
    assert found.new == new_run(name="mine")
    assert found.created_at.tzinfo is UTC
    assert (found.state, found.num_trials, found.winner) == (RunState.RUNNING, 0, None)


def test_a_run_whose_driver_was_killed_is_read_as_killed(store, new_run):
    """Where that can be seen: not of another machine's driver, not of one that lives."""
    process = psutil.Popen(["sleep", "60"])
    driver = f"{platform.node()}:{process.pid}:{process.create_time()}"
    run = store.create_run(new_run(driver=driver))
    elsewhere = store.create_run(new_run(driver=f"elsewhere:{process.pid}:1.0"))
    reused = store.create_run(new_run(driver=f"{platform.node()}:{process.pid}:1.0"))
    ours = store.create_run(new_run(driver=this_driver()))
    assert store.run(run.name).state is RunState.RUNNING
    process.kill()
    process.wait()
    states = {record.id: record.state for record in store.runs()}
    alive, killed = RunState.RUNNING, RunState.KILLED
    assert states == {run.id: killed, elsewhere.id: alive, reused.id: killed, ours.id: alive}
    assert store.find_unfinished(new_run().key) is not None
    resumed = store.resume_run(run.id, budget_s=120.0, driver=this_driver())
    assert resumed.state is RunState.RUNNING
    store.finish_run(run.id, RunState.DONE, stop_reason="done", used_s=9.0, winner=WINNER)
    assert store.run(run.name).state is RunState.DONE


def test_a_run_without_a_name_is_named_after_its_id(store, new_run):
    """The default name is `run-<id>`, and the record still says that the user gave none."""
    run = store.create_run(new_run())
    assert run.name == f"run-{run.id}"
    assert store.run(run.name).new.name is None


@pytest.mark.parametrize("key", ["key", "another"])
def test_a_name_is_taken_once(store, new_run, key):
    """A second run of the same name is refused, whatever its workload."""
    store.create_run(new_run(name="mine"))
    with pytest.raises(UsageError, match="--name 'mine' is taken"):
        store.create_run(new_run(name="mine", key=key))
    assert len(store.runs()) == 1


@pytest.mark.parametrize("name", ["last", "12", "run-12", ""])
def test_names_that_stand_for_runs_are_reserved(store, new_run, name):
    """A name that would hide another way to name a run is refused."""
    with pytest.raises(UsageError, match="choose another name"):
        store.create_run(new_run(name=name))


def test_runs_are_found_by_id_by_name_and_as_last(store, new_run):
    """`RUN` may be an id, a name or `last`; all runs are listed newest first."""
    first = store.create_run(new_run(name="first"))
    second = store.create_run(new_run())
    assert store.run(str(first.id)).name == "first"
    assert store.run("first").id == first.id
    assert store.run("last").id == second.id
    assert [run.id for run in store.runs()] == [second.id, first.id]


def test_an_unknown_run_is_named_with_the_nearest(store, new_run):
    """A misspelt name is answered with the one that was meant."""
    store.create_run(new_run(name="baseline-a"))
    with pytest.raises(UsageError, match="did you mean 'baseline-a'"):
        store.run("baselin-a")


def test_an_empty_store_says_so(store):
    """Asking for a run before there is one names the command that makes one."""
    with pytest.raises(UsageError, match="has no run yet; `autotune run MODEL`"):
        store.run("last")


def test_only_unfinished_runs_of_the_key_go_on(store, new_run):
    """Running and interrupted runs are found, the latest first; done and failed ones are not."""
    runs = [store.create_run(new_run()) for _ in range(4)]
    states = (RunState.INTERRUPTED, RunState.RUNNING, RunState.DONE, RunState.FAILED)
    for run, state in zip(runs, states, strict=True):
        if state is not RunState.RUNNING:
            store.finish_run(run.id, state, stop_reason="", used_s=1.0, winner=None)
    assert store.find_unfinished("key").id == runs[1].id
    assert store.find_unfinished("other") is None


def test_resuming_drops_what_was_in_flight(store, new_run, measurement):
    """Finished trials stay, the ones in flight may be tried again under the same number."""
    run = store.create_run(new_run())
    _finish(store, run.id, 1, BF16, TrialResult(outcome=Outcome.OK, measurement=measurement(1.0)))
    store.start_trial(run.id, 2, BF16, Purpose.SAMPLER, "again", "2.log")
    assert store.trials(run.id)[1].result is None
    store.finish_run(run.id, RunState.INTERRUPTED, stop_reason="Ctrl-C", used_s=5.0, winner=None)
    resumed = store.resume_run(run.id, budget_s=120.0, driver="host:2:2")
    assert (resumed.state, resumed.num_trials, resumed.used_s) == (RunState.RUNNING, 1, 5.0)
    assert (resumed.new.budget_s, resumed.new.driver) == (120.0, "host:2:2")
    assert (resumed.finished_at, resumed.stop_reason) == (None, None)
    store.start_trial(run.id, 2, BF16, Purpose.SAMPLER, "again", "2.log")


def test_finishing_a_trial_books_the_budget(store, new_run):
    """The budget used is stored with each trial, so a killed run goes on with what is left."""
    run = store.create_run(new_run())
    _finish(store, run.id, 3, BF16, TrialResult(outcome=Outcome.CRASH))
    assert store.run("last").used_s == 3.0


def test_the_conclusion_comes_back_and_is_replaced(store, new_run):
    """A run has one conclusion: that of its last end."""
    run = store.create_run(new_run())
    for state, winner in ((RunState.INTERRUPTED, None), (RunState.DONE, WINNER)):
        store.finish_run(run.id, state, stop_reason="why", used_s=9.0, winner=winner)
        found = store.run("last")
        assert (found.state, found.winner, found.stop_reason) == (state, winner, "why")
    assert found.finished_at is not None
    store.finish_run(run.id, RunState.FAILED, stop_reason="", used_s=9.0, winner=None)
    assert store.run("last").winner is None


def test_trials_can_be_read_without_their_windows(store, new_run, measurement):
    """A table of trials does not load the raw series."""
    run = store.create_run(new_run())
    _finish(store, run.id, 1, BF16, TrialResult(outcome=Outcome.OK, measurement=measurement(1.0)))
    (light,) = store.some_trials(run.id, [1])
    assert light.result.measurement.windows == ()
    assert len(store.trials(run.id)[0].result.measurement.windows) == 2


def test_two_processes_may_create_the_store_at_once(url):
    """The tables are made once, whoever comes first."""
    code = "import sys; from autotune.storage.sql import open_store; open_store(sys.argv[1])"
    processes = [
        subprocess.Popen([sys.executable, "-c", code, url], stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    errors = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors


def test_two_may_open_a_new_file_at_once(sqlite_url):
    """Both turn it to write-ahead logging, where SQLite does not wait by itself."""
    together = threading.Barrier(2, timeout=30)

    def write(number: int) -> None:
        database = Database(locate(f"{sqlite_url}{number}"))
        together.wait()
        with closing(database), database.writing() as session:
            session.connection()

    with ThreadPoolExecutor(2) as pair:
        for number in range(50):
            list(pair.map(write, [number] * 2))


def test_a_reader_sees_whole_trials_while_another_is_written(store, url, new_run, measurement):
    """An open write transaction neither blocks a reader nor shows it half a trial."""
    run = store.create_run(new_run())
    result = TrialResult(outcome=Outcome.OK, measurement=measurement(1.0))
    _finish(store, run.id, 1, BF16, result)
    reader = open_store(url, read_only=True)
    with store._database.writing() as session:
        session.connection().exec_driver_sql("UPDATE trials SET throughput = 2.0")
        assert reader.trials(run.id)[0].result == result
    assert reader.trials(run.id)[0].result.measurement.throughput == 2.0
    reader.close()


def test_knobs_are_columns(store, url, new_run, measurement):
    """Each knob is a column of `trials_wide`; numbers compare as numbers, switches as such."""
    run = store.create_run(new_run())
    assert "precision" in read_only_query(url, "SELECT * FROM trials_wide").columns
    for number, (plan, speed) in enumerate(
        [
            (run.new.baseline, 100.0),
            (BF16, 90.0),
            (Plan.of({**BF16.values, "workers": 16}), 200.0),
        ],
        start=1,
    ):
        measured = measurement(speed)
        _finish(store, run.id, number, plan, TrialResult(outcome=Outcome.OK, measurement=measured))
    best = "SELECT precision, max(throughput) FROM trials_wide GROUP BY 1 ORDER BY 1"
    assert read_only_query(url, best).rows == [("bf16", 200.0), ("fp32", 100.0)]
    ask = "SELECT number FROM trials_wide WHERE {} ORDER BY number"
    assert read_only_query(url, ask.format("workers > 4")).rows == [(3,)]
    assert read_only_query(url, ask.format("pin_memory")).rows == [(2,), (3,)]
    assert read_only_query(url, ask.format("prefetch IS NULL")).rows == [(1,)]


def test_knobs_never_hide_a_column_of_the_trial(store, url, new_run):
    """The user's own knobs may be called anything, and hold values of several types."""
    names = {"Number": 1, "depth": 1, "Depth": 2.5, "throughput": "high"}
    run = store.create_run(new_run(baseline=Plan.of(names)))
    _finish(store, run.id, 7, Plan.of(names), TrialResult(outcome=Outcome.CRASH))
    changed = Plan.of({**names, "depth": 0.5, "throughput": 3})
    _finish(store, run.id, 8, changed, TrialResult(outcome=Outcome.CRASH))
    sql = (
        'SELECT number, "knob_Number", "Depth", knob_depth FROM trials_wide '
        "WHERE throughput IS NULL AND knob_throughput IS NOT NULL ORDER BY number"
    )
    assert read_only_query(url, sql).rows == [(7, 1, 2.5, 1.0), (8, 1, 2.5, 0.5)]
