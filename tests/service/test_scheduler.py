"""Which jobs start on which devices."""

from hypothesis import given
from hypothesis import strategies as st

from autotune.service.scheduler import PRIORITY_STEP_S, Holding, Waiting, choose

NOW = 1_000_000.0


def waiting(number, **changes):
    values = {
        "id": number,
        "owner": "ann",
        "priority": 0,
        "num_devices": 1,
        "budget_s": 100.0,
        "queued_at": NOW - 1000 + number,
    }
    return Waiting(**{**values, **changes})


def started(queue, holding=(), devices="abcd", limits=None):
    starts = choose(queue, holding, list(devices), limits or {}, NOW)
    return {start.job_id: "".join(start.devices) for start in starts}


def held(devices, ends_in=50.0, owner="bob"):
    return Holding(owner=owner, devices=tuple(devices), ends_at=NOW + ends_in)


def test_older_jobs_start_first():
    """On as many devices as are free."""
    assert started([waiting(3), waiting(1), waiting(2)], devices="ab") == {1: "a", 2: "b"}


def test_a_larger_priority_starts_first():
    """Before older jobs."""
    assert started([waiting(1), waiting(2, priority=1)], devices="a") == {2: "a"}


def test_a_day_of_waiting_counts_like_a_step_of_priority():
    """So that urgent jobs cannot hold others up for ever."""
    old = waiting(1, queued_at=NOW - 1.5 * PRIORITY_STEP_S)
    assert started([old, waiting(2, priority=1)], devices="a") == {1: "a"}
    assert started([old, waiting(2, priority=2)], devices="a") == {2: "a"}


def test_jobs_run_side_by_side_where_they_fit():
    """Each on devices of its own."""
    queue = [waiting(1, num_devices=2), waiting(2), waiting(3)]
    assert started(queue) == {1: "ab", 2: "c", 3: "d"}
    assert started(queue, [held("b")]) == {1: "ac", 2: "d"}


def test_a_large_job_is_not_passed_by_jobs_that_delay_it():
    """A small one would hold the device that it waits for."""
    queue = [waiting(1, num_devices=4), waiting(2, budget_s=100.0)]
    assert started(queue, [held("a", ends_in=50.0)]) == {}


def test_a_job_that_ends_in_time_may_pass_a_large_one():
    """It gives its device back before the others are free."""
    queue = [waiting(1, num_devices=4), waiting(2, budget_s=40.0)]
    assert started(queue, [held("a", ends_in=50.0)]) == {2: "b"}


def test_jobs_pass_on_devices_that_a_large_one_does_not_need():
    """But on no more than these."""
    queue = [waiting(1, num_devices=3), waiting(2), waiting(3)]
    assert started(queue, [held("ab", ends_in=50.0)]) == {2: "c"}


def test_a_job_that_can_never_run_holds_up_nobody():
    """As after a start of the server with fewer devices."""
    assert started([waiting(1, num_devices=9), waiting(2)]) == {2: "a"}


def test_an_owners_jobs_hold_no_more_devices_than_allowed():
    """Those of others pass."""
    queue = [waiting(1), waiting(2), waiting(3), waiting(4, owner="bob")]
    assert started(queue, limits={"ann": 2}) == {1: "a", 2: "b", 4: "c"}
    assert started(queue, [held("a", owner="ann")], limits={"ann": 1}) == {4: "b"}


JOBS = st.lists(
    st.builds(
        Waiting,
        id=st.integers(1, 1000),
        owner=st.sampled_from(["ann", "bob"]),
        priority=st.integers(-10, 10),
        num_devices=st.integers(1, 6),
        budget_s=st.floats(10, 1e5),
        queued_at=st.floats(NOW - 1e6, NOW),
    ),
    unique_by=lambda job: job.id,
)


@given(JOBS, st.sampled_from([[], [held("a")], [held("ab"), held("c", ends_in=-5.0)]]))
def test_no_device_is_given_twice(queue, holding):
    """Each start has as many devices as its job needs, all of them free."""
    starts = choose(queue, holding, list("abcd"), {"ann": 2}, NOW)
    given_away = [device for start in starts for device in start.devices]
    taken = [device for job in holding for device in job.devices]
    assert len(set(given_away + taken)) == len(given_away + taken)
    needed = {job.id: job.num_devices for job in queue}
    assert all(len(start.devices) == needed[start.job_id] for start in starts)


@given(JOBS)
def test_the_most_urgent_job_that_can_run_starts(queue):
    """On an empty machine."""
    runnable = [job for job in queue if job.num_devices <= 4]
    starts = choose(queue, [], list("abcd"), {}, NOW)
    if runnable:
        first = min(runnable, key=lambda job: (-job.urgency(NOW), job.id))
        assert starts[0].job_id == first.id
