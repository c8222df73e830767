"""Each knob does what it says, and exact ones change no number."""

import gc

import pytest
import torch
from torch import nn

from autotune.trials.applying.optimizer import with_implementation
from autotune.trials.failure import InvalidPlanError
from tests.trials.applying.steps import step_of


def parameters_after(path, values, steps=4):
    with step_of(path, values) as step:
        batches = iter(step.loader)
        for _ in range(steps):
            step(next(batches))
        return [p.detach().clone() for p in step.model.parameters()]


EXACT = {
    "workers": {"workers": 2, "prefetch": 4},
    "full": {"activation_checkpointing": "full"},
    "every-2": {"activation_checkpointing": "every-2"},
    "selective": {"activation_checkpointing": "selective"},
}


@pytest.mark.parametrize("case", EXACT)
def test_exact_knobs_train_to_the_same_parameters(case, write_workload):
    """Bit for bit on a CPU: they only move work and memory."""
    path = write_workload()
    expected, got = parameters_after(path, {}), parameters_after(path, EXACT[case])
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))


def test_an_optimizer_may_clear_gradients_in_its_own_way(write_workload):
    """Without the argument that torch's own take."""
    path = write_workload(
        """
        class Own(torch.optim.SGD):
            def zero_grad(self):
                super().zero_grad()

        def build_optimizer(params):
            return Own(params, lr=0.1)
        """
    )
    with step_of(path, {}) as step:
        step(next(iter(step.loader)))
        assert all(parameter.grad is None for parameter in step.model.parameters())


def test_accumulation_equals_the_large_batch(write_workload):
    """Two micro-steps of two samples train like one step of four, within rounding."""
    path = write_workload()
    whole = parameters_after(path, {"batch_size": 4}, steps=4)
    parts = parameters_after(path, {"batch_size": 2, "accumulation": 2}, steps=8)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(whole, parts, strict=True))


def test_steps_may_be_closed_in_any_order(write_workload):
    """The loss is torch's own again when none is left that compiles."""
    eager = torch.nn.functional.cross_entropy
    path = write_workload()
    first, second = (step_of(path, {"compile_mode": "default"}) for _ in range(2))
    first.close()
    assert torch.nn.functional.cross_entropy is not eager
    second.close()
    assert torch.nn.functional.cross_entropy is eager


@pytest.mark.parametrize("impl", ["foreach", "fused"])
def test_the_optimizer_keeps_class_and_arguments(impl, write_workload):
    """Only the implementation changes: learning rates per group and betas stay."""
    path = write_workload(
        """
        def build_optimizer(params):
            first, *rest = params
            groups = [{"params": [first], "lr": 0.5}, {"params": rest}]
            return torch.optim.AdamW(groups, lr=0.25, betas=(0.8, 0.9), weight_decay=0.125)
        """
    )
    optimizer = step_of(path, {"optimizer_impl": impl}).optimizer
    assert type(optimizer) is torch.optim.AdamW
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.25]
    assert all(group["betas"] == (0.8, 0.9) for group in optimizer.param_groups)
    assert all(group["weight_decay"] == 0.125 for group in optimizer.param_groups)
    assert all(group[impl] for group in optimizer.param_groups)


def test_an_optimizer_without_the_flag_is_refused():
    """LBFGS has no fused implementation."""
    optimizer = torch.optim.LBFGS(nn.Linear(2, 2).parameters())
    with pytest.raises(InvalidPlanError, match="LBFGS does not take fused=True"):
        with_implementation(optimizer, "fused")


def test_user_knobs_reach_build_model(write_workload):
    """As keyword arguments; the first value is the baseline."""
    path = write_workload(
        """
        KNOBS = {"width": [16, 32]}

        def build_model(width):
            return nn.Sequential(nn.Linear(16, width), nn.Linear(width, 3))
        """
    )
    assert step_of(path, {"width": 32}).model[0].out_features == 32


def test_blocks_named_by_the_user_are_wrapped(write_workload, run_plan):
    """`blocks(model)` decides what checkpointing wraps."""
    path = write_workload("def blocks(model): return [model[0], model[2]]")
    model = step_of(path, {"activation_checkpointing": "full"}).model
    wrapped = [type(m).__name__ == "CheckpointWrapper" for m in model]
    assert wrapped == [True, False, True, False, False]


def test_settings_of_the_process_go_back(write_workload):
    """A plan does not outlive its step."""
    threads, matmul = torch.get_num_threads(), torch.get_float32_matmul_precision()
    with step_of(write_workload(), {"threads": threads + 1, "precision": "tf32"}):
        assert torch.get_num_threads() == threads + 1
        assert torch.get_float32_matmul_precision() == "high"
    assert torch.get_num_threads() == threads
    assert torch.get_float32_matmul_precision() == matmul


def test_settings_stay_while_a_part_of_the_step_is_used(write_workload, monkeypatch):
    """A setup function that returns the model and the loader lets go of the step."""
    kept = set()
    monkeypatch.setattr("autotune.trials.applying.apply._open_settings", kept)
    before = torch.get_num_threads()
    step_of(write_workload(), {"threads": before + 1})
    gc.collect()
    assert torch.get_num_threads() == before + 1
    kept.pop().close()
    assert torch.get_num_threads() == before


NOT_TORCHS = {
    "numpy batches": """
        import numpy
        def compute_loss(model, batch):
            x, y = batch
            return nn.functional.cross_entropy(model(x * float(numpy.random.beta(0.4, 0.4))), y)
        """,
    "python's weights": """
        import random
        def build_model():
            model = nn.Linear(16, 3)
            nn.init.constant_(model.weight, random.random())
            return model
        """,
    "changed batches": """
        def compute_loss(model, batch):
            x, y = batch
            return nn.functional.cross_entropy(model(x.mul_(2.0)), y)
        """,
}


@pytest.mark.parametrize("case", NOT_TORCHS)
def test_a_plan_trains_as_itself(case, write_workload, run_plan):
    """Random numbers of others than torch are the same too, and each gets the loader's batches."""
    path = write_workload(NOT_TORCHS[case])
    report = run_plan(path, {}, compare_with={"batch_size": 4}).numerics
    assert report is not None
    assert [found.seen for found in report.deviations] == [0.0] * len(report.deviations)
    assert len(report.deviations) >= 5
