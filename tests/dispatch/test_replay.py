"""The replay runner keeps the runner's contract on fake time."""

import dataclasses

import pytest

from autotune.clock import FakeClock
from autotune.dispatch.replay import ReplayRunner
from autotune.search_space.plan import Plan
from autotune.trials.cause import Cause
from autotune.trials.result import Outcome, TrialResult
from tests.dispatch.test_table import measured


def lasting(total_s: float) -> TrialResult:
    return TrialResult(outcome=Outcome.OK, total_s=total_s)


@pytest.fixture
def clock():
    return FakeClock(start=100.0)


@pytest.fixture
def replay(cpu, clock):
    table = {Plan.of({"fault": name}): lasting(s) for name, s in [("long", 50.0), ("short", 0.1)]}
    return ReplayRunner(dataclasses.replace(cpu, num_devices=2), table, clock=clock)


def test_trials_end_in_the_order_of_fake_time(replay, clock, make_request):
    """Two trials side by side take as long as the longer one, and the shorter ends first."""
    replay.submit(make_request("long", number=1))
    replay.submit(make_request("short", number=2))
    assert [f.request.number for f in replay.wait(1000.0)] == [2]
    assert [f.request.number for f in replay.wait(1000.0)] == [1]
    assert clock.now() == pytest.approx(150.0)
    assert replay.wait(1000.0) == []


def test_wait_ends_at_its_timeout(replay, clock, make_request):
    """Nothing comes back before it has ended."""
    replay.submit(make_request("long"))
    assert replay.wait(20.0) == []
    assert clock.now() == 120.0
    assert len(replay.wait(30.0)) == 1


def test_the_budget_ends_a_replayed_trial(replay, clock, make_request):
    """`give_up_after_s` cuts a trial short."""
    replay.submit(make_request("long", give_up_after_s=5.0))
    (finished,) = replay.wait(1000.0)
    assert finished.result.outcome is Outcome.CANCELLED
    assert finished.result.cause is Cause.BUDGET_ENDED
    assert clock.now() == 105.0


def test_cancel_ends_a_replayed_trial_now(replay, clock, make_request):
    """A cancelled trial comes back at once, with the reason and the time it took."""
    replay.submit(make_request("long", number=4))
    replay.wait(20.0)
    replay.cancel(4, Cause.USER_STOPPED)
    (finished,) = replay.wait(1000.0)
    assert (finished.result.outcome, finished.result.cause) == (
        Outcome.CANCELLED,
        Cause.USER_STOPPED,
    )
    assert finished.result.total_s == 20.0
    assert clock.now() == 120.0


def test_more_trials_than_devices_are_refused(replay, make_request):
    """Capacity is the number of devices."""
    for number in (1, 2):
        replay.submit(make_request("long", number=number))
    with pytest.raises(RuntimeError, match="0 devices are free, fewer than the 1 of a trial"):
        replay.submit(make_request("long", number=3))


def test_an_unknown_plan_is_named(replay, make_request):
    """A hole in the table says which plan is missing."""
    with pytest.raises(LookupError, match="'fault': 'unheard of'"):
        replay.submit(make_request("unheard of"))


def test_a_function_may_stand_for_the_table(cpu, clock, make_request):
    """Results can be computed from the plan."""
    runner = ReplayRunner(cpu, lambda plan: lasting(len(plan["fault"])), clock=clock)
    runner.submit(make_request("four"))
    runner.wait(10.0)
    assert clock.now() == 104.0


@pytest.mark.parametrize(("above", "num_windows"), [(90.0, 8), (150.0, 3), (104.5, 5)])
def test_a_hopeless_trial_is_raced_out_where_its_windows_show_it(
    cpu, clock, make_request, above, num_windows
):
    """It ends after as many windows as that takes, never before three, and saves the others."""
    recorded = measured(96, 104, 98, 103, 99, 101, 100, 99)
    runner = ReplayRunner(cpu, lambda plan: recorded, clock=clock)
    runner.submit(make_request("slow", interesting_above=above))
    (finished,) = runner.wait(1000.0)
    measurement = finished.result.measurement
    assert len(measurement.windows) == num_windows
    assert measurement.raced is (num_windows < 8)
    assert clock.now() - 100.0 == pytest.approx(3.0 + num_windows)
    assert measurement.measure_s == num_windows
    assert 95 < measurement.throughput < 105
