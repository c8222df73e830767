"""FSDP: which models it takes, and what it computes with buffers and half precision."""

import math
import textwrap

import pytest
import torch

from autotune.search_space.plan import Plan
from autotune.trials.applying.apply import build_step
from autotune.trials.applying.blocks import find_blocks, parameter_of_two_parts
from autotune.trials.applying.construction import materialise
from autotune.trials.applying.loader import build_loader
from autotune.trials.applying.ranks import shard
from autotune.trials.failure import InvalidPlanError
from autotune.trials.probing.probe import probe
from autotune.trials.process_group import Ranks
from autotune.trials.workload import load_workload
from tests.search_space.machines import CPU_MACHINE
from tests.trials.applying.sharded_training import (
    COMPILED,
    SGD,
    SHARDINGS,
    close,
    full_value,
    train_all,
)
from tests.trials.conftest import TINY
from tests.trials.two_ranks import met, on_two_ranks


def _hooked(place, path):
    ranks = met(place)
    plan = Plan.of({"batch_size": 4, "sharding": "fsdp_zero3"})
    with pytest.raises(InvalidPlanError) as caught:
        build_step(load_workload(path), plan, torch.device("cpu"), 0, ranks)
    return str(caught.value)


def test_fsdp_refuses_hooks_that_it_would_not_call(write_workload):
    """Such as one that clips gradients; the parts of a parameter have none."""
    path = write_workload(
        """
        def build_model():
            model = nn.Linear(16, 3)
            model.bias.register_hook(lambda gradient: gradient.clamp(-1, 1))
            return model
        """
    )
    assert all("parameter bias has a hook" in message for message in on_two_ranks(_hooked, path))


def _without_values(workload):
    with torch.device("meta"):
        return workload.model({})


def _fill_and_train(place, path):
    ranks = met(place)
    workload, plan = load_workload(path), Plan.of({"batch_size": 4, "sharding": "hsdp"})
    torch.manual_seed(0)
    whole = _without_values(workload)
    for module in (*find_blocks(whole, workload), whole):
        materialise(module, "cpu")
    torch.manual_seed(0)
    hollow = _without_values(workload)
    sharded = shard(hollow, find_blocks(hollow, workload), plan, ranks, "cpu")
    filled = [full_value(p).tolist() for p in hollow.parameters()]
    loss = sharded.loss(
        workload.compute_loss, next(iter(build_loader(workload, plan, 0, Ranks(place=place))))
    )
    loss.backward()
    return filled == [p.tolist() for p in whole.parameters()], *ranks.mean(loss.item())


def test_a_model_without_values_is_filled_block_by_block(workload):
    """Ranks draw the same numbers, so all parts are of one model; and it trains."""
    one, two = on_two_ranks(_fill_and_train, workload)
    assert one == two
    assert one[0]
    assert math.isfinite(one[1])


def test_a_parameter_in_two_parts_is_refused(write_workload):
    """The head's may be the embedding's: both are what is left for the root."""
    shared = """
        def build_model():
            model = Normed()
            model.{one} = model.{other}
            return model
    """
    for one, other, parts in (
        ("head.weight", "layers[0].linear.weight", 2),
        ("layers[1].linear.weight", "layers[0].linear.weight", 2),
        ("norm.bias", "norm.weight", 1),
    ):
        extra = SGD + textwrap.dedent(shared.format(one=one, other=other))
        model = load_workload(write_workload(extra)).model({})
        found = parameter_of_two_parts(model, list(model.layers))
        assert (found is not None) == (parts == 2), found
    both = "layers.0.linear.weight and layers.1.linear.weight are one parameter"
    for part in ("linear", "linear.weight"):
        one, other = f"layers[1].{part}", f"layers[0].{part}"
        path = write_workload(SGD + textwrap.dedent(shared.format(one=one, other=other)))
        assert both in probe(path, CPU_MACHINE, 0).shared_across
    assert all(both in message for message in on_two_ranks(_refused_in_parts, path))


def _refused_in_parts(place, path):
    plan = Plan.of({"batch_size": 4, "sharding": "fsdp_zero3"})
    with pytest.raises(InvalidPlanError) as refused:
        build_step(load_workload(path), plan, torch.device("cpu"), 0, met(place))
    return str(refused.value)


ROTARY = """
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.qkv = nn.Linear(16, 48)
        self.out = nn.Linear(16, 16)
        angles = torch.outer(torch.arange(4.0), 0.1 ** torch.arange(16))
        self.register_buffer("angles", angles, persistent=False)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        q, k = q * self.angles.cos(), k * self.angles.cos()
        return x + self.out(nn.functional.scaled_dot_product_attention(q, k, v))


class Rotary(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 16)
        self.blocks = nn.ModuleList(Attention() for _ in range(3))
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        x = self.first(x.view(-1, 4, 4))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))

def build_model():
    return Rotary()
"""


IN_HALF = {
    f"{sharding}-{name}": {"sharding": sharding, "precision": "bf16", **values}
    for sharding in ("ddp", "fsdp_zero2", "fsdp_zero3")
    for name, values in {
        "eager": {},
        "compiled": COMPILED,
        "checkpointed": {"activation_checkpointing": "full"},
    }.items()
}


def test_buffers_in_fp32_meet_parameters_in_half_precision(write_workload):
    """A table of angles makes queries fp32 again, which attention takes under autocast only."""
    path = write_workload(TINY + SGD + ROTARY)
    (alone, together), _ = on_two_ranks(train_all, path, IN_HALF)
    losses, parameters, _ = alone[1]
    for case in IN_HALF:
        assert together[case][0] == pytest.approx(losses, rel=2e-2)
        assert close(together[case][1], parameters, 2e-2)


CONVOLVED = """
class Convolved(nn.Module):
    def __init__(self):
        super().__init__()
        layers = ([nn.Conv1d(4, 4, 3, padding=1), nn.BatchNorm1d(4), nn.ReLU()] for _ in range(3))
        self.blocks = nn.ModuleList(nn.Sequential(*block) for block in layers)
        self.norm = nn.BatchNorm1d(16)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        x = x.view(-1, 4, 4)
        for block in self.blocks:
            x = x + block(x)
        return self.head(self.norm(x.flatten(1)))

def build_model():
    return Convolved()
"""


def test_norms_that_keep_statistics_train_in_half_precision(write_workload):
    """Their statistics are in fp32, with which parameters in half precision do not go."""
    path = write_workload(TINY + SGD + CONVOLVED)
    (_, together), _ = on_two_ranks(train_all, path, IN_HALF)
    losses, parameters, _ = together["ddp-eager"]
    for case in IN_HALF:
        assert together[case][0] == pytest.approx(losses, rel=2e-2)
        assert close(together[case][1], parameters, 2e-2)


FOLLOWING = """
class Following(Normed):
    def __init__(self):
        super().__init__()
        self.seen = nn.BatchNorm1d(16)
        self.register_buffer("mean", torch.zeros(16))
        self.register_buffer("still", torch.ones(16))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        self.count += 1
        self.mean = 0.5 * self.mean + 0.5 * x.detach().mean(0) * self.still
        return super().forward(self.seen(x + self.mean))

def build_model():
    return Following()
"""


def _buffers_trained(place, path):
    """What the buffers are on this rank at the fourth forward pass, under each sharding."""
    ranks, workload, told = met(place), load_workload(path), {}
    for sharding in SHARDINGS:
        plan = Plan.of({"sharding": sharding, "batch_size": 4})
        with build_step(workload, plan, torch.device("cpu"), 0, ranks) as step:
            batches = iter(step.loader)
            for _ in range(3):
                step(next(batches))
            with torch.no_grad():
                one = step.move(next(batches))
                step.loss((torch.zeros_like(one[0]), one[1]))
            told[sharding] = {name: b.tolist() for name, b in step.model.named_buffers()}
    return told


def test_all_ranks_compute_with_the_same_buffers(write_workload):
    """Each sees other batches; what a model learns of them in buffers is the first rank's."""
    path = write_workload(SGD + textwrap.dedent(FOLLOWING))
    told, of_other = on_two_ranks(_buffers_trained, path)
    for sharding in SHARDINGS:
        for name in ("mean", "count", "seen.running_mean", "seen.running_var"):
            expected = pytest.approx(told["ddp"][name], rel=1e-4, abs=1e-6)
            assert told[sharding][name] == expected
            assert of_other[sharding][name] == expected
