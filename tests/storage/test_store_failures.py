import multiprocessing
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from autotune.errors import AutotuneError, StoreError
from autotune.search_space.plan import Plan
from autotune.storage.location import locate
from autotune.storage.sql import open_store
from autotune.trials.result import Outcome, Purpose, TrialResult

NOBODY = 65534
PLAN = Plan.of({"precision": "fp32"})
CRASH = TrialResult(outcome=Outcome.CRASH)

WRITER = """
import sys
from autotune.search_space.plan import Plan
from autotune.storage.sql import open_store
from autotune.trials.result import Outcome, Purpose, TrialResult
store, plan = open_store(sys.argv[1]), Plan.of({"precision": "fp32"})
for number in range(1, 100_000):
    store.start_trial(1, number, plan, Purpose.SAMPLER, "because", "log")
    store.finish_trial(1, number, TrialResult(outcome=Outcome.CRASH), float(number))
    print(number, flush=True)
"""


def _write(store, run_id, number, log_tail=""):
    store.start_trial(run_id, number, PLAN, Purpose.SAMPLER, "because", "log")
    result = TrialResult(outcome=Outcome.CRASH, log_tail=log_tail)
    store.finish_trial(run_id, number, result, 1.0)


def _in_child(act):
    """Run `act` in a forked process, and return the message of the StoreError it ends with."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def report():
        try:
            act()
            sender.send("no error")
        except AutotuneError as error:
            sender.send(f"{type(error).__name__}: {error}")

    child = context.Process(target=report)
    child.start()
    sender.close()
    message = receiver.recv()
    child.join()
    return message


def _as_nobody(act):
    """Run `act` as a user without rights; root may write anywhere."""

    def drop_rights():
        if os.geteuid() == 0:
            os.setuid(NOBODY)
        act()

    return _in_child(drop_rights)


@pytest.fixture
def open_folder(monkeypatch):
    """A folder that anybody may read, which is where the process is; pytest's own are private."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.chdir(folder)
        Path(folder).chmod(0o755 if os.geteuid() == 0 else 0o555)
        yield Path(folder)
        Path(folder).chmod(0o755)
        monkeypatch.undo()


def test_what_was_finished_survives_a_kill(url, new_run):
    """After SIGKILL in the middle of writing, each trial that was reported is there, whole."""
    store = open_store(url)
    store.create_run(new_run())
    store.close()
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, url], stdout=subprocess.PIPE, text=True
    )
    reported = [int(writer.stdout.readline()) for _ in range(20)][-1]
    writer.send_signal(signal.SIGKILL)
    reported = max([reported, *map(int, writer.stdout.read().split())])
    writer.stdout.close()
    assert writer.wait() == -signal.SIGKILL
    for read_only in (True, False):
        store = open_store(url, read_only=read_only)
        outcomes = [trial.outcome for trial in store.trials(1)]
        assert outcomes[:reported] == [Outcome.CRASH] * reported
        assert reported <= len(outcomes) <= reported + 1
        store.close()


def test_a_file_that_cannot_grow_keeps_what_it_has(sqlite_url, new_run):
    """At a file size limit, which is what a full disk is to SQLite, finished trials are kept."""
    store = open_store(sqlite_url)
    run = store.create_run(new_run())
    _write(store, run.id, 1)
    store.close()

    def fill():
        resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, resource.RLIM_INFINITY))
        store = open_store(sqlite_url)
        for number in range(2, 100):
            _write(store, run.id, number, "x" * 50_000)

    message = _in_child(fill)
    assert message.startswith("StoreError: the store ")
    assert "full" in message
    assert "finished trials are kept" in message
    store = open_store(sqlite_url)
    assert store.trials(run.id)[0].outcome is Outcome.CRASH
    _write(store, run.id, 1000)
    store.close()


def test_a_full_database_says_so(sqlite_url, new_run):
    """SQLite's own "full" names the remedy, and the store works again when there is room."""
    store = open_store(sqlite_url)
    run = store.create_run(new_run())
    with store._database.raw() as connection:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreError, match="the disk is full; free some space"):
        _write(store, run.id, 1, "x" * 100_000)
    with store._database.raw() as connection:
        connection.execute("PRAGMA max_page_count = 1000000")
    store.finish_trial(run.id, 1, CRASH, 1.0)
    store.close()


def test_a_locked_store_says_who_to_wait_for(sqlite_url, new_run):
    """A second writer gives up after its patience, and names the choice."""
    first, second = open_store(sqlite_url), open_store(sqlite_url, busy_s=0.05)
    with first._database.writing() as session:
        session.connection()
        with pytest.raises(StoreError, match="is locked by another process that writes to it"):
            second.create_run(new_run())
    assert second.create_run(new_run()).id == 1
    first.close()
    second.close()


def test_a_missing_folder_is_named(tmp_path):
    """The folder that is not there, and the command that makes it."""
    with pytest.raises(StoreError, match=r"there is no folder .*/no; create it with `mkdir -p"):
        open_store(str(tmp_path / "no" / "autotune.db"))


def test_a_folder_is_no_store(tmp_path):
    """A folder instead of a file is answered with a file in it."""
    with pytest.raises(StoreError, match=r"it is a folder; name a file in it"):
        open_store(str(tmp_path))


@pytest.mark.parametrize("read_only", [False, True])
def test_a_file_of_another_kind_is_no_store(tmp_path, read_only):
    """A text file is refused and left as it is."""
    file = tmp_path / "notes.txt"
    file.write_text("remember the milk\n" * 100)
    with pytest.raises(StoreError, match="is not an SQLite database; check --storage"):
        open_store(str(file), read_only=read_only)
    assert file.read_text() == "remember the milk\n" * 100


def test_a_half_written_file_is_damaged(tmp_path, new_run):
    """A file that lost its end, as in an interrupted copy, is called damaged."""
    file = tmp_path / "autotune.db"
    store = open_store(str(file))
    run = store.create_run(new_run())
    for number in range(1, 20):
        _write(store, run.id, number, "x" * 20_000)
    store.close()
    os.truncate(file, file.stat().st_size // 3)
    with pytest.raises(StoreError, match="is damaged, as after an incomplete copy"):
        open_store(str(file)).trials(run.id)


@pytest.mark.parametrize("read_only", [False, True])
def test_a_missing_store_is_only_made_by_a_writer(tmp_path, read_only):
    """Reading commands create no file, writing ones do."""
    file = tmp_path / "autotune.db"
    if read_only:
        with pytest.raises(
            StoreError, match=r"there is no store .* or name another with --storage"
        ):
            open_store(str(file), read_only=True)
    else:
        open_store(str(file)).close()
    assert file.exists() != read_only


def test_a_read_only_folder_cannot_hold_a_store(open_folder):
    """Where nothing can be created, the message says which rights are missing."""
    message = _as_nobody(lambda: open_store("autotune.db"))
    assert message.startswith("StoreError: the store autotune.db cannot be opened: you may not")
    assert "--storage" in message


@pytest.mark.parametrize("read_only", [False, True])
def test_a_folder_that_may_not_be_entered_is_told_from_a_missing_one(open_folder, read_only):
    """Where one may not even look, the message is about rights, not about a missing file."""
    open_folder.chmod(0)
    message = _as_nobody(lambda: open_store(str(open_folder / "x.db"), read_only=read_only))
    assert "cannot be opened: you may not read or write it, or its folder" in message


def test_a_store_of_another_user_is_readable_but_not_writable(open_folder, new_run):
    """In a folder that one may only read, finished runs can be read; writing says why it fails."""
    open_folder.chmod(0o755)
    store = open_store("autotune.db")
    store.create_run(new_run(name="theirs"))
    store.close()
    Path("autotune.db").chmod(0o444)
    open_folder.chmod(0o755 if os.geteuid() == 0 else 0o555)

    def read():
        store = open_store("autotune.db", read_only=True)
        raise StoreError(store.run("theirs").name)

    assert _as_nobody(read) == "StoreError: theirs"
    message = _as_nobody(lambda: open_store("autotune.db").create_run(new_run()))
    assert message.startswith("StoreError: the store autotune.db is read-only: you may not write")


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        ("mysql://me@host/autotune", "autotune keeps its store in SQLite or PostgreSQL"),
        ("postgresql://me:secret@host:port/x", "is not a database URL; use a file such as"),
        ("sqlite://", "names no file"),
    ],
)
def test_what_is_no_store_at_all_is_refused(url, rule):
    """Other databases and broken URLs are answered with the forms that work, not the password."""
    with pytest.raises(StoreError, match=rule) as raised:
        open_store(url)
    assert "secret" not in str(raised.value)


def test_a_server_that_is_away_is_named_without_the_password(tmp_path):
    """The message holds the URL without its password, and what to check."""
    url = f"postgresql://me:secret@/runs?host={tmp_path}&sslpassword=secret"
    with pytest.raises(StoreError, match="cannot be used; check the URL and that the") as raised:
        open_store(url)
    assert "secret" not in str(raised.value)
    assert "me:***@/runs" in str(raised.value)


def test_a_database_that_is_not_on_the_server_is_named(postgres_url):
    """The server's own words reach the user."""
    with pytest.raises(StoreError, match='database "nowhere" does not exist'):
        open_store(postgres_url.replace("/postgres?", "/nowhere?"))


def test_a_missing_driver_is_answered_with_the_line_that_installs_it(monkeypatch):
    """Without psycopg the extra to install is named."""
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreError, match=r"pip install 'torch-autotune\[postgres\]'"):
        open_store("postgresql://host/database")


def test_a_user_without_rights_is_told(postgres_url):
    """A PostgreSQL user that may not create tables learns what is missing."""
    admin = open_store(postgres_url)
    with admin._database.writing() as session:
        session.connection().exec_driver_sql("CREATE ROLE guest LOGIN")
        session.connection().exec_driver_sql(
            "DO $$ BEGIN EXECUTE 'GRANT USAGE ON SCHEMA ' || current_schema || ' TO guest'; END $$"
        )
    admin.close()
    with pytest.raises(StoreError, match="does not let this user do that; grant it rights"):
        open_store(postgres_url.replace("//postgres@", "//guest@"))


@pytest.mark.parametrize("text", [None, "autotune.db", "sqlite:///autotune.db"])
def test_three_ways_to_name_the_default(text):
    """No value, a bare file and a URL name the same file in the working directory."""
    assert locate(text).path == Path("autotune.db")


def test_a_home_folder_and_odd_names_are_paths(tmp_path, monkeypatch):
    """`~` is the home folder, and characters that mean something in a URL are only characters."""
    monkeypatch.setenv("HOME", str(tmp_path))
    open_store("~/50% of #1?.db").close()
    assert (tmp_path / "50% of #1?.db").exists()


def remove(file):
    file.unlink()


def replace(file):
    shutil.copy(file, file.with_name("copy"))
    file.with_name("copy").replace(file)


@pytest.mark.parametrize(
    ("accident", "happened"),
    [(remove, "removed or moved"), (replace, "replaced by another file")],
)
def test_a_file_that_is_not_there_any_more_is_noticed(tmp_path, new_run, accident, happened):
    """By the first write after it: the file at the store's path does not have it."""
    file = tmp_path / "autotune.db"
    store = open_store(str(file))
    run = store.create_run(new_run())
    _write(store, run.id, 1)
    accident(file)
    with pytest.raises(StoreError, match=f"was {happened} while it was written to"):
        _write(store, run.id, 2)
    store.close()
