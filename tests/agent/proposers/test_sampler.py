"""Sampled plans are new, repeatable, and know of failures."""

import math
from dataclasses import replace

import optuna
import pytest

from autotune.agent.objectives.least_memory import LeastMemory
from autotune.agent.proposers.sampler import Sampler, _axes
from autotune.search_space.space import build_space
from tests.agent.histories import OOM, history, history_for
from tests.agent.world import CPU, GIB, GPT, ok


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
    from autotune.agent.proposers.sampler import _axes

    study = sampler._study(seen, _axes(seen))
    assert [t.state for t in study.trials] == [optuna.trial.TrialState.COMPLETE] * 2
    assert [t.constraints["runs"] > 0 for t in study.trials] == [False, True]


def test_a_small_space_is_enumerated_to_its_end():
    """What sampling leaves of a small space still gets its turn."""
    space = build_space(replace(GPT, dataset_len=16, num_blocks=0), CPU)
    seen = history(({}, ok(50.0)), space=space)
    proposed = {p.plan for p in Sampler(seed=0).candidates(seen)}
    assert proposed == set(space.enumerate()) - {space.baseline}


def test_the_sampler_is_told_the_objective():
    """Its values are the objective's, and a plan that is too slow violates a constraint."""
    objective = LeastMemory(min_throughput=45.0)
    seen = history_for(
        objective,
        ({}, ok(50.0, memory=20 * GIB)),
        ({"batch_size": 8}, ok(40.0, memory=10 * GIB)),
    )
    study = Sampler(seed=0)._study(seen, _axes(seen))
    assert [t.constraints["runs"] > 0 for t in study.trials] == [False, True]
    assert study.trials[0].value == pytest.approx(math.log(1 / 20))
