"""The queue, the tokens and the lease, in each database."""

import os
import platform
from contextlib import closing

import pytest

from autotune.errors import NotFoundError, UsageError
from autotune.storage.access import Role
from autotune.storage.driver import this_driver
from autotune.storage.job_records import JobState, NewJob
from autotune.storage.sql import open_store

HERE = this_driver()
GONE = f"{platform.node()}:{os.getpid()}:1.0"
ELSEWHERE = "elsewhere:1:1.0"


def job(key="a", **changes):
    values = {
        "key": key,
        "name": None,
        "owner": "ann",
        "priority": 0,
        "num_devices": 1,
        "budget_s": 60.0,
        "request": {"model": "model.py"},
    }
    return NewJob(**{**values, **changes})


def test_a_job_is_queued_once_for_its_key(store):
    """A sender that got no answer may send it again."""
    first = store.jobs.add(job("a"))
    assert first.state is JobState.QUEUED
    assert first.run_name == f"job-{first.id}"
    assert store.jobs.add(job("a", priority=5)) == first
    assert store.jobs.add(job("b")).id != first.id
    assert store.jobs.find("a") == first
    assert store.jobs.find("c") is None


def test_a_job_is_claimed_once(store):
    """A second claim finds it running."""
    queued = store.jobs.add(job())
    assert store.jobs.claim(queued.id, ["0", "1"], HERE)
    assert not store.jobs.claim(queued.id, ["2"], HERE)
    running = store.jobs.job(str(queued.id))
    assert (running.state, running.devices, running.num_starts) == (
        JobState.RUNNING,
        ("0", "1"),
        1,
    )
    assert store.jobs.counts()[JobState.RUNNING] == 1


def test_a_job_keeps_what_happened_to_it(store):
    """Its events are in order, and can be asked for after the last one known."""
    queued = store.jobs.add(job())
    store.jobs.claim(queued.id, ["0"], HERE)
    store.jobs.queue_again(queued.id, "its machine was switched off")
    store.jobs.claim(queued.id, ["0"], HERE)
    store.jobs.finish(queued.id, JobState.DONE, exit_code=0, message="well done")
    events = store.jobs.events(queued.id)
    kinds = [event.kind for event in events]
    assert kinds == ["queued", "running", "queued", "running", "done"]
    assert store.jobs.events(queued.id, after=events[-2].id) == events[-1:]
    ended = store.jobs.job(f"job-{queued.id}")
    assert (ended.state, ended.exit_code, ended.num_starts) == (JobState.DONE, 0, 2)


def test_a_waiting_job_is_cancelled_at_once(store):
    """It can not be claimed any more."""
    queued = store.jobs.add(job())
    assert store.jobs.cancel(queued.id, "bob").state is JobState.CANCELLED
    assert not store.jobs.claim(queued.id, ["0"], HERE)


def test_a_running_job_is_asked_to_stop(store):
    """Its server stops it; one that has ended stays as it is."""
    queued = store.jobs.add(job())
    store.jobs.claim(queued.id, ["0"], HERE)
    asked = store.jobs.cancel(queued.id, "bob")
    assert (asked.state, asked.cancelled_by) == (JobState.RUNNING, "bob")
    assert store.jobs.cancel(queued.id, "eve").cancelled_by == "bob"
    store.jobs.finish(queued.id, JobState.DONE, exit_code=0, message="")
    assert store.jobs.cancel(queued.id, "bob").state is JobState.DONE


def test_a_job_knows_its_run(store, new_run):
    """As soon as the run is in the store."""
    queued = store.jobs.add(job())
    assert queued.run_id is None
    run = store.create_run(new_run(name=queued.run_name))
    assert store.jobs.job("last").run_id == run.id


@pytest.mark.parametrize("ref", ["7", "job-7", "x", "last", "9" * 30])
def test_a_job_that_is_not_there_is_named(store, ref):
    """By number or by name."""
    with pytest.raises(NotFoundError, match="there is no job"):
        store.jobs.job(ref)


def test_a_token_is_found_by_its_digest_until_it_is_revoked(store):
    """Its name stays taken, as jobs belong to it."""
    store.tokens.add("ann", "d1", Role.SUBMIT, max_devices=2, max_hours=1.5)
    found = store.tokens.find("d1")
    assert (found.name, found.role, found.max_devices, found.max_hours) == (
        "ann",
        Role.SUBMIT,
        2,
        1.5,
    )
    assert store.tokens.find("d2") is None
    store.tokens.revoke("ann")
    assert store.tokens.find("d1") is None
    with pytest.raises(UsageError, match="'ann' already"):
        store.tokens.add("ann", "d3", Role.LOOK)
    with pytest.raises(NotFoundError, match="did you mean 'ann'"):
        store.tokens.revoke("anne")


def test_roles_include_those_below():
    """Who administers may submit, who submits may look."""
    assert Role.ADMINISTER.includes(Role.SUBMIT)
    assert Role.SUBMIT.includes(Role.LOOK)
    assert not Role.LOOK.includes(Role.SUBMIT)


def test_the_audit_has_the_newest_first(store):
    """With who, what, and about what."""
    store.audit.add("ann", "submit", "job-1")
    store.audit.add("bob", "cancel", "job-1")
    assert [(e.who, e.action, e.about) for e in store.audit.latest(limit=1)] == [
        ("bob", "cancel", "job-1")
    ]


def test_one_server_is_in_charge(url):
    """A second one learns which, until the first gives the lease back."""
    with closing(open_store(url)) as one, closing(open_store(url)) as other:
        first, second = one.lease(HERE, "http://a"), other.lease(ELSEWHERE, "http://b")
        assert first.take() is None
        holder = second.take()
        assert (holder.process, holder.address, holder.lives) == (HERE, "http://a", True)
        assert not second.beat()
        first.give_back()
        assert second.take() is None
        assert not first.beat()


def test_the_lease_of_a_dead_process_is_free(store):
    """At once on the same machine: its process is seen to be gone."""
    assert store.lease(GONE, "").take() is None
    assert store.lease(HERE, "").take() is None


def test_the_lease_of_another_machine_is_free_when_its_beats_stop(store):
    """A server that still lives has counted on meanwhile."""
    away = store.lease(ELSEWHERE, "")
    here = store.lease(HERE, "")
    away.take()
    seen = here.take()
    assert seen.lives is None
    away.beat()
    assert here.take(seen) is not None
    seen = here.take()
    assert here.take(seen) is None
