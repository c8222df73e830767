"""Linear layers in fp8: which they are, and that they train, as computed on a CPU."""

import importlib.util

import pytest
import torch

from autotune.trials.failure import InvalidPlanError
from tests.trials.applying.steps import step_of

needs_torchao = pytest.mark.skipif(
    importlib.util.find_spec("torchao") is None, reason="the extra fp8 is not installed"
)
# Inside the compiler and torchao, a warning as error is a crash.
lenient = pytest.mark.filterwarnings("default")
FP8 = {"precision": "fp8", "compile_mode": "default"}
MIXED = """
class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.even, self.odd = nn.Linear(16, 32), nn.Linear(32, 16)
        self.uneven = nn.Linear(16, 24)
        self.back = nn.Linear(24, 16)
    def forward(self, x):
        x = x + self.odd(torch.relu(self.even(x)))
        return x + self.back(self.uneven(x))

def build_model():
    return nn.Sequential(*[Layers() for _ in range(2)], nn.Linear(16, 16))
"""
NO_FIT = """
def build_model():
    return nn.Sequential(nn.Linear(16, 10), nn.ReLU(), nn.Linear(10, 3))
"""


def layers_in_fp8(model):
    return [name for name, m in model.named_modules() if type(m).__name__ == "Float8Linear"]


@needs_torchao
@lenient
def test_layers_whose_sides_fit_are_converted_but_the_last(write_workload):
    """The kernels want multiples of 16, and scores keep the range of 16 bits."""
    with step_of(write_workload(MIXED), FP8) as step:
        assert layers_in_fp8(step.model) == ["0.even", "0.odd", "1.even", "1.odd"]


@needs_torchao
@lenient
@pytest.mark.parametrize("scope", ["model", "block"])
def test_it_trains_within_its_own_rounding(scope, write_workload, run_plan):
    """Judged by what eager fp32 does when its numbers are moved as far as fp8 rounds them."""
    torch._dynamo.reset()
    values = {**FP8, "compile_scope": scope}
    result = run_plan(write_workload(MIXED), values, compare_with={"batch_size": 4})
    assert result.error is None
    assert result.numerics is not None
    assert result.numerics.format == "fp8"
    assert result.numerics.passed


@needs_torchao
@lenient
def test_names_in_the_state_dict_stay(write_workload):
    """Checkpoints written in fp8 load into the plain model: weights are no other than before."""
    path = write_workload(MIXED)
    plain = step_of(path, {}).model.state_dict()
    converted = step_of(path, FP8).model.state_dict()
    assert converted.keys() == plain.keys()
    assert all(torch.equal(plain[name], converted[name]) for name in plain)


@lenient
def test_a_model_without_fitting_layers_is_refused(write_workload):
    """A speed of bf16 must not be stored as that of fp8."""
    with pytest.raises(InvalidPlanError, match="multiples of 16; use precision=bf16"):
        step_of(write_workload(NO_FIT), FP8)


@pytest.mark.skipif(importlib.util.find_spec("torchao") is not None, reason="torchao is there")
def test_without_torchao_it_is_told_how_to_install_it(write_workload):
    """With the name of the extra."""
    with pytest.raises(InvalidPlanError, match=r"pip install 'torch-autotune\[fp8\]'"):
        step_of(write_workload(MIXED), FP8)
