"""Who is confirmed, and who of those wins."""

from dataclasses import replace

from autotune.agent.conclusion.finalists import choose, finalists
from autotune.agent.history import Done
from autotune.trials.result import Outcome, Purpose, TrialResult
from tests.agent.histories import SPACE, ablated, history
from tests.agent.world import GIB, ok, passed


def test_the_cheapest_of_the_equally_fast_is_a_finalist():
    """Behind the fastest comes the equally fast with least memory, the own batch first."""
    seen = history(
        ({}, ok(50.0, memory=30 * GIB)),
        ({"workers": 1}, ok(100.0, memory=40 * GIB)),
        ({"workers": 2}, ok(99.9, memory=40 * GIB)),
        ({"workers": 4}, ok(99.8, memory=40 * GIB)),
        ({"activation_checkpointing": "full"}, ok(99.5, memory=20 * GIB)),
        ({"batch_size": 8}, ok(99.5, memory=10 * GIB)),
        ({"batch_size": 4}, ok(90.0, memory=5 * GIB)),
    )
    assert finalists(seen) == [
        SPACE.plan({"workers": 1}),
        SPACE.plan({"activation_checkpointing": "full"}),
        SPACE.plan({"workers": 2}),
    ]


def test_what_is_faster_without_a_setting_is_a_finalist():
    """An ablation that beats the whole search by more than noise; not one that is as fast."""
    seen = history(({}, ok(50.0)), ({"workers": 1}, ok(100.0)))
    flipped = ablated(seen, ({"workers": 2}, ok(100.5)), ({"workers": 4}, ok(104.0)))
    assert finalists(flipped) == [SPACE.plan({"workers": 4}), SPACE.plan({"workers": 1})]


def test_what_is_as_fast_in_less_memory_without_a_setting_is_a_finalist():
    """Behind the fastest, and with a batch that is the user's own before anything else."""
    found = {"workers": 1, "batch_size": 32, "pin_memory": True}
    seen = history(({}, ok(50.0)), (found, ok(100.0, memory=40 * GIB)))
    without_pinning = ({**found, "pin_memory": False}, ok(100.2, memory=30 * GIB))
    slower = ({"pin_memory": True}, ok(98.0, memory=5 * GIB))
    own_batch = ({"workers": 1, "pin_memory": True}, ok(99.3, memory=35 * GIB))
    flipped = ablated(seen, without_pinning, slower)
    assert finalists(flipped) == [SPACE.plan(found), SPACE.plan(without_pinning[0])]
    flipped = ablated(seen, without_pinning, slower, own_batch)
    assert finalists(flipped) == [SPACE.plan(found), SPACE.plan(own_batch[0])]


def test_of_two_as_good_the_checked_one_wins():
    """Until the other one is checked as well, which is tried for what it spares."""
    half, other = {"precision": "bf16", "workers": 2}, {"precision": "fp16"}
    seen = history(({}, ok(50.0)), (half, ok(100.0)), (other, ok(100.2)))
    rounds = [
        Done(number=n, plan=SPACE.plan(values), purpose=purpose, reason="", result=result)
        for n, (values, purpose, result) in enumerate(
            [
                (half, Purpose.NUMERICS, TrialResult(outcome=Outcome.OK, numerics=passed())),
                *(({}, Purpose.CONFIRM, ok(50.0)) for _ in range(2)),
                *((half, Purpose.CONFIRM, ok(speed)) for speed in (100.0, 100.1)),
                *((other, Purpose.CONFIRM, ok(speed)) for speed in (100.3, 100.4)),
            ],
            start=4,
        )
    ]
    seen = replace(seen, done=(*seen.done, *rounds))
    assert choose(seen, gain=0.01).plan == SPACE.plan(half)
    assert choose(seen, gain=0.01, checks_pass=True).plan == SPACE.plan(other)
    assert choose(seen, gain=0.001).plan == SPACE.plan(other)
    crash = TrialResult(outcome=Outcome.CRASH, error="died")
    in_vain = Done(
        number=20, plan=SPACE.plan(other), purpose=Purpose.NUMERICS, reason="", result=crash
    )
    after = replace(seen, done=(*seen.done, in_vain))
    assert choose(after, gain=0.01, checks_pass=True).plan == SPACE.plan(half)
