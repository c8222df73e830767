"""A trial that was stopped, or lost, says nothing about its plan: it is run again."""

from dataclasses import replace

import pytest

from autotune.agent.conclusion.confirm import Ending
from autotune.agent.conclusion.numerics import next_check
from autotune.agent.done import Done
from autotune.agent.forecast.soundness import chance_to_run
from autotune.agent.history import History
from autotune.agent.settings import SearchSettings
from autotune.search_space.space import build_space
from autotune.trials.cause import Cause
from autotune.trials.result import Outcome, Phase, Purpose, TrialResult
from tests.agent.world import GIB, GPT, GPT_MODEL, GPU, MLP, MLP_MODEL, Table, World, ok, passed

SPACE = build_space(GPT, GPU)
HALF = SPACE.plan({"precision": "bf16"})
COMPILED = [SPACE.plan({"compile_mode": "default", "precision": p}) for p in ("tf32", "bf16")]
CRASH = TrialResult(outcome=Outcome.CRASH, error="died", total_s=5.0)
LOST = TrialResult(outcome=Outcome.INFRA, error="a node was lost")


def stopped(cause, phase=Phase.FIRST_STEP):
    return TrialResult(outcome=Outcome.CANCELLED, cause=cause, phase=phase, total_s=5.0)


def history(*trials):
    """Return a history of a baseline and of `(plan, purpose, result)`."""
    first = (SPACE.baseline, Purpose.BASELINE, ok(50.0))
    done = tuple(
        Done(number=n, plan=plan, purpose=purpose, reason="", result=result)
        for n, (plan, purpose, result) in enumerate((first, *trials), 1)
    )
    return History(space=SPACE, memory_cap_bytes=133 * GIB, done=done)


@pytest.mark.parametrize("cause", [Cause.USER_STOPPED, Cause.SEARCH_ENDED, Cause.BUDGET_ENDED])
def test_compiling_is_not_blamed_for_what_was_stopped_meanwhile(cause):
    """Two devices compile when somebody presses Ctrl-C; the run goes on with compiled plans."""
    seen = history(*((plan, Purpose.PRESET, stopped(cause)) for plan in COMPILED))
    other = SPACE.plan({"compile_mode": "default"})
    assert chance_to_run(other, seen) == 1.0
    given_up = stopped(Cause.TOO_SLOW)
    seen = history(*((plan, Purpose.PRESET, given_up) for plan in COMPILED))
    assert chance_to_run(other, seen) < 0.2


def test_a_plan_that_the_user_stopped_twice_is_tried_again():
    """What was lost or given up twice is not."""
    for cause, again in ((Cause.USER_STOPPED, True), (Cause.TOO_SLOW, False)):
        seen = history(*[(HALF, Purpose.PRESET, stopped(cause))] * 2)
        assert (HALF not in seen.tried) is again


@pytest.mark.parametrize(
    ("ends", "again"),
    [
        ([stopped(Cause.USER_STOPPED)], True),
        ([LOST], True),
        ([LOST, stopped(Cause.USER_STOPPED), LOST], False),
        ([CRASH], False),
        ([TrialResult(outcome=Outcome.OK, numerics=passed())], False),
    ],
)
def test_a_check_that_was_stopped_is_run_again(ends, again):
    """Lost twice, or once told something, it is not."""
    seen = history((HALF, Purpose.PRESET, ok(100.0)), *((HALF, Purpose.NUMERICS, e) for e in ends))
    assert (next_check(HALF, seen) is not None) is again


@pytest.mark.parametrize(("end", "again"), [(stopped(Cause.USER_STOPPED), True), (CRASH, False)])
def test_what_a_setting_is_worth_is_asked_again(end, again):
    """When the trial that was to show it was stopped."""
    both = SPACE.plan({"precision": "bf16", "optimizer_impl": "fused"})
    rounds = [(SPACE.baseline, ok(50.0)), (both, ok(110.0))] * 2
    seen = history(
        (both, Purpose.PRESET, ok(110.0)),
        (both, Purpose.NUMERICS, TrialResult(outcome=Outcome.OK, numerics=passed())),
        *((plan, Purpose.CONFIRM, result) for plan, result in rounds),
        (SPACE.plan({"optimizer_impl": "fused"}), Purpose.ABLATE, end),
        (HALF, Purpose.ABLATE, ok(100.0)),
    )
    ending = Ending(settings=SearchSettings(budget_s=900.0), hardware=GPU)
    proposal = ending.next(seen, 900.0)
    assert (proposal is not None) is again
    assert proposal is None or proposal.purpose is Purpose.ABLATE


def interrupted(table, is_time):
    """Run until `is_time` of what runs, press Ctrl-C, and type the same command again."""
    pressed, wait = [], table.runner.wait

    def watched(timeout_s):
        finished = wait(timeout_s)
        if not pressed and is_time(table.runner._running):
            pressed.append(True)
        return finished

    table.runner.wait, table.is_stopped = watched, lambda: bool(pressed)
    table.search().run()
    assert pressed
    table.store.resume_run(1, budget_s=table.budget_s, driver="host:2:0")
    again = replace(table, is_stopped=lambda: False)
    return again, again.search().run()


def test_ctrl_c_while_devices_compile_costs_no_compiled_plan():
    """The launch-bound MLP is fastest with CUDA graphs, before and after."""
    four = replace(GPU, num_devices=4, num_cores=64)
    table = Table(World(MLP_MODEL, hardware=four), MLP, budget_s=1800, settings={"max_trials": 30})

    def is_time(running):
        graphs = [r for r in running if r.request.plan["compile_mode"] == "reduce-overhead"]
        return len(graphs) > 1 and all(table.clock.now() - r.started_at > 6.0 for r in graphs)

    again, _ = interrupted(table, is_time)
    trials = [t for t in again.store.trials(1) if t.plan["compile_mode"] == "reduce-overhead"]
    assert [t.outcome for t in trials].count(Outcome.CANCELLED) > 1
    assert [t.outcome for t in trials].count(Outcome.OK) > 1


def test_ctrl_c_during_the_numerics_check_leaves_no_winner_unchecked():
    """The check is run again, and the winner's losses are told."""
    table = Table(World(GPT_MODEL), GPT, settings={"max_trials": 6})

    def is_time(running):
        return any(r.request.purpose is Purpose.NUMERICS for r in running)

    _, winner = interrupted(table, is_time)
    assert winner.confirmed
    assert any(remark.startswith("numerics: gradients within") for remark in winner.remarks)
