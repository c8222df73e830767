"""`autotune.prepare`: a plan in a loop of the user's own."""

import copy
import gc

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import autotune
from autotune import Plan, PlanError


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        return x + torch.relu(self.inner(x))


@pytest.fixture
def training():
    """A model, an optimizer and a loader, alike each time."""

    def made():
        torch.manual_seed(0)
        model = nn.Sequential(Block(), Block(), nn.Linear(8, 2))
        data = TensorDataset(torch.randn(32, 8), torch.arange(32) % 2)
        order = torch.Generator().manual_seed(0)
        loader = DataLoader(data, batch_size=8, shuffle=True, generator=order)
        return model, torch.optim.AdamW(model.parameters(), lr=1e-2), loader

    return made


def train(model, optimizer, loader, epochs=2):
    """A loop with what loops have; return the losses."""
    average, losses = copy.deepcopy(model), []
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)
    for _ in range(epochs):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            with torch.no_grad():
                for kept, new in zip(average.parameters(), model.parameters(), strict=True):
                    kept.lerp_(new, 0.1)
        scheduler.step()
    return losses


def test_exact_settings_leave_the_training_as_it_is(training):
    expected = train(*training())
    plan = Plan.of({"activation_checkpointing": "full", "workers": 1, "prefetch": 4})
    model, optimizer, loader = autotune.prepare(*training(), plan=plan)
    assert train(model, optimizer, loader) == expected
    assert (loader.num_workers, loader.prefetch_factor) == (1, 4)
    assert type(model[0]).__name__ == "CheckpointWrapper"
    assert [*model.state_dict()] == [*training()[0].state_dict()]


def test_loop_gets_fp32_of_a_model_in_16_bits(training):
    model, optimizer, loader = autotune.prepare(*training(), plan=Plan.of({"precision": "bf16"}))
    inside = []
    model[2].register_forward_hook(lambda module, given, output: inside.append(output.dtype))
    assert model(torch.ones(1, 8)).dtype == torch.float32
    assert inside == [torch.bfloat16]
    losses = train(model, optimizer, loader)
    assert losses == pytest.approx(train(*training()), rel=0.05)
    assert losses != train(*training())


def test_settings_of_the_process_stay_when_prepare_has_returned(training):
    """Threads, TF32 and the like would go with the last reference to them."""
    other = 1 if torch.get_num_threads() > 1 else 2
    kept = autotune.prepare(*training(), plan=Plan.of({"threads": other}))
    gc.collect()
    assert torch.get_num_threads() == other
    del kept


def test_optimizer_and_batch_are_the_plans(training):
    parts = training()
    plan = Plan.of({"optimizer_impl": "fused", "batch_size": 16})
    _, optimizer, loader = autotune.prepare(*parts, plan=plan)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)
    assert optimizer.param_groups[0]["fused"] is True
    assert [len(x) for x, _ in loader] == [16, 16]
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(1e-3)


@pytest.mark.parametrize(
    "values", [{"precision": "fp16"}, {"sharding": "zero1"}, {"cuda_graph": "step"}]
)
def test_what_a_loop_must_know_of_is_refused(training, values):
    with pytest.raises(PlanError, match=r"autotune\.apply"):
        autotune.prepare(*training(), plan=Plan.of(values))
