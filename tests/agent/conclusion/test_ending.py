"""Whole runs from their last search trial on: checks, confirmation, worths, remarks."""

from dataclasses import replace

import pytest

from autotune.agent.history import SEARCH
from autotune.search_space.plan import Plan
from autotune.search_space.space import Narrowing
from autotune.trials.cause import Cause
from autotune.trials.result import Outcome, Purpose, TrialResult
from tests.agent.world import (
    CPU,
    GIB,
    GPT,
    GPT_MODEL,
    GPU,
    MLP,
    MLP_MODEL,
    Table,
    World,
    failing,
    ok,
    passed,
    search_trials,
)


def overrunning(first, trial_s, narrowing):
    """A run of 45 s whose search trials never end from number `first` on."""

    def for_ever(request):
        overruns = request.purpose in SEARCH and request.number >= first
        return ok(300.0, total_s=1000.0) if overruns else None

    large = replace(CPU, device_memory_bytes=GPU.device_memory_bytes)
    world = World(GPT_MODEL, hardware=large, trial_s=trial_s, fail=for_ever)
    table = Table(world, GPT, 45.0, narrowing=narrowing)
    # A device is free again a moment after its trial was killed.
    table.observer.on_finish = lambda *_: table.clock.sleep(0.5)
    return table


def test_a_trial_cut_short_for_the_ending_says_so_and_is_not_run_again():
    """Its time was that of the search, not the budget, of which a second try could have enough."""
    table = overrunning(3, 3.0, Narrowing(fix=(("compile_mode", "off"),)))
    table.search().run()
    cut, *later = table.store.trials(1)[2:]
    assert (cut.outcome, cut.result.cause) == (Outcome.CANCELLED, Cause.SEARCH_ENDED)
    assert cut.plan not in [record.plan for record in later]


def test_time_to_find_a_plan_is_kept_before_time_to_confirm_it_well():
    """Where the start took a third of the budget, more rounds would leave none to confirm."""
    world = World(GPT_MODEL, hardware=CPU, trial_s=4.0)
    table = Table(world, GPT, 59.0, narrowing=Narrowing(fix=(("compile_mode", "off"),)))
    table.observer.on_submit = lambda number, _: number == 1 and table.clock.sleep(18.0)
    assert table.search().run().confirmed
    assert len(search_trials(table)) > 2


def test_what_was_found_is_confirmed_although_a_trial_was_cut_short():
    """The time kept for the ending is not given back to the search that used up its own."""
    table = overrunning(3, 3.0, Narrowing(fix=(("compile_mode", "off"),)))
    winner = table.search().run()
    cut, *later = table.store.trials(1)[2:]
    assert cut.outcome is Outcome.CANCELLED
    assert later
    assert not any(r.purpose in SEARCH for r in later)
    assert winner.confirmed


def test_the_winner_leaves_memory_headroom():
    """A plan above 95 % of the memory runs, but does not win."""
    table = Table(World(GPT_MODEL), GPT, settings={"max_memory_bytes": 28 * GIB})
    winner = table.search().run()
    ran = [r.result.measurement for r in search_trials(table) if r.result.measurement]
    fastest = max(ran, key=lambda measurement: measurement.throughput)
    assert fastest.memory_bytes > 0.95 * 28 * GIB >= winner.own.memory_bytes
    assert all(r.memory_limit_bytes == 28 * GIB for r in table.world.requests)


def test_a_plan_that_fails_the_numerics_check_is_passed_over():
    """bf16 that trains differently does not win, and the user reads why."""

    def wrong_in_bf16(request):
        if request.purpose is Purpose.NUMERICS and request.plan["precision"] == "bf16":
            return TrialResult(outcome=Outcome.OK, numerics=passed(worst=0.5), total_s=8.0)
        return None

    winner = Table(World(GPT_MODEL, fail=wrong_in_bf16), GPT, budget_s=1800).search().run()
    assert winner.plan["precision"] != "bf16"
    assert any("gradients 50.0% away from eager fp32" in remark for remark in winner.remarks)


def test_the_numerics_check_compares_with_the_eager_fp32_twin(gpt_run):
    """The reference is the baseline at the winner's batch, eager and in fp32."""
    winner = gpt_run.record().winner
    checks = [r for r in gpt_run.world.requests if r.purpose is Purpose.NUMERICS]
    assert any(r.plan["precision"] == winner.plan["precision"] for r in checks)
    for request in checks:
        twin = request.compare_with
        assert twin["compile_mode"] == "off"
        assert twin["precision"] == "fp32"
        assert twin["batch_size"] == request.plan["batch_size"]
        assert "compile_scope" not in twin


def test_a_check_out_of_memory_is_repeated_at_the_baselines_batch():
    """Eager fp32 may not fit where the winner does; then the smaller batch is compared."""

    def eager_does_not_fit(request):
        if request.purpose is Purpose.NUMERICS and request.plan["batch_size"] > 16:
            return failing(Outcome.OOM)
        return None

    table = Table(World(GPT_MODEL, fail=eager_does_not_fit), GPT, budget_s=900)
    winner = table.search().run()
    assert winner.plan["batch_size"] > 16
    assert any("to bf16 moves it 1.0%), at batch 16" in remark for remark in winner.remarks)


def test_a_finalist_that_fails_when_run_again_does_not_win():
    """One crash in the confirmation disqualifies, and another finalist wins."""
    crashed = []

    def crash_the_first_finalist(request):
        if request.purpose is Purpose.CONFIRM and "compile_scope" in request.plan:
            crashed.append(crashed[0] if crashed else request.plan)
            if request.plan == crashed[0]:
                return failing(Outcome.CRASH)
        return None

    winner = Table(World(GPT_MODEL, fail=crash_the_first_finalist), GPT).search().run()
    assert winner.confirmed
    assert winner.plan != crashed[0]
    assert any("it failed when it was run again (crash" in remark for remark in winner.remarks)


def test_an_ablation_that_beats_the_winner_is_confirmed_and_wins():
    """Two settings may disturb each other, which shows when one is flipped back."""
    better = []

    def fast_without(request):
        if request.purpose is Purpose.ABLATE and not better:
            better.append(request.plan)
        is_measured = request.purpose is not Purpose.NUMERICS
        return ok(900.0, total_s=6.0) if request.plan in better and is_measured else None

    table = Table(World(GPT_MODEL, fail=fast_without), GPT, budget_s=3600)
    winner = table.search().run()
    assert (winner.plan, winner.confirmed) == (better[0], True)
    assert winner.own.throughput == pytest.approx(900.0, rel=0.01)


def test_a_batch_that_turns_out_to_be_worth_nothing_is_given_back():
    """A larger batch changes the training: where the user's own is as fast after all, it wins."""
    own_batch = []

    def as_fast_with_the_own_batch(request):
        plan = request.plan
        if request.purpose is Purpose.ABLATE and plan["batch_size"] == GPT.batch_size:
            own_batch.append(plan)
        if plan not in own_batch or request.purpose is Purpose.NUMERICS:
            return None
        twin = Plan.of({**plan.values, "batch_size": 128})
        return ok(0.998 * GPT_MODEL.throughput(twin)[0], memory=GPT_MODEL.memory(plan))

    world = World(GPT_MODEL, noise=0.001, fail=as_fast_with_the_own_batch)
    table = Table(world, GPT, budget_s=3600)
    winner = table.search().run()
    assert winner.plan in own_batch
    assert winner.confirmed
    assert not any("the training changes" in remark for remark in winner.remarks)


def test_the_confirmation_is_interleaved_and_ends():
    """Baseline and finalists take turns, five rounds at most however wide the interval is."""
    table = Table(World(GPT_MODEL, noise=0.03), GPT, budget_s=7200)
    winner = table.search().run()
    plans = [r.plan for r in table.store.trials(1) if r.purpose is Purpose.CONFIRM]
    field = list(dict.fromkeys(plans))
    assert field[0] == table.space.baseline
    assert plans == field * 5
    assert winner.plan in field


def test_a_baseline_beyond_the_memory_allowed_is_named():
    """With what it needs and the limit; silence would leave a plan that breaks it."""
    cap = {"max_memory_bytes": 2 * GIB}
    winner = Table(World(GPT_MODEL), GPT, settings=cap).search().run()
    assert winner.kept_baseline
    assert "your own configuration does not fit either: it needs" in winner.remarks[0]


def test_a_comparison_too_uncertain_to_tell_says_so():
    """Instead of an interval from a half to twice as fast without a word."""
    worlds = (World(MLP_MODEL, noise=1.5, seed=seed) for seed in range(1, 13))
    winners = [Table(world, MLP, budget_s=200).search().run() for world in worlds]
    compared = "keep your baseline: the best other plan is"
    kept = [w.remarks[0] for w in winners if w.remarks[0].startswith(compared)]
    assert any("by how much is not known well: the baseline gave" in why for why in kept)


def test_a_changed_batch_names_the_learning_rate_rule(gpt_run):
    """A larger batch changes the training, so the user reads how to scale the learning rate."""
    winner = gpt_run.record().winner
    assert winner.plan["batch_size"] != GPT.batch_size
    assert any("square-root rule" in remark for remark in winner.remarks)


def test_each_setting_of_the_winner_is_explained():
    """Every changed knob has a line that says what the change does."""
    winner = Table(World(GPT_MODEL), GPT, budget_s=1800).search().run()
    baseline = Table(World(GPT_MODEL), GPT).space.baseline
    changed = {n for n in winner.plan.diff(baseline) if n in baseline}
    assert changed <= set(winner.changes)
    assert winner.changes["compile_mode"] == "fused kernels and fewer launches"


def test_a_setting_of_another_setting_is_flipped_back_as_well():
    """The baseline compiles nothing, so it pads nothing: it goes back to what compiling brings."""
    padded = {**GPT_MODEL.speeds, "shape_padding": {"always": 1.1}}
    world = World(replace(GPT_MODEL, speeds=padded))
    table = Table(world, replace(GPT, uneven_share=0.3), budget_s=3600)
    winner = table.search().run()
    assert winner.plan["shape_padding"] == "always"
    assert "no product is left at a size" in winner.changes["shape_padding"]
    ablated = [r.plan for r in table.store.trials(1) if r.purpose is Purpose.ABLATE]
    assert any(plan.get("shape_padding", "") == "measured" for plan in ablated)
