"""DDP with parameters that the loss leaves out, in all steps or in some."""

import itertools

import pytest
import torch

from autotune.search_space.plan import Plan
from autotune.trials.applying.apply import build_step
from autotune.trials.failure import InvalidPlanError
from autotune.trials.workload import load_workload
from tests.trials.applying.sharded_training import (
    SGD,
    close,
    train,
    train_all,
)
from tests.trials.conftest import TINY
from tests.trials.two_ranks import met, on_two_ranks

SPARE = """
class WithSpare(Normed):
    def __init__(self):
        super().__init__()
        self.spare = nn.Linear(16, 3)

def build_model():
    return WithSpare()

def build_optimizer(params):
    return torch.optim.SGD(params, lr=0.2, momentum=0.9, weight_decay=0.1)
"""


LEFT_OUT = {
    "ddp": {},
    "ddp-accumulated": {"accumulation": 2},
    "ddp-views": {"gradient_as_bucket_view": True},
    "ddp-small-buckets": {"bucket_mb": 1},
    "ddp-static": {"static_graph": True},
    "ddp-checkpointed": {"activation_checkpointing": "full"},
    "ddp-model-compiled": {"compile_mode": "default"},
    "zero1": {"sharding": "zero1"},
    "fsdp_zero2": {"sharding": "fsdp_zero2"},
    "fsdp_zero3": {"sharding": "fsdp_zero3"},
}


@pytest.fixture(scope="module")
def trained_with_spare(tmp_path_factory):
    """What a model trained to, a part of which has no part in the loss."""
    path = tmp_path_factory.mktemp("spare") / "spare_model.py"
    path.write_text(TINY + SGD + SPARE)
    (answer, other) = on_two_ranks(train_all, path, LEFT_OUT)
    assert answer == other
    return answer


@pytest.mark.parametrize("case", LEFT_OUT)
def test_a_model_may_have_parameters_that_the_loss_leaves_out(case, trained_with_spare):
    """It trains as on one device, where weight decay and momentum do not touch them either."""
    alone, together = trained_with_spare
    losses, parameters, _ = alone[LEFT_OUT[case].get("accumulation", 1)]
    assert together[case][0] == pytest.approx(losses, rel=1e-5)
    assert close(together[case][1], parameters, 1e-5)


BY_RANK = """
import os

def compute_loss(model, batch):
    x, y = batch
    spare = model.spare(x).mean() if os.environ["RANK"] == "1" else 0.0
    return nn.functional.cross_entropy(model(x), y) + spare
"""


REENTRANT = """
from torch.utils.checkpoint import checkpoint

class Again(Normed):
    def forward(self, x):
        x = checkpoint(self.layers, x.requires_grad_(), use_reentrant=True)
        return self.head(self.norm(x))

def build_model():
    return Again()
"""


def _train_together(place, path):
    return train(path, {}, 4, met(place))


def test_what_only_one_rank_leaves_out_is_averaged(tmp_path):
    """All ranks go on alike, and the parameters have moved."""
    path = tmp_path / "by_rank_model.py"
    path.write_text(TINY + SGD + SPARE + BY_RANK)
    one, two = on_two_ranks(_train_together, path)
    assert one == two
    path = tmp_path / "spare_model.py"
    path.write_text(TINY + SGD + SPARE)
    neither, _ = on_two_ranks(_train_together, path)
    assert one[1][-1] != neither[1][-1]  # the bias of the spare part


def test_parameters_inside_reentrant_checkpoints_are_not_left_out(tmp_path):
    """Their gradients come from a graph that the forward pass does not show."""
    path = tmp_path / "reentrant_model.py"
    path.write_text(TINY + SGD + REENTRANT)
    (alone, together), _ = on_two_ranks(train_all, path, {"ddp": {}})
    assert close(together["ddp"][1], alone[1][1], 1e-5)


LATER = """
import os
calls = 0

def compute_loss(model, batch):
    global calls
    calls += 1
    x, y = batch
    spare = model.spare(x).mean() if {uses} else 0.0
    return nn.functional.cross_entropy(model(x), y) + spare
"""


def test_parameters_that_only_the_second_step_leaves_out_are_averaged(tmp_path):
    """As where layers are dropped at random: the first step may have dropped none."""
    path = tmp_path / "later_model.py"
    path.write_text(TINY + SGD + SPARE + LATER.format(uses="calls == 1"))
    one, two = on_two_ranks(_train_together, path)
    assert one == two


def _trained_for_long(place, path):
    plan = Plan.of({"batch_size": 2})
    with build_step(load_workload(path), plan, torch.device("cpu"), 0, met(place)) as step:
        try:
            for batch in itertools.islice(itertools.cycle(step.loader), 15):
                step(batch)
        except (InvalidPlanError, RuntimeError) as error:  # the latter where the other has left
            return str(error)


@pytest.mark.parametrize("which", ["", ' or os.environ["RANK"] == "0"'])
def test_parameters_that_only_later_steps_leave_out_are_refused(which, tmp_path):
    """At once, by the rank that left them out: the other may wait for it."""
    path = tmp_path / "late_model.py"
    path.write_text(TINY + SGD + SPARE + LATER.format(uses=f"calls < 13{which}"))
    _, message = on_two_ranks(_trained_for_long, path, within_s=60.0)
    assert "let compute_loss use the same parameters" in message
