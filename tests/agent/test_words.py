"""What a run says of its trials is true: where settings come from, what they do, why it ended."""

from dataclasses import replace

from autotune.agent.conclusion.conclude import conclude
from autotune.agent.conclusion.explain import reasons, remarks
from autotune.agent.proposers.reasons import why_faster
from autotune.agent.proposers.sampler import Sampler
from autotune.agent.stopping import nothing_promising
from autotune.search_space.knobs import BY_NAME
from autotune.search_space.space import Narrowing, build_space
from autotune.trials.cause import Cause
from tests.agent.histories import CRASH, history
from tests.agent.world import GPT, GPU, ok

BATCHES = ({}, {"batch_size": 32})


def test_what_needs_no_check_does_not_speak_for_the_batch():
    """Another batch changes the training, as the next line says."""
    seen = history(({}, ok(50.0)))
    own, other = (remarks(seen.space.plan({"workers": 2, **more}), seen) for more in BATCHES)
    assert any("every changed setting computes" in line for line in own)
    assert any("but for the batch size, every changed setting" in line for line in other)
    assert any("the training changes" in line for line in other)


def test_fewer_workers_are_not_what_a_waiting_loop_lacks():
    """That the loop waits is a reason for more workers only."""
    workers = BY_NAME["workers"]
    waiting = history(({"workers": 4}, ok(50.0, wait=0.3))).baseline
    assert "waits 30%" in why_faster((workers, 8, 4), waiting)
    assert "waits" not in why_faster((workers, 2, 4), waiting)


def test_accumulation_is_explained_as_what_it_is():
    """It follows from the batch, in the reasons of trials as in the winner's table."""
    space = build_space(replace(GPT, global_batch_size=64), GPU)
    seen = history(({}, ok(50.0)), ({"batch_size": 64}, ok(300.0)), space=space)
    told = reasons(space.plan({"batch_size": 64}), seen)["accumulation"]
    assert told == BY_NAME["accumulation"].reasons.why(1, 4)
    assert "micro-batches" in told
    assert "GLOBAL_BATCH_SIZE" in told


def test_what_is_known_is_counted_in_words():
    """One trial is no `1 trials`."""
    reasons = [
        next(Sampler(seed=0).candidates(seen)).reason
        for seen in (
            history(({}, ok(50.0))),
            history(({}, ok(50.0)), ({"workers": 1}, ok(50.0))),
        )
    ]
    assert reasons == ["sampled from what one trial showed", "sampled from what 2 trials showed"]


def test_a_search_without_proposals_tells_whether_plans_were_left():
    """That nothing was left is said of a space of which each plan was tried."""
    space = build_space(GPT, GPU, Narrowing(knobs=("optimizer_impl",)))
    seen = history(({}, ok(50.0)), ({"optimizer_impl": "fused"}, ok(51.0)), space=space)
    assert nothing_promising(seen) == "nothing else is likely to gain"
    both = [({}, ok(50.0)), *(({"optimizer_impl": v}, ok(51.0)) for v in ("foreach", "fused"))]
    assert nothing_promising(history(*both, space=space)) == "nothing was left to try"


def test_a_baseline_that_is_kept_does_not_claim_that_all_was_tried():
    """Nothing had to be confirmed, because nothing was better."""
    winner = conclude(history(({}, ok(50.0)), ({"precision": "bf16"}, ok(40.0))), gain=0.01)
    assert winner.kept_baseline
    assert "nothing was left" not in winner.how


def test_a_plan_that_was_cut_short_is_not_run_again():
    """A plan that was given up for other reasons may get another chance."""
    plans = [{"precision": "bf16"}, {"precision": "fp16"}]
    cut, other = (
        replace(CRASH, outcome=CRASH.outcome.CANCELLED, cause=cause)
        for cause in (Cause.SEARCH_ENDED, Cause.USER_STOPPED)
    )
    seen = history(({}, ok(50.0)), (plans[0], cut), (plans[1], other))
    assert seen.space.plan(plans[0]) in seen.tried
    assert seen.space.plan(plans[1]) not in seen.tried
