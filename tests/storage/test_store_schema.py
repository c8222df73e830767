from dataclasses import fields

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text

from autotune.errors import StoreError
from autotune.storage import schema
from autotune.storage.database import Database
from autotune.storage.location import locate
from autotune.storage.sql import open_store
from autotune.storage.tables import Base, TrialRow
from autotune.trials.cause import Cause
from autotune.trials.result import Measurement, TrialResult

RUN_OF_0002 = (
    "(id, name, key, state, workload_path, workload_hash, hardware, facts, options, baseline, "
    "budget_s, used_s, driver, created_at) VALUES (1, 'run-1', 'k', 'done', 'model.py', 'h', "
    "'{}', '{}', '{}', '{}', 60, 60, 'host:1:1', '2026-01-01 00:00:00')"
)

PLAN_OF_0005 = (
    "(run_id, plan, kept_baseline, confirmed, throughput, baseline_throughput, how, changes, "
    "remarks) VALUES (1, '{}', false, false, 2.0, 1.0, 'once', '{}', '[]')"
)


def _execute(url, statement):
    database = Database(locate(url))
    with database.writing() as session:
        session.execute(text(statement))
    database.close()


def test_migrations_make_the_tables_that_the_code_maps(store):
    """A change of the tables without a migration is noticed."""
    with store._database.reading() as session:
        context = MigrationContext.configure(
            session.connection(), opts={"version_table": schema.VERSION_TABLE}
        )
        assert compare_metadata(context, Base.metadata) == []


def test_the_revisions_known_are_the_ones_on_disk():
    """`REVISIONS` lists the migrations, oldest first."""
    on_disk = ScriptDirectory(str(schema.MIGRATIONS)).walk_revisions()
    assert tuple(script.revision for script in on_disk)[::-1] == schema.REVISIONS


def test_everything_measured_has_a_column():
    """A new field of a measurement or a result is stored, not forgotten."""
    plain = {field.name for field in fields(Measurement)} - {"windows"}
    plain |= {field.name for field in fields(TrialResult)} - {"measurement"}
    assert plain <= set(TrialRow.__table__.columns.keys())


def test_trials_of_an_older_store_ran_on_one_rank(empty_url):
    """A store of before there were several is migrated, and keeps its trials."""
    database = Database(locate(empty_url))
    with database.writing() as session:
        schema.upgrade(session.connection(), "0002")
        session.execute(text(f"INSERT INTO runs {RUN_OF_0002}"))
        session.execute(
            text(
                "INSERT INTO trials (run_id, number, plan, purpose, reason, started_at) "
                "VALUES (1, 1, '{}', 'baseline', 'first', '2026-01-01 00:00:00')"
            )
        )
    database.close()
    store = open_store(empty_url)
    assert [trial.num_ranks for trial in store.trials(1)] == [1]
    assert store.run("last").new.num_ranks == 1
    store.close()


def test_a_winner_of_an_older_store_was_the_fastest(empty_url):
    """A conclusion of before there were objectives is kept, without a time to train."""
    database = Database(locate(empty_url))
    with database.writing() as session:
        schema.upgrade(session.connection(), "0005")
        session.execute(text(f"INSERT INTO runs {RUN_OF_0002}"))
        session.execute(text(f"INSERT INTO plans {PLAN_OF_0005}"))
    database.close()
    store = open_store(empty_url)
    run = store.run("last")
    assert run.winner.own.throughput == 2.0
    assert run.winner.own.train_s is run.winner.own.start_s is None
    assert run.new.objective == {"name": "throughput"}
    store.close()


CANCELLED_OF_0006 = [
    ("cancelled", "the user stopped the run", Cause.USER_STOPPED),
    ("cancelled", "the time for searching ended", Cause.SEARCH_ENDED),
    ("cancelled", "the budget ended", Cause.BUDGET_ENDED),
    ("cancelled", "given up: 2.5 times as long as expected", Cause.TOO_SLOW),
    ("infra", "rank 1: OSError: [Errno 28] No space left on device", Cause.DISK_FULL),
    ("infra", "unable to allocate shared memory: No space left on device", None),
    ("infra", "a node was lost", None),
    ("crash", "the budget ended", None),
    ("ok", None, None),
]


def test_trials_of_an_older_store_have_the_cause_that_their_error_tells(empty_url):
    """A store of before there were causes is migrated, so that its runs can go on."""
    database = Database(locate(empty_url))
    insert = text(
        "INSERT INTO trials (run_id, number, plan, purpose, reason, started_at, phase, outcome, "
        "error) VALUES (1, :number, '{}', 'preset', 'first', '2026-01-01 00:00:00', 'build', "
        ":outcome, :error)"
    )
    with database.writing() as session:
        schema.upgrade(session.connection(), "0006")
        session.execute(text(f"INSERT INTO runs {RUN_OF_0002}"))
        for number, (outcome, error, _) in enumerate(CANCELLED_OF_0006, 1):
            values = {"number": number, "outcome": outcome, "error": error}
            session.execute(insert, values)
    database.close()
    store = open_store(empty_url)
    causes = [trial.result.cause for trial in store.trials(1)]
    assert causes == [cause for _, _, cause in CANCELLED_OF_0006]
    store.close()


def test_opening_again_changes_nothing(url, new_run):
    """A second open finds the runs of the first."""
    for expected in range(2):
        store = open_store(url)
        assert len(store.runs()) == expected
        store.create_run(new_run())
        store.close()


@pytest.mark.parametrize("read_only", [False, True])
def test_a_newer_store_is_left_alone(empty_url, read_only):
    """A store of a later autotune says which revision it has, and to upgrade."""
    open_store(empty_url).close()
    _execute(empty_url, f"UPDATE {schema.VERSION_TABLE} SET version_num = '9999'")
    with pytest.raises(StoreError, match=r"newer autotune \(revision 9999.*pip install --upgrade"):
        open_store(empty_url, read_only=read_only)


def test_an_older_file_is_brought_up_to_date_by_a_reader(tmp_path, monkeypatch):
    """Who updates autotune sees their runs at once."""
    file = str(tmp_path / "autotune.db")
    with monkeypatch.context() as before:
        before.setattr(schema, "REVISIONS", schema.REVISIONS[:-1])
        open_store(file).close()
    store = open_store(file, read_only=True)
    assert store.runs() == []
    store.close()


def test_an_older_database_is_not_migrated_by_a_reader(postgres_url, monkeypatch):
    """It may be a team's: the message names the command that migrates."""
    monkeypatch.setattr(schema, "REVISIONS", (*schema.REVISIONS, "9999"))
    with pytest.raises(StoreError, match=r"older autotune.*`autotune run` on it once"):
        open_store(postgres_url, read_only=True)


def test_a_database_of_another_program_is_not_read(empty_url):
    """A reader says that there is no store in a database that autotune did not make."""
    _execute(empty_url, "CREATE TABLE customers (id INTEGER)")
    with pytest.raises(StoreError, match="holds no autotune store"):
        open_store(empty_url, read_only=True)


def test_tables_of_another_program_are_not_taken_over(empty_url):
    """A table named like one of ours stops the migration before it starts."""
    _execute(empty_url, "CREATE TABLE trials (id INTEGER)")
    with pytest.raises(StoreError, match="table 'trials' of another program"):
        open_store(empty_url)


def test_the_store_lives_beside_other_tables(empty_url, new_run):
    """Tables of other names stay what they are."""
    _execute(empty_url, "CREATE TABLE customers (id INTEGER)")
    store = open_store(empty_url)
    store.create_run(new_run())
    store.close()
    _execute(empty_url, "INSERT INTO customers VALUES (1)")


def test_a_failed_migration_leaves_nothing_behind(empty_url, monkeypatch):
    """Tables, version and view come in one transaction."""

    def fail(session):
        session.execute(text("SELECT * FROM nowhere"))

    with monkeypatch.context() as patched:
        patched.setattr(schema.wide, "create_view", fail)
        with pytest.raises(Exception, match="nowhere"):
            open_store(empty_url)
    open_store(empty_url).close()
