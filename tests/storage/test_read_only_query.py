import math
import sqlite3

import pytest

from autotune.errors import StoreError, UsageError
from autotune.search_space.plan import Plan
from autotune.storage.query import read_only_query
from autotune.storage.selection import select_trials
from autotune.storage.sql import open_store
from autotune.trials.result import Outcome, Purpose, TrialResult

ENDLESS = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT {} FROM r"


@pytest.fixture
def filled(store, url, new_run, measurement):
    """The URL of a store with one run of four trials: three measured and one out of memory."""
    run = store.create_run(new_run(name="mine"))
    for number, speed in enumerate((100.0, 300.0, 200.0, None), start=1):
        plan = Plan.of({"precision": "fp32" if number == 1 else "bf16", "workers": number})
        store.start_trial(run.id, number, plan, Purpose.SAMPLER, "because", "log")
        if speed is None:
            result = TrialResult(outcome=Outcome.OOM)
        else:
            result = TrialResult(outcome=Outcome.OK, measurement=measurement(speed))
        store.finish_trial(run.id, number, result, 1.0)
    return url


def _numbers(result):
    return [row[result.columns.index("number")] for row in result.rows]


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE runs SET name = 'stolen'",
        "DELETE FROM windows",
        "INSERT INTO knobs VALUES ('a', 'b')",
        "DROP VIEW trials_wide",
        "CREATE TABLE mine (id INTEGER)",
        "WITH gone AS (DELETE FROM windows RETURNING 1) SELECT * FROM gone",
        "ATTACH DATABASE '/tmp/stolen.db' AS stolen",
        "PRAGMA writable_schema = 1",
        "PRAGMA query_only = 0",
        "VACUUM INTO '/tmp/stolen.db'",
        "COPY runs TO '/tmp/stolen.csv'",
        "SELECT set_config('transaction_read_only', 'off', false)",
        "SELECT 1; SELECT 2",
        "SELECT 1; DROP VIEW trials_wide",
        "COMMIT; DROP VIEW trials_wide",
        "COMMIT",
        "BEGIN",
        "",
    ],
)
def test_nothing_but_reading_is_possible(store, filled, sql):
    """The database refuses whatever is not one reading statement, and the store is unchanged."""
    with pytest.raises(UsageError, match=r"the database refused the query: .*trials_wide has a"):
        read_only_query(filled, sql)
    assert store.run("mine").num_trials == 4
    assert read_only_query(filled, "SELECT count(*) FROM trials_wide").rows == [(4,)]
    assert read_only_query(filled, "SELECT count(*) FROM windows").rows == [(6,)]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT hex(fts3_tokenizer('simple'))",
        "SELECT digest FROM tokens",
        "SELECT count(*) FROM audit",
        "SELECT HEX(FTS3_TOKENIZER('simple'))",
        "SELECT fts5(1)",
        "SELECT load_extension('/tmp/stolen.so')",
        "SELECT * FROM dbstat",
        "SELECT * FROM sqlite_stmt",
        "SELECT file FROM pragma_database_list",
        "SELECT * FROM pragma_module_list",
        "SELECT * FROM pragma_compile_options",
        "SELECT sqlite_source_id()",
        "SELECT sqlite_compileoption_get(1)",
        "SELECT data FROM sqlite_dbpage",
    ],
)
def test_nothing_outside_of_tables_is_read(tmp_path, sql):
    """SQLite's memory, files and settings stay closed."""
    url = str(tmp_path / "autotune.db")
    open_store(url).close()
    with pytest.raises(UsageError, match="the database refused the query"):
        read_only_query(url, sql)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT upper(printf('%d', round(abs(-1.5), 1))), strftime('%Y', 'now'), sqrt(4.0)",
        "SELECT number, rank() OVER (ORDER BY throughput) FROM trials_wide",
        "SELECT purpose, group_concat(number), avg(throughput) FROM trials GROUP BY 1",
        "SELECT plan->>'precision', json_extract(plan, '$.workers') FROM trials",
        "SELECT key, value FROM trials, json_each(trials.plan)",
        "SELECT name FROM sqlite_master WHERE name LIKE 't%' AND name GLOB 't*'",
    ],
)
def test_what_computes_from_tables_is_answered(tmp_path, sql):
    """Functions of text, time, mathematics and JSON, aggregates and windows."""
    url = str(tmp_path / "autotune.db")
    open_store(url).close()
    assert read_only_query(url, sql).columns


def test_flags_and_boolean_knobs_are_booleans_in_every_database(store, filled, new_run):
    """SQLite keeps 0 and 1 for them; counts and other knobs stay numbers."""
    run = store.run("mine")
    plan = Plan.of({"precision": "fp32", "workers": 1, "pin_memory": True})
    store.start_trial(run.id, 5, plan, Purpose.SAMPLER, "because", "log")
    sql = "SELECT pin_memory, workers, settled FROM trials_wide WHERE number IN (1, 5) ORDER BY"
    rows = read_only_query(filled, f"{sql} number").rows
    assert [row[0] for row in rows][-1] is True
    assert [row[1] for row in rows] == [1, 1]
    assert rows[0][2] is True


def test_an_endless_query_ends_at_its_time_limit(filled):
    """A recursion without an end is stopped by the database, with the limit named."""
    with pytest.raises(UsageError, match=r"stopped after 0\.2 s, the limit"):
        read_only_query(filled, ENDLESS.format("count(*)"), timeout_s=0.2)


def test_a_huge_result_is_cut(filled):
    """Rows beyond the limit are never asked for, so an endless result ends as well."""
    result = read_only_query(filled, ENDLESS.format("n"), max_rows=5)
    assert result.rows == [(1,), (2,), (3,), (4,), (5,)]
    assert result.truncated


def test_a_result_of_exactly_the_limit_is_whole(filled):
    """The last row that fits does not count as cut."""
    result = read_only_query(filled, "SELECT number FROM trials", max_rows=4)
    assert (len(result.rows), result.truncated) == (4, False)


def test_a_percent_sign_is_only_a_character(filled):
    """LIKE patterns reach the database as they are typed."""
    result = read_only_query(filled, "SELECT count(*) FROM trials_wide WHERE precision LIKE 'b%'")
    assert result.rows == [(3,)]


def test_a_closing_semicolon_is_accepted(filled):
    """One statement may end as people end statements."""
    assert read_only_query(filled, "SELECT 1 AS one;").columns == ("one",)


def test_an_unknown_column_is_answered_in_the_databases_words(filled):
    """The message holds the column that is not there, and nothing of our own SQL."""
    with pytest.raises(UsageError, match="precison") as raised:
        read_only_query(filled, "SELECT precison FROM trials_wide")
    assert "DECLARE" not in str(raised.value)


def test_a_query_makes_no_store(tmp_path):
    """Asking a store that is not there creates nothing."""
    with pytest.raises(StoreError, match=r"there is no store .*`autotune run MODEL` creates one"):
        read_only_query(str(tmp_path / "autotune.db"), "SELECT 1")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "sql", ["ATTACH DATABASE '{}' AS other", "PRAGMA database_list", "PRAGMA query_only = 0"]
)
def test_a_query_stays_inside_its_store(sqlite_url, tmp_path, sql):
    """Statements that would succeed on a read-only connection are refused as well."""
    open_store(sqlite_url).close()
    open_store(str(tmp_path / "other.db")).close()
    with pytest.raises(UsageError, match="not authorized"):
        read_only_query(sqlite_url, sql.format(tmp_path / "other.db"))


def test_a_function_that_writes_is_refused(postgres_url, new_run):
    """A SELECT that would write by calling a function runs in a read-only transaction."""
    store = open_store(postgres_url)
    store.create_run(new_run())
    with store._database.writing() as session:
        session.connection().exec_driver_sql(
            "CREATE FUNCTION forget() RETURNS int LANGUAGE sql AS 'DELETE FROM runs RETURNING 1'"
        )
    with pytest.raises(UsageError, match="in a read-only transaction"):
        read_only_query(postgres_url, "SELECT forget()")
    assert len(store.runs()) == 1
    store.close()


def test_a_huge_value_is_refused(sqlite_url):
    """One value cannot fill the memory of whoever serves the query."""
    open_store(sqlite_url).close()
    with pytest.raises(UsageError, match="too big"):
        read_only_query(sqlite_url, "SELECT length(hex(zeroblob(500000000)))")


def test_a_query_sees_what_a_running_driver_wrote(sqlite_url, new_run):
    """A reader needs no closing of the writer: the write-ahead log is read as well."""
    store = open_store(sqlite_url)
    store.create_run(new_run(name="mine"))
    assert read_only_query(sqlite_url, "SELECT name FROM runs").rows == [("mine",)]
    store.close()


@pytest.mark.parametrize(
    ("sort", "numbers"),
    [
        (None, [1, 2, 3, 4]),
        ("throughput", [2, 3, 1, 4]),
        ("-throughput", [1, 3, 2, 4]),
        ("workers", [1, 2, 3, 4]),
        ("-workers", [4, 3, 2, 1]),
    ],
)
def test_trials_are_sorted_with_the_unknown_last(store, filled, sort, numbers):
    """Throughput begins with the fastest, all else with the least; `-` turns it round."""
    assert _numbers(select_trials(filled, store.run("mine").id, sort=sort)) == numbers


def test_trials_are_chosen_by_an_sql_expression(store, filled, new_run):
    """`--where` sees the columns of one run, whatever it holds."""
    mine = store.run("mine").id
    other = store.create_run(new_run())
    store.start_trial(other.id, 9, Plan.of({"precision": "bf16"}), Purpose.SAMPLER, "", "")
    assert _numbers(select_trials(filled, mine, where="precision = 'bf16' -- all")) == [2, 3, 4]
    assert _numbers(select_trials(filled, mine, where="outcome = 'oom' OR workers = 1")) == [1, 4]


def test_an_unknown_column_to_sort_by_names_the_nearest(store, filled):
    """A misspelt column is answered with the one that was meant."""
    with pytest.raises(UsageError, match=r"no column 'throughputs'; did you mean 'throughput'\?"):
        select_trials(filled, store.run("mine").id, sort="throughputs")


def test_an_expression_cannot_write(store, filled):
    """What `--where` holds runs where nothing can be written."""
    with pytest.raises(UsageError, match="the database refused the query"):
        select_trials(filled, store.run("mine").id, where="1 = 1); DELETE FROM trials; --")
    assert store.run("mine").num_trials == 4


def test_the_file_itself_is_opened_for_reading(sqlite_url):
    """Beneath the refusals there is a connection that could not write if it were asked to."""
    open_store(sqlite_url).close()
    reader = open_store(sqlite_url, read_only=True)
    with reader._database.raw() as connection:
        connection.execute("PRAGMA query_only = OFF")
        with pytest.raises(sqlite3.OperationalError, match="readonly database"):
            connection.execute("DELETE FROM runs")
    reader.close()


def test_numbers_that_are_none_do_not_reach_the_database(store, filled, new_run, measurement):
    """A throughput that is not finite would be the maximum of every PostgreSQL query."""
    run = store.create_run(new_run())
    store.start_trial(run.id, 1, Plan.of({"precision": "fp16"}), Purpose.SAMPLER, "", "")
    result = TrialResult(outcome=Outcome.OK, measurement=measurement(math.inf))
    store.finish_trial(run.id, 1, result, 1.0)
    assert read_only_query(filled, "SELECT max(throughput) FROM trials").rows == [(300.0,)]
