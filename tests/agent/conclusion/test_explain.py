"""What the user reads of each setting of the winner."""

from dataclasses import replace

import pytest

from autotune.agent.conclusion.explain import TRAINING_CHANGES, reasons, remarks
from autotune.agent.conclusion.finalists import changes_training
from autotune.agent.history import Done
from autotune.search_space.knobs import BY_NAME
from autotune.search_space.space import Narrowing, build_space
from autotune.trials.result import Purpose
from tests.agent.histories import SPACE, ablated, history
from tests.agent.world import GPT, GPU, ok


def test_a_setting_that_hurts_is_told_where_no_time_was_left_to_confirm_it():
    """The winner stays what was confirmed; the user reads what a longer budget would find."""
    found = {"workers": 1, "pin_memory": True}
    seen = history(({}, ok(50.0)), (found, ok(100.0)))
    flipped = ablated(seen, ({"workers": 1}, ok(104.0)), ({"pin_memory": True}, ok(98.0)))
    (told,) = [line for line in remarks(SPACE.plan(found), flipped) if "better without" in line]
    assert "without pin_memory: measured once, no time was left to confirm" in told
    again = Done(
        number=20,
        plan=SPACE.plan({"workers": 1}),
        purpose=Purpose.CONFIRM,
        reason="",
        result=ok(99.0),
    )
    confirmed = replace(flipped, done=(*flipped.done, again))
    assert not any("better without" in line for line in remarks(SPACE.plan(found), confirmed))


def test_each_changed_setting_has_its_reason():
    """What it does, in words; what it is worth is estimated from the trials."""
    seen = history(({}, ok(50.0)), ({"precision": "bf16"}, ok(100.0)))
    told = reasons(SPACE.plan({"precision": "bf16"}), seen)
    assert told == {"precision": BY_NAME["precision"].reasons.why("bf16", "fp32")}


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


def test_what_grouping_by_length_changes_is_told():
    """Which samples are together in a batch is a part of the training."""
    facts = replace(GPT, uneven_batches=True, length_gain=1.5)
    space = build_space(facts, GPU, Narrowing(allow=("length_bucketing",)))
    seen = replace(history(({}, ok(50.0))), space=space)
    (told,) = [
        line
        for line in remarks(space.plan({"length_bucketing": True}), seen)
        if "similar length" in line
    ]
    assert told.startswith(TRAINING_CHANGES)
    grouped = space.plan({"length_bucketing": True})
    assert changes_training(grouped, seen)
    assert not changes_training(space.baseline, seen)
    assert any("but for which samples are in a batch" in line for line in remarks(grouped, seen))
    assert not any("similar length" in line for line in remarks(space.baseline, seen))


@pytest.mark.parametrize("hits", [None, 0, 2])
def test_a_winner_that_is_half_eager_is_told(hits):
    """The compiler gives up silently, and its speed is not what compiling could give."""
    measured = ok(100.0)
    assert measured.measurement is not None
    counted = replace(
        measured, measurement=replace(measured.measurement, recompile_limit_hits=hits)
    )
    seen = history(({}, ok(50.0)), ({"compile_mode": "default"}, counted))
    told = [
        line
        for line in remarks(SPACE.plan({"compile_mode": "default"}), seen)
        if "runs eagerly" in line
    ]
    assert len(told) == bool(hits)
