from contextlib import closing

import pytest

from autotune.errors import StoreError
from autotune.storage.notes import Note
from autotune.storage.sql import open_store


def test_a_note_is_kept_and_replaced(store, new_run):
    """On a run and on its trials apart."""
    run = store.create_run(new_run(name="mine"))
    other = store.create_run(new_run(name="other"))
    assert store.notes.of(run.id) == Note()
    store.notes.keep(Note(text="first", tags=("a",)), run.id)
    store.notes.keep(Note(text="on a trial"), run.id, 3)
    store.notes.keep(Note(text="second", tags=("b", "c d")), run.id)
    assert store.notes.of(run.id) == Note(text="second", tags=("b", "c d"))
    assert store.notes.of(run.id, 3) == Note(text="on a trial")
    assert store.notes.of_runs([run.id, other.id]) == {
        run.id: Note(text="second", tags=("b", "c d"))
    }


def test_an_empty_note_is_removed(store, new_run):
    """Nothing of it stays."""
    run = store.create_run(new_run(name="mine"))
    store.notes.keep(Note(text="first"), run.id)
    store.notes.keep(Note(), run.id)
    assert store.notes.of_runs([run.id]) == {}


def test_a_store_that_is_read_keeps_no_note(tmp_path, new_run):
    """Looking changes nothing."""
    url = str(tmp_path / "a.db")
    with closing(open_store(url)) as store:
        run = store.create_run(new_run(name="mine"))
    with closing(open_store(url, read_only=True)) as store, pytest.raises(StoreError):
        store.notes.keep(Note(text="first"), run.id)
