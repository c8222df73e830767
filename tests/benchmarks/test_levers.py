"""What is measured of single settings: knobs that there are, on workloads of the zoo."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.search_space.facts import WorkloadFacts
from autotune.search_space.knobs import BY_NAME
from autotune.search_space.space import NAMED_IN_FULL, build_space
from tests.search_space.machines import GPU_MACHINE

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
FACTS = WorkloadFacts(
    batch_size=16,
    dataset_len=10_000,
    num_blocks=12,
    uneven_batches=True,
    has_conv2d=True,
    optimizer_impls=("foreach", "fused"),
)


@pytest.fixture(scope="module")
def levers():
    """The script, which is in a folder of scripts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
        yield importlib.import_module("levers")


def test_each_case_is_possible_on_a_gpu(levers):
    """On a workload of the zoo, with the lever's name in each of its settings or beside them."""
    space = build_space(FACTS, GPU_MACHINE, NAMED_IN_FULL)
    for case in levers.CASES:
        assert levers.target_of(case).path.is_file()
        assert any(case.lever in setting for setting in case.settings)
        for setting in ({}, *case.settings):
            assert space.plan(case.base | setting)


def test_each_guarded_value_of_a_gpu_is_measured(levers):
    """Whoever opens one to all runs has to know what it is worth."""
    measured = {
        (name, value)
        for case in levers.CASES
        for setting in case.settings
        for name, value in setting.items()
    }
    guarded = {(knob.name, value) for knob in BY_NAME.values() for value in knob.guarded}
    assert guarded - measured == {("cuda_graph", "step")}


def test_each_lever_is_measured_where_it_matters_and_where_not(levers):
    """But for the one that only makes room."""
    for lever in levers.LEVERS:
        kinds = {case.matters for case in levers.CASES if case.lever == lever}
        assert kinds == ({True} if lever == "parameter_offload" else {True, False})


@pytest.mark.parametrize(
    ("options", "code", "shown"),
    [
        (["--list", "--levers", "allocator"], 0, "allocator on speech_conformer"),
        (["--levers", "alocator"], 2, "there is no lever 'alocator'"),
    ],
)
def test_levers_are_chosen_by_name(options, code, shown):
    """And a wrong name is told with those that there are."""
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "levers.py", *options],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code
    assert shown in done.stdout + done.stderr
