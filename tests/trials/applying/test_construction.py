"""Where models are made: on their device, on the CPU, or without values."""

import pytest
import torch

from autotune.search_space.plan import Plan
from autotune.trials.applying.construction import (
    can_be_filled,
    construct_for_sharding,
    construct_on_device,
    copies_fit,
    device_has_room,
    materialise,
)
from autotune.trials.failure import InvalidPlanError
from autotune.trials.process_group import ALONE
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
    model = construct_on_device(load_workload(write_workload(source)), Plan.of({}), ELSEWHERE)
    assert model.made_on == made_on
    assert {p.device.type for p in model.parameters()} == {"meta"}


def test_a_second_attempt_draws_the_same_numbers(write_workload):
    """What the first one drew does not shift them."""
    workload = load_workload(write_workload())
    torch.manual_seed(3)
    first = construct_on_device(workload, Plan.of({}), torch.device("cpu"))
    torch.rand(100)
    second = construct_on_device(workload, Plan.of({}), torch.device("cpu"))
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_an_error_of_the_users_own_is_told_as_on_the_cpu(write_workload):
    """It is not taken for code that cannot work on a device."""
    path = write_workload("def build_model(): raise ValueError('no such size')")
    with pytest.raises(ValueError, match="no such size"):
        construct_on_device(load_workload(path), Plan.of({}), ELSEWHERE)


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
    "loose": (
        """
        class Rotated(nn.Linear):
            def __init__(self):
                super().__init__(16, 3)
                self.tables = {"angles": [torch.linspace(0, 1, 16)]}

        def build_model():
            return nn.Sequential(Rotated())
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


MASKED = """
class Masked(nn.Linear):
    def __init__(self):
        super().__init__(16, 3)
        self.register_buffer("mask", torch.ones(3, dtype=KIND))
        self.filled = False

    def reset_parameters(self):
        super().reset_parameters()
        if FILLS and hasattr(self, "mask"):
            self.mask = torch.full_like(self.mask, 2)

def build_model():
    return nn.Sequential(nn.Linear(16, 16), Masked())
"""


def test_a_tensor_that_reset_parameters_forgets_is_refused(write_workload):
    """It would be whatever the memory held, and the losses those of another model."""
    for kind, fills, refused in (
        ("torch.float32", False, True),
        ("torch.float32", True, False),
        ("torch.bool", True, True),
    ):
        path = write_workload(MASKED.replace("KIND", kind).replace("FILLS", str(fills)))
        with torch.device("meta"):
            model = load_workload(path).model({})
        if refused:
            with pytest.raises(
                InvalidPlanError, match=r"Masked.reset_parameters\(\) gives mask no"
            ):
                materialise(model, "cpu")
        else:
            materialise(model, "cpu")
            assert model[1].mask.tolist() == [2.0] * 3


def test_what_is_cached_of_a_model_without_values_is_forgotten(write_workload):
    """The model that is built next would hold it."""
    path = write_workload(
        """
        import functools

        @functools.lru_cache
        def table(size):
            return torch.arange(float(size))

        def build_model():
            model = nn.Linear(16, 3)
            model.register_buffer("table", table(3))
            return model
        """
    )
    model = construct_for_sharding(load_workload(path), Plan.of({}), torch.device("cpu"), ALONE)
    assert model.table.tolist() == [0.0, 1.0, 2.0]


def test_copies_must_fit_into_what_is_free():
    """One byte per rank does; the whole address space does not."""
    assert copies_fit(1, 8)
    assert not copies_fit(2**60, 8)
