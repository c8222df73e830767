"""What a recorded step needs of a batch and of an optimizer; recording itself needs a GPU."""

import pytest
import torch

from autotune.search_space.plan import Plan
from autotune.trials.apply import build_optimizer, recordable
from autotune.trials.failure import InvalidPlanError
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
