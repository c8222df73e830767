"""What a plan is expected to need of memory, and which plans cannot fit."""

import math
from dataclasses import replace

import pytest

from autotune.agent.forecast.memory import (
    cannot_fit,
    chance_to_fit,
    expected_peak,
    predicted_bytes,
)
from autotune.agent.objectives.least_memory import LeastMemory
from autotune.agent.objectives.throughput import FASTEST
from autotune.search_space.space import build_space
from tests.agent.histories import OOM, SPACE, history, history_for
from tests.agent.world import CPU, GIB, GPT, GPU, ok

COMPILED = {"compile_mode": "default"}


def test_a_batch_that_will_hardly_fit_is_worth_less():
    """One peak already tells: 16 samples in 40 GiB leave no room for 256."""
    seen = history(({}, ok(50.0, memory=40 * GIB)))
    chances = [chance_to_fit(SPACE.plan({"batch_size": b}), seen) for b in (8, 16, 32, 64, 256)]
    assert chances[:2] == [1.0, 1.0]
    assert chances[2] > 0.9 > chances[3] > chances[4]
    assert chances[4] < 0.01


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


def test_padding_only_adds_to_what_is_needed():
    """What ran out of memory without does with it, too; a plan that pads may only owe it that."""
    space = build_space(replace(GPT, uneven_share=0.3), GPU)
    eager = {"batch_size": 64}
    measured = {**eager, "compile_mode": "reduce-overhead"}
    padded = {**measured, "shape_padding": "always"}

    def ruled_out_by(ran_out):
        seen = history(({}, ok(50.0)), (ran_out, OOM), space=space)
        others = (space.plan(one) for one in (eager, measured, padded) if one != ran_out)
        return [cannot_fit(plan, seen) for plan in others]

    assert ruled_out_by(eager) == [True, True]
    assert ruled_out_by(measured) == [True, True]
    assert ruled_out_by(padded) == [False, False]


def test_memory_is_expected_from_what_was_measured():
    """A measured plan needs what it needed, half the batch less, checkpointing much less."""
    seen = history_for(
        LeastMemory(min_share=0.5),
        ({}, ok(50.0, memory=20 * GIB)),
        ({"batch_size": 32}, ok(50.0, memory=36 * GIB)),
    )
    plans = ({}, {"batch_size": 8}, {"activation_checkpointing": "full"})
    peaks = [math.exp(expected_peak(SPACE.plan(plan), seen, GPU)[0]) / GIB for plan in plans]
    assert peaks[0] == pytest.approx(20.0)
    assert peaks[1] == pytest.approx(12.0)
    assert 4.0 < peaks[2] < 12.0
    assert expected_peak(SPACE.baseline, history_for(FASTEST, ({}, ok(50.0))), GPU) is None


def test_without_a_device_torch_and_its_compiler_are_in_the_peak():
    """A small model's batch is a small part of its process, and compiling adds to it."""
    small = build_space(replace(GPT, num_parameters=1_000_000), GPU)
    seen = history_for(LeastMemory(min_share=0.5), ({}, ok(50.0, memory=420 * 2**20)))
    seen = replace(seen, space=small)
    plans = [SPACE.plan(plan) for plan in ({"batch_size": 8}, COMPILED)]
    on_cpu = [math.exp(expected_peak(plan, seen, CPU)[0]) / 2**20 for plan in plans]
    assert 380 < on_cpu[0] < 420 < on_cpu[1]
    assert math.exp(expected_peak(plans[0], seen, GPU)[0]) < 300 * 2**20
