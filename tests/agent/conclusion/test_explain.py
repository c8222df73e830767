"""What the user reads of each setting of the winner."""

from dataclasses import replace

import pytest

from autotune.agent.conclusion.explain import changes as explained
from autotune.agent.conclusion.explain import remarks
from autotune.agent.history import Done
from autotune.search_space.space import Narrowing, build_space
from autotune.trials.result import Purpose
from tests.agent.histories import SPACE, ablated, history
from tests.agent.world import GPT, GPU, ok


def test_a_setting_that_hurts_is_told_where_no_time_was_left_to_confirm_it():
    """The winner stays what was confirmed; the user reads what a longer budget would find."""
    found = {"workers": 1, "pin_memory": True}
    seen = history(({}, ok(50.0)), (found, ok(100.0)))
    flipped = ablated(seen, ({"workers": 1}, ok(104.0)), ({"pin_memory": True}, ok(98.0)))
    told = explained(SPACE.plan(found), flipped)
    assert "no time was left to confirm" in told["pin_memory"]
    assert "no time" not in told["workers"]
    again = Done(
        number=20,
        plan=SPACE.plan({"workers": 1}),
        purpose=Purpose.CONFIRM,
        reason="",
        result=ok(99.0),
    )
    confirmed = replace(flipped, done=(*flipped.done, again))
    assert "no time" not in explained(SPACE.plan(found), confirmed)["pin_memory"]


def test_a_worth_that_processes_differ_by_anyway_is_told_as_such():
    """Of one process each, 1 % is nothing; 10 % is something."""
    found = {"workers": 1, "pin_memory": True}
    seen = history(({}, ok(50.0)), (found, ok(100.0)))
    flipped = ablated(seen, ({"workers": 1}, ok(99.0)), ({"pin_memory": True}, ok(90.0)))
    told = explained(SPACE.plan(found), flipped)
    assert told["pin_memory"].startswith("no effect that noise does not explain: +1.0%")
    assert told["workers"].startswith("+11.1% over workers=0")


def test_a_worth_within_what_one_plan_differed_by_in_this_run_is_none():
    """The baseline gave 50 and 100 in two processes, so 72 % of one process each is no effect."""
    found = {"pin_memory": True}
    seen = history(({}, ok(50.0)), (found, ok(86.0)), ({}, ok(100.0), Purpose.CONFIRM))
    told = explained(SPACE.plan(found), seen)["pin_memory"]
    assert told.startswith("no effect that noise does not explain: +72.0% over pin_memory=false")
    quiet = history(({}, ok(50.0)), (found, ok(86.0)), ({}, ok(51.0), Purpose.CONFIRM))
    assert explained(SPACE.plan(found), quiet)["pin_memory"].startswith("+72.0%")


@pytest.mark.parametrize("has_batch_norm", [True, False])
def test_another_micro_batch_is_remarked_where_norms_are_over_it(has_batch_norm):
    """A global batch keeps the rest of the training as it is."""
    facts = replace(GPT, global_batch_size=64, has_batch_norm=has_batch_norm)
    space = build_space(facts, GPU, Narrowing())
    seen = replace(history(({}, ok(50.0))), space=space)
    told = [
        remark for remark in remarks(space.plan({"batch_size": 32}), seen) if "norms" in remark
    ]
    assert len(told) == has_batch_norm
    assert all("see 32 samples at a time instead of 16" in remark for remark in told)
    assert not any("norms" in remark for remark in remarks(space.baseline, seen))
