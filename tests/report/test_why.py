"""What the settings of a winner are worth, estimated from the trials of its run."""

import math

import pytest

from autotune.report.why import why_of
from autotune.search_space.changes import changes
from tests.agent.world import GPT, GPT_MODEL, Table, World
from tests.report.conftest import AGAIN, BASELINE, FIRST, FLIPPED, SEARCHED, ok, plan, won

BOTH = {"precision": "bf16", "workers": 4}


def shares(why):
    return {tuple(sorted(share.settings)): share for share in why.shares}


def test_a_baseline_that_is_kept_has_no_why(make):
    """Nothing changed, so there is nothing to explain."""
    assert why_of(*make(won(BASELINE, 100.0, 100.0), ({}, FIRST, ok(100.0)))) is None


def test_settings_that_were_measured_apart_have_a_share_each(make):
    """1.5 and 2 make 3 times, and the path goes through the trial that had one of them."""
    winner = won(plan(**BOTH), 300.0, 100.0, (3.0, 2.97, 3.03))
    trials = (
        ({}, FIRST, ok(100.0)),
        ({"precision": "bf16"}, SEARCHED, ok(150.0)),
        (BOTH, SEARCHED, ok(300.0)),
    )
    why = why_of(*make(winner, *trials))
    found = shares(why)
    assert found["precision",].factor == pytest.approx(1.5, rel=0.03)
    assert found["workers",].factor == pytest.approx(2.0, rel=0.03)
    assert [share.trial for share in why.shares] == [2, 3]
    assert [(stop.trial, stop.figure) for stop in why.path] == [(1, 100.0), (2, 150.0), (3, 300.0)]
    assert why.path[2].added == {"workers": 4}


def test_a_winner_without_one_setting_tells_what_that_is_worth(make):
    """Both came together; the run measured the winner again without each."""
    winner = won(plan(**BOTH), 300.0, 100.0, (3.0, 2.97, 3.03))
    trials = (
        ({}, FIRST, ok(100.0)),
        (BOTH, SEARCHED, ok(300.0)),
        ({"precision": "bf16"}, FLIPPED, ok(151.0)),
        ({"workers": 4}, FLIPPED, ok(200.0)),
    )
    found = shares(why_of(*make(winner, *trials)))
    assert found["precision",].factor == pytest.approx(1.5, rel=0.05)
    assert found["workers",].factor == pytest.approx(2.0, rel=0.05)


def test_settings_that_always_came_together_share_one_line(make):
    """Its interval is that of the speed-up, as nothing tells them apart."""
    winner = won(plan(**BOTH), 300.0, 100.0, (3.0, 2.8, 3.2))
    why = why_of(*make(winner, ({}, FIRST, ok(100.0)), (BOTH, SEARCHED, ok(300.0))))
    (share,) = why.shares
    assert share.settings == BOTH
    assert share.factor == pytest.approx(3.0)
    assert share.low == pytest.approx(2.8, rel=0.01)
    assert share.high == pytest.approx(3.2, rel=0.01)


def test_changes_within_noise_are_folded_into_one_line(make):
    """Pinned memory and more workers did nothing here, the precision did."""
    found = {"precision": "bf16", "workers": 2, "pin_memory": True}
    winner = won(plan(**found), 200.0, 100.0, (2.0, 1.98, 2.02))
    trials = (
        ({}, FIRST, ok(100.0)),
        ({"precision": "bf16"}, SEARCHED, ok(201.0)),
        ({"precision": "bf16", "pin_memory": True}, SEARCHED, ok(199.0)),
        (found, SEARCHED, ok(200.0)),
    )
    why = why_of(*make(winner, *trials))
    assert [tuple(share.settings) for share in why.shares] == [
        ("precision",),
        ("pin_memory", "workers"),
    ]
    assert [share.is_noise for share in why.shares] == [False, True]
    assert why.shares[1].low < 1.0 < why.shares[1].high


def test_a_winner_that_was_measured_once_has_shares_without_intervals(make):
    """The fastest of many looks faster than it is, by nobody knows how much."""
    trials = ({}, FIRST, ok(100.0)), ({"precision": "bf16"}, SEARCHED, ok(200.0))
    (share,) = why_of(*make(won(plan(precision="bf16"), 200.0, 100.0), *trials)).shares
    assert (share.factor, share.low, share.high) == (pytest.approx(2.0), None, None)


def test_least_memory_is_explained_by_memory(make):
    """The figures are peaks, and a factor below 1 is what was looked for."""
    winner = won(plan(precision="bf16"), 100.0, 100.0, (1.0, 0.99, 1.01))
    trials = (
        ({}, FIRST, ok(100.0, memory_gib=10)),
        ({"precision": "bf16"}, AGAIN, ok(100.0, memory_gib=8)),
    )
    options = {"objective": {"name": "memory", "min_throughput_share": 0.9}}
    why = why_of(*make(winner, *trials, options=options))
    assert why.is_memory
    assert why.factor == pytest.approx(0.8)
    assert why.shares[0].factor == pytest.approx(0.8)


def test_the_true_effects_of_a_simulated_gpu_are_found():
    """A whole search with its ending on a model whose factors are known: 1.19, 1.08, 5.65."""
    table = Table(World(GPT_MODEL, seed=1), GPT, budget_s=1800)
    table.search().run()
    found = shares(why_of(table.record(), table.store.trials(1)))
    compiled = found["compile_mode",]
    assert compiled.low < 1.19 < compiled.high < 1.3
    fused = found["optimizer_impl",]
    assert fused.low < 1.08 < fused.high < 1.2
    assert found["precision",].factor == pytest.approx(5.65, rel=0.15)


@pytest.mark.parametrize(
    "name", ["recommender", "resnet50", "diffusion", "translation", "imagenet"]
)
def test_the_shares_of_real_runs_multiply_to_the_speed_up(name, real):
    """Each changed setting is in one share; the path is made of trials of the run."""
    run, trials = real(name)
    why = why_of(run, trials)
    assert math.prod(share.factor for share in why.shares) == pytest.approx(why.factor)
    named = [knob for share in why.shares for knob in share.settings]
    assert sorted(named) == sorted(changes(run.winner.plan, run.new.baseline))
    assert why.path[0].trial == 1
    assert why.path[-1].trial in {t.number for t in trials if t.plan == run.winner.plan}


def test_a_translation_model_owes_its_speed_to_its_batch(real):
    """A real run: bf16 and fused kernels alone gave 3 %, the batch four times."""
    found = shares(why_of(*real("translation")))
    assert found["batch_size",].factor == pytest.approx(4.0, rel=0.1)
    assert all(share.is_noise for knobs, share in found.items() if knobs != ("batch_size",))
