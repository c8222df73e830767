"""Precision: bf16, fp16 and tf32 compute as they say, and leave the user's own settings alone."""

import math

import pytest
import torch
from torch import nn

from autotune.trials.result import Outcome
from tests.trials.applying.steps import step_of


def test_gradients_are_clipped_as_they_are_and_not_as_fp16_scales_them(write_workload):
    """By `step.clip`, which returns the norm before."""
    path = write_workload()
    norms = []
    for precision in ("fp32", "fp16"):
        with step_of(path, {"precision": precision}) as step:
            batch, norm = step.move(next(iter(step.loader))), math.inf
            while not math.isfinite(
                norm
            ):  # the first scales are too large, and such steps skipped
                step.backward(step.loss(batch))
                norm = float(step.clip(1e-3))
                left = [p.grad.clone() for p in step.model.parameters()]
                step.update()
            assert float(nn.utils.get_total_norm(left)) == pytest.approx(1e-3, rel=0.01)
            norms.append(norm)
    assert norms[1] == pytest.approx(norms[0], rel=0.02)


def test_bf16_computes_in_bf16(write_workload):
    """The forward pass autocasts; parameters stay in fp32."""
    step = step_of(write_workload(), {"precision": "bf16"})
    with step.autocast():
        assert step.model(torch.randn(2, 16)).dtype is torch.bfloat16
    assert all(p.dtype is torch.float32 for p in step.model.parameters())


def test_settings_of_torch_2_9_are_left_alone(write_workload, run_plan):
    """They do not mix with the older ones; only a plan that says tf32 changes them."""
    matmul = torch.backends.cuda.matmul
    path = write_workload("torch.backends.cuda.matmul.fp32_precision = 'ieee'")
    try:
        assert run_plan(path).outcome is Outcome.OK
        with step_of(path, {"precision": "tf32"}):
            assert matmul.fp32_precision == "tf32"
        assert matmul.fp32_precision == "ieee"
    finally:
        matmul.fp32_precision = "none"
