import math
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from autotune.search_space.plan import Plan
from autotune.storage.database import Database
from autotune.storage.location import locate
from autotune.storage.query import read_only_query
from autotune.storage.sql import open_store
from autotune.trials.result import Outcome, Purpose, TrialResult

BF16 = Plan.of({"precision": "bf16", "workers": 4, "pin_memory": True, "prefetch": 2})


def _finish(store, run_id, number, plan, result, purpose=Purpose.SAMPLER):
    store.start_trial(run_id, number, plan, purpose, "because", f"logs/{number}.log")
    store.finish_trial(run_id, number, result, used_s=float(number))


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


def test_trials_can_be_read_without_their_windows(store, new_run, measurement):
    """A table of trials does not load the raw series."""
    run = store.create_run(new_run())
    _finish(store, run.id, 1, BF16, TrialResult(outcome=Outcome.OK, measurement=measurement(1.0)))
    (light,) = store.some_trials(run.id, [1])
    assert light.result.measurement.windows == ()
    assert len(store.trials(run.id)[0].result.measurement.windows) == 2


def test_two_processes_may_create_the_store_at_once(empty_url):
    """The tables are made once, whoever comes first."""
    code = "import sys; from autotune.storage.sql import open_store; open_store(sys.argv[1])"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, empty_url], stderr=subprocess.PIPE, text=True
        )
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
