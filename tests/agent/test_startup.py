"""How long a plan takes to its first step, from the processes that were run."""

import pytest

from autotune.agent.startup import StartUps
from autotune.storage.testing import make_measurement
from tests.agent.histories import SPACE

COMPILED = {"compile_mode": "default"}


def process(plan, first_step_s):
    return SPACE.plan(plan), make_measurement(100.0, first_step_s=first_step_s)


def test_a_compiled_plan_starts_as_its_first_process_did():
    """Later processes find kernels in the compiler's cache, which says nothing of a cold start."""
    starts = StartUps([process(COMPILED, 30.0), process(COMPILED, 2.0), process(COMPILED, 3.0)])
    assert starts.of(SPACE.plan(COMPILED)) == pytest.approx(30.5)


def test_a_plan_whose_program_was_compiled_before_starts_as_that_one_did():
    """Another batch or loader finds the kernels of the first; another precision compiles anew."""
    loaded, other = {**COMPILED, "workers": 2}, {**COMPILED, "precision": "bf16"}
    starts = StartUps([process(COMPILED, 30.0), process(loaded, 2.0), process(other, 20.0)])
    assert starts.of(SPACE.plan(loaded)) == pytest.approx(30.5)
    assert starts.of(SPACE.plan(other)) == pytest.approx(20.5)


def test_what_earlier_runs_compiled_counts_as_well():
    """The cache outlives a run, so the second run of a workload may see no compilation at all."""
    starts = StartUps([process(COMPILED, 2.0)], earlier=[process(COMPILED, 30.0)])
    assert starts.of(SPACE.plan(COMPILED)) == pytest.approx(30.5)
    assert StartUps([], earlier=[process(COMPILED, 30.0)]).of(SPACE.plan(COMPILED)) is None


def test_a_plan_that_compiles_nothing_starts_as_its_shortest_process_did():
    """The first process of a run reads files for the first time, whatever its plan is."""
    assert StartUps([process({}, 9.0), process({}, 1.0)]).of(SPACE.baseline) == pytest.approx(1.5)
