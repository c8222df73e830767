"""Where models are made: on their device, on the CPU, or without values."""

import pytest
import torch

from autotune.search_space.plan import Plan
from autotune.trials.building import build_on_device, can_be_filled, copies_fit, device_has_room
from autotune.trials.workload import load_workload

# Stands for a GPU: tensors there have no values that code on the host could read.
ELSEWHERE = torch.device("meta")
MADE = """
def build_model():
    model = nn.Sequential(nn.Linear(16, 3))
    model.made_on = model[0].weight.device.type
    return model
"""
NEEDS_THE_CPU = """
def build_model():
    model = nn.Sequential(nn.Linear(16, 3))
    model.scale = float(torch.ones(3).numpy().mean())
    model.made_on = model[0].weight.device.type
    return model
"""

KEEPS_A_TENSOR = """
def build_model():
    model = nn.Sequential(nn.Linear(16, 3))
    model.splits = torch.tensor([1, 3])
    model.made_on = model[0].weight.device.type
    return model
"""
BUILDS = [(MADE, "meta"), (NEEDS_THE_CPU, "cpu"), (KEEPS_A_TENSOR, "cpu")]


@pytest.mark.parametrize(("source", "made_on"), BUILDS)
def test_a_model_is_made_on_its_device_where_its_code_can(source, made_on, write_workload):
    """Code that reads values or keeps tensors gets them on the CPU; either way the model moves."""
    model = build_on_device(load_workload(write_workload(source)), Plan.of({}), ELSEWHERE)
    assert model.made_on == made_on
    assert {p.device.type for p in model.parameters()} == {"meta"}


def test_a_second_attempt_draws_the_same_numbers(write_workload):
    """What the first one drew does not shift them."""
    workload = load_workload(write_workload())
    torch.manual_seed(3)
    first = build_on_device(workload, Plan.of({}), torch.device("cpu"))
    torch.rand(100)
    second = build_on_device(workload, Plan.of({}), torch.device("cpu"))
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_an_error_of_the_users_own_is_told_as_on_the_cpu(write_workload):
    """It is not taken for code that cannot work on a device."""
    path = write_workload("def build_model(): raise ValueError('no such size')")
    with pytest.raises(ValueError, match="no such size"):
        build_on_device(load_workload(path), Plan.of({}), ELSEWHERE)


def test_only_a_gpu_makes_models_that_are_then_cut():
    """The host has the room anyway, or the model is made without values."""
    assert not device_has_room(1, torch.device("cpu"))


HOLLOW = {
    "whole": ("", True),
    "tied": (
        """
        def build_model():
            model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
            model[1].weight = model[0].weight
            return model
        """,
        False,
    ),
    "no_reset": (
        """
        class Scale(nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = nn.Parameter(torch.ones(3))

        def build_model():
            return nn.Sequential(nn.Linear(16, 3), Scale())
        """,
        False,
    ),
}


@pytest.mark.parametrize("case", HOLLOW)
def test_only_models_that_can_be_filled_again_are_built_without_values(case, write_workload):
    """Otherwise parameters would be left as whatever the memory held."""
    extra, fillable = HOLLOW[case]
    workload = load_workload(write_workload(extra))
    with torch.device("meta"):
        assert can_be_filled(workload.model({})) is fillable


def test_copies_must_fit_into_what_is_free():
    """One byte per rank does; the whole address space does not."""
    assert copies_fit(1, 8)
    assert not copies_fit(2**60, 8)
