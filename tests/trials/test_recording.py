"""What a recorded step needs of a batch and of an optimizer; recording itself needs a GPU."""

import random

import numpy as np
import pytest
import torch

from autotune.search_space.plan import Plan
from autotune.trials.apply import build_optimizer, recordable
from autotune.trials.failure import InvalidPlanError
from autotune.trials.python_state import check_unchanged, python_state
from autotune.trials.recording import alike, check_tensors
from autotune.trials.workload import load_workload

PARAMETERS = [torch.nn.Parameter(torch.zeros(2))]
BATCH = {"x": torch.zeros(4, 3), "y": (torch.zeros(4, dtype=torch.int64),)}


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ({"x": torch.ones(4, 3), "y": (torch.ones(4, dtype=torch.int64),)}, True),
        ({"x": torch.ones(2, 3), "y": (torch.ones(2, dtype=torch.int64),)}, False),
        ({"x": torch.ones(4, 3), "y": (torch.ones(4),)}, False),
        ({"x": torch.ones(4, 3)}, False),
        ({"x": torch.ones(4, 3), "y": (4,)}, False),
    ],
)
def test_only_a_batch_like_the_recorded_one_is_replayed(other, expected):
    """The graph reads fixed places of fixed sizes."""
    assert alike(other, BATCH) is expected


def test_a_batch_of_more_than_tensors_is_not_recorded():
    """A number would stay what it was in the recorded step."""
    check_tensors(BATCH)
    with pytest.raises(InvalidPlanError, match="type float"):
        check_tensors({**BATCH, "temperature": 0.5})


@pytest.mark.filterwarnings("ignore:Detected call of .lr_scheduler")  # no GPU to step it on
def test_a_recordable_optimizer_is_the_users_with_its_rate_as_a_tensor():
    """What a scheduler sets reaches the graph; each group keeps its own settings."""
    groups = [
        {"params": [PARAMETERS[0]], "lr": 0.25},
        {"params": [torch.nn.Parameter(torch.ones(3))], "weight_decay": 0.5},
    ]
    mine = torch.optim.AdamW(groups, lr=0.125, betas=(0.8, 0.9), fused=True)
    got = recordable(mine)
    assert type(got) is torch.optim.AdamW
    assert [group["lr"].item() for group in got.param_groups] == [0.25, 0.125]
    assert [group["weight_decay"] for group in got.param_groups] == [0.01, 0.5]
    assert all(group["capturable"] and group["fused"] for group in got.param_groups)
    assert all(group["betas"] == (0.8, 0.9) for group in got.param_groups)
    rate = got.param_groups[0]["lr"]
    torch.optim.lr_scheduler.StepLR(got, step_size=1, gamma=0.5).step()
    assert got.param_groups[0]["lr"] is rate
    assert rate.item() == 0.125


def test_an_optimizer_that_cannot_be_recorded_is_refused():
    """SGD keeps its rate as a number."""
    with pytest.raises(InvalidPlanError, match="SGD does not take capturable"):
        recordable(torch.optim.SGD(PARAMETERS, lr=0.1))


def test_a_plan_with_a_recorded_step_gets_such_an_optimizer(write_workload):
    """Beside the implementation that the plan names."""
    workload = load_workload(write_workload())
    plan = Plan.of({"batch_size": 4, "cuda_graph": "step", "optimizer_impl": "foreach"})
    (group,) = build_optimizer(workload, plan, workload.model({})).param_groups
    assert (group["capturable"], group["foreach"]) == (True, True)


class Plain(torch.nn.Linear):
    """Scales by a number that it never changes."""

    scale, nothing = 2.0, float("nan")

    def __init__(self):
        super().__init__(3, 3)
        self.sizes = {"in": [3], "nan": float("nan")}

    def forward(self, x):
        return super().forward(x) * self.scale


class Counting(Plain):
    """Counts its steps, as a schedule in the model does."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x)


class Remembering(Plain):
    """Keeps a list of what it saw."""

    def forward(self, x):
        self.sizes["in"].append(len(x))
        return super().forward(x)


class Dropping(Plain):
    """Leaves itself out at random, as stochastic depth does."""

    def __init__(self, draw):
        super().__init__()
        self.draw = draw

    def forward(self, x):
        return super().forward(x) * (self.draw() < 0.5)


STEPS = 0


def counted_loss(model, batch):
    """A loss that counts in its own file."""
    global STEPS  # noqa: PLW0603  what is tested
    STEPS += 1
    return model(batch).sum()


def plain_loss(model, batch):
    """A loss that remembers nothing."""
    return model(batch).sum()


CHANGES = {
    "calls of Counting.*from 1 to 2": (Counting, plain_loss),
    "sizes of Remembering": (Remembering, plain_loss),
    "changes random": (lambda: Dropping(random.random), plain_loss),
    "torch's generator on the CPU": (lambda: Dropping(lambda: torch.rand(1).item()), plain_loss),
    "changes numpy.random": (lambda: Dropping(np.random.rand), plain_loss),
    "STEPS of .*test_recording": (Plain, counted_loss),
}


def _watched_step(build, compute_loss, between=lambda optimizer: None):
    model = torch.nn.Sequential(build())
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        compute_loss(model, torch.ones(2, 3)).backward()
        optimizer.step()

    step()
    before = python_state(model, optimizer, compute_loss)
    step()
    between(optimizer)
    check_unchanged(before, python_state(model, optimizer, compute_loss))


@pytest.mark.parametrize("change", CHANGES)
def test_a_step_that_python_remembers_is_not_recorded(change):
    """No Python runs in a replay: a counter would stand still, a random number would repeat."""
    with pytest.raises(InvalidPlanError, match=change):
        _watched_step(*CHANGES[change])


def test_a_step_that_sets_the_optimizers_numbers_is_not_recorded():
    """A learning rate is a tensor there, and may change; a weight decay may not."""

    def decay(optimizer):
        optimizer.param_groups[0]["weight_decay"] *= 2

    with pytest.raises(InvalidPlanError, match=r"weight_decay of the optimizer.*0\.01 to 0\.02"):
        _watched_step(Plain, plain_loss, decay)


def test_a_step_of_tensors_only_may_be_recorded():
    """Also where Python holds numbers that never change, NaN among them."""
    _watched_step(Plain, plain_loss)
