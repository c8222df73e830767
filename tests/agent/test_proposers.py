"""Each proposer and rule by itself, from a history written down by hand."""

from dataclasses import replace

import optuna
import pytest

from autotune.agent.durations import expected_first_step_s, expected_s
from autotune.agent.finalists import finalists
from autotune.agent.gate import Gate, Objection, TimeLeft
from autotune.agent.guided import FlipBack, Levers, Presets
from autotune.agent.history import Done, History
from autotune.agent.ladder import BatchLadder
from autotune.agent.memory import cannot_fit, predicted_bytes
from autotune.agent.numerics import is_suspect, numerics_failure
from autotune.agent.preview import first_trials
from autotune.agent.sampler import Sampler
from autotune.agent.settings import SearchSettings
from autotune.search_space.presets import checklist
from autotune.search_space.space import build_space
from autotune.trials.result import Outcome, Purpose, TrialResult
from tests.agent.world import CPU, GIB, GPT, GPU, ok, passed

SPACE = build_space(GPT, GPU)
PLENTY = TimeLeft(search_s=1e6, total_s=1e6)
OOM = TrialResult(outcome=Outcome.OOM, error="out of memory", total_s=5.0)
CRASH = TrialResult(outcome=Outcome.CRASH, error="died", total_s=5.0)


def history(*trials, space=SPACE, pending=()):
    """Return a history of `(changes, result)` pairs, the first one the baseline."""
    purposes = [Purpose.BASELINE] + [Purpose.PRESET] * len(trials)
    done = tuple(
        Done(number=n, plan=space.plan(changes), purpose=purpose, reason="", result=result)
        for n, ((changes, result), purpose) in enumerate(zip(trials, purposes, strict=False), 1)
    )
    return History(
        space=space, memory_cap_bytes=133 * GIB, done=done, pending=tuple(map(space.plan, pending))
    )


def changes(proposals):
    return [{k: v for k, (v, _) in p.plan.diff(SPACE.baseline).items()} for p in proposals]


def test_the_checklist_takes_what_the_space_has():
    """All the guides' settings that apply, and none that does not."""
    assert checklist(SPACE).values == {
        **SPACE.baseline.values,
        "compile_mode": "default",
        "compile_scope": "model",
        "precision": "bf16",
        "optimizer_impl": "fused",
        "pin_memory": True,
        "workers": 4,
        "prefetch": 2,
    }
    assert "memory_format" not in checklist(SPACE)
    with_convolutions = build_space(replace(GPT, has_conv2d=True), GPU)
    assert checklist(with_convolutions)["memory_format"] == "channels_last"


def test_the_checklist_gets_smaller_until_it_runs():
    """After a compile error the block, then no compilation, is tried; after success nothing."""
    presets = Presets()
    whole = {k: v for k, (v, _) in checklist(SPACE).diff(SPACE.baseline).items()}
    waits = ok(50.0, wait=0.2)
    failed = history(({}, waits), (whole, CRASH))
    assert [c.get("compile_scope") for c in changes(presets.candidates(failed))] == [
        "model",
        "block",
        None,
    ]
    worked = history(({}, waits), (whole, ok(300.0, wait=0.2)))
    assert len(list(presets.candidates(worked))) == 1


def test_levers_come_by_expected_gain():
    """Without evidence precision is first; a loop that waits for data puts workers first."""
    computing = changes(Levers(hardware=GPU, at_least=1.04).candidates(history(({}, ok(50.0)))))
    assert computing[0] == {"precision": "bf16"}
    waiting = history(({}, ok(50.0, wait=0.9)))
    loading = changes(Levers(hardware=GPU, at_least=1.04).candidates(waiting))
    assert set(loading[0]) == {"workers", "prefetch"}
    assert not any("workers" in change for change in computing)


@pytest.mark.parametrize("result", [ok(49.0), CRASH])
def test_a_lever_seen_to_lose_is_not_pulled_again(result):
    """A pair of plans that differ only in the knob settles it, also in front of other plans."""
    seen = history(
        ({}, ok(50.0)), ({"optimizer_impl": "fused"}, result), ({"precision": "bf16"}, ok(300.0))
    )
    pulled = changes(Levers(hardware=GPU, at_least=1.0).candidates(seen))
    assert not any(change.get("optimizer_impl") == "fused" for change in pulled)
    assert any(change.get("compile_mode") == "default" for change in pulled)


def test_parts_of_a_checklist_that_fell_short_are_flipped_back():
    """When all together gave less than promised, the largest promise is doubted first."""
    whole = {"precision": "bf16", "optimizer_impl": "fused"}
    short = history(({}, ok(50.0)), (whole, ok(70.0)))
    assert changes(FlipBack(hardware=GPU).candidates(short))[0] == {"optimizer_impl": "fused"}
    held = history(({}, ok(50.0)), (whole, ok(300.0)))
    assert changes(FlipBack(hardware=GPU).candidates(held)) == [{"precision": "bf16"}]


def test_the_ladder_climbs_while_throughput_grows():
    """The batch doubles after a gain above one percent, and no further after less."""
    ladder = BatchLadder(gain=0.01)
    growing = history(({}, ok(50.0)), ({"batch_size": 32}, ok(55.0)))
    assert changes(ladder.candidates(growing)) == [{"batch_size": 64}]
    flat = history(({}, ok(50.0)), ({"batch_size": 32}, ok(50.2)))
    assert changes(ladder.candidates(flat)) == []


def test_where_memory_ends_the_ladder_checkpointing_makes_room():
    """After an OOM that ended a growing climb, the lightest checkpointing is tried."""
    full = history(({}, ok(50.0)), ({"batch_size": 32}, OOM))
    proposed = changes(BatchLadder(gain=0.01).candidates(full))
    assert proposed[1] == {"batch_size": 32, "activation_checkpointing": "selective"}


def test_peaks_predict_what_cannot_fit():
    """Two measured batches give `a + b * batch`; what needs more than the cap is not run."""
    seen = history(
        ({}, ok(50.0, memory=40 * GIB)), ({"batch_size": 32}, ok(55.0, memory=72 * GIB))
    )
    assert predicted_bytes(SPACE.plan({"batch_size": 64}), seen) == 136 * GIB
    assert cannot_fit(SPACE.plan({"batch_size": 64}), seen)
    assert not cannot_fit(SPACE.plan({"batch_size": 32, "workers": 1}), seen)


def test_out_of_memory_speaks_for_plans_that_need_no_less():
    """bf16 out of memory rules out fp32; full checkpointing stays possible."""
    seen = history(({}, ok(50.0)), ({"batch_size": 64, "precision": "bf16"}, OOM))
    assert cannot_fit(SPACE.plan({"batch_size": 128, "workers": 2}), seen)
    saving = {"batch_size": 64, "precision": "bf16", "activation_checkpointing": "full"}
    assert not cannot_fit(SPACE.plan(saving), seen)


def test_compilation_waits_for_time_that_can_pay():
    """An unknown compile mode needs several of its first steps; a known one needs only itself."""
    gate = Gate(settings=SearchSettings(budget_s=600), hardware=GPU)
    plan = SPACE.plan({"compile_mode": "max-autotune"})
    seen = history(({}, ok(50.0)))
    short = TimeLeft(search_s=300, total_s=900)
    assert gate.objection(plan, seen, short) is Objection.TIME
    assert gate.objection(plan, seen, PLENTY) is None
    assert gate.objection(SPACE.baseline, seen, PLENTY) is Objection.TRIED
    known = history(({}, ok(50.0)), ({"compile_mode": "max-autotune"}, ok(60.0, first_step_s=20)))
    other = SPACE.plan({"compile_mode": "max-autotune", "workers": 1})
    assert gate.objection(other, known, short) is None


def test_durations_are_learnt():
    """First steps come from what was measured of the mode, else scaled from `default`'s."""
    seen = history(
        ({}, ok(50.0, total_s=8.0)),
        ({"compile_mode": "default"}, ok(60.0, first_step_s=30.0, total_s=37.0)),
    )
    default = SPACE.plan({"compile_mode": "default", "workers": 1})
    graphs = SPACE.plan({"compile_mode": "reduce-overhead"})
    assert expected_first_step_s(default, seen, GPU) == 30.0
    assert expected_s(default, seen, GPU) == 37.0
    assert expected_first_step_s(graphs, seen, GPU) == 40.0


def test_the_sampler_proposes_only_new_plans_and_repeats_itself():
    """Equal histories give equal proposals, and none was tried or is running."""
    seen = history(({}, ok(50.0)), ({"precision": "bf16"}, ok(300.0)), pending=[{"workers": 2}])
    first = [p.plan for p in Sampler(seed=1).candidates(seen)]
    assert first == [p.plan for p in Sampler(seed=1).candidates(seen)]
    assert len(first) == len(set(first)) > 20
    assert not set(first) & seen.tried


def test_the_sampler_is_told_failures_as_infeasible():
    """An out-of-memory trial stays in the study, as one that violates a constraint."""
    seen = history(({}, ok(50.0, memory=GIB)), ({"batch_size": 1024}, OOM))
    sampler = Sampler(seed=0)
    list(zip(range(1), sampler.candidates(seen), strict=False))
    from autotune.agent.sampler import _axes

    study = sampler._study(seen, _axes(seen))
    assert [t.state for t in study.trials] == [optuna.trial.TrialState.COMPLETE] * 2
    assert [t.constraints["runs"] > 0 for t in study.trials] == [False, True]


def test_a_small_space_is_enumerated_to_its_end():
    """What sampling leaves of a small space still gets its turn."""
    space = build_space(replace(GPT, dataset_len=16, num_blocks=0), CPU)
    seen = history(({}, ok(50.0)), space=space)
    proposed = {p.plan for p in Sampler(seed=0).candidates(seen)}
    assert proposed == set(space.enumerate()) - {space.baseline}


def test_the_preview_starts_with_the_baseline_and_the_checklist():
    """`--dry-run` shows what a run would start with."""
    planned = first_trials(SPACE, GPU, 900.0)
    assert [trial["purpose"] for trial in planned[:2]] == ["baseline", "preset"]
    assert "precision=bf16" in planned[1]["change"]


def test_the_cheapest_of_the_equally_fast_is_a_finalist():
    """Behind the fastest comes the plan that is as fast with the least memory."""
    seen = history(
        ({}, ok(50.0, memory=30 * GIB)),
        ({"workers": 1}, ok(100.0, memory=40 * GIB)),
        ({"workers": 2}, ok(99.9, memory=40 * GIB)),
        ({"workers": 4}, ok(99.8, memory=40 * GIB)),
        ({"batch_size": 8}, ok(99.5, memory=20 * GIB)),
        ({"batch_size": 4}, ok(90.0, memory=10 * GIB)),
    )
    assert finalists(seen) == [
        SPACE.plan({"workers": 1}),
        SPACE.plan({"batch_size": 8}),
        SPACE.plan({"workers": 2}),
    ]


def test_a_failed_check_casts_doubt_on_unchecked_plans_of_the_same_precision():
    """Only a check of its own clears a plan; a check holds for every batch and loader."""
    seen = history(({}, ok(50.0)))
    checked = [
        Done(number=n, plan=SPACE.plan(values), purpose=Purpose.NUMERICS, reason="", result=result)
        for n, (values, result) in enumerate(
            [
                (
                    {"precision": "bf16", "compile_mode": "default"},
                    TrialResult(outcome=Outcome.OK, numerics=passed(worst=0.5)),
                ),
                (
                    {"precision": "bf16", "batch_size": 64},
                    TrialResult(outcome=Outcome.OK, numerics=passed()),
                ),
            ],
            start=2,
        )
    ]
    seen = replace(seen, done=(*seen.done, *checked))
    assert is_suspect(SPACE.plan({"precision": "bf16", "optimizer_impl": "fused"}), seen)
    assert not is_suspect(SPACE.plan({"precision": "bf16", "workers": 2}), seen)
    assert not is_suspect(SPACE.plan({"precision": "tf32"}), seen)
    compiled = SPACE.plan({"precision": "bf16", "compile_mode": "default", "batch_size": 32})
    assert "differ from eager fp32" in numerics_failure(compiled, seen)
