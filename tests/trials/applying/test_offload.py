"""Offload: activations and parameters that wait on the host, and that it trains the same."""

import copy

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from autotune.trials.applying import offload
from autotune.trials.workload import load_workload
from tests.trials.applying.sharded_training import COMPILED, SGD, close, train_all
from tests.trials.applying.steps import step_of
from tests.trials.conftest import TINY
from tests.trials.two_ranks import on_two_ranks

DROPPING = """
class Dropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.narrow = nn.Linear(16, 64), nn.Linear(64, 16)
        self.dropout = nn.Dropout(0.2)
    def forward(self, x):
        return x + self.dropout(self.narrow(torch.relu_(self.wide(x))))

def build_model():
    return nn.Sequential(*[Dropping() for _ in range(5)], nn.Linear(16, 3))
"""
CASES = {
    "eager": {},
    "bf16": {"precision": "bf16"},
    "checkpointed": {"activation_checkpointing": "every-2"},
    "compiled": {"compile_mode": "default", "compile_scope": "block"},
}


@pytest.fixture
def moved(monkeypatch):
    """Move tensors of any size, and return the shapes of those that were."""
    shapes = []

    class Noted(offload._Copy):
        def __init__(self, tensor, stream):
            shapes.append(tuple(tensor.shape))
            super().__init__(tensor, stream)

    monkeypatch.setattr(offload, "LEAST_BYTES", 0)
    monkeypatch.setattr(offload, "_Copy", Noted)
    return shapes


@pytest.fixture
def no_group():
    """End the process group that a test began."""
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def trained(path, values, steps=3):
    """Return the losses of some steps, and the parameters after them."""
    torch._dynamo.reset()
    with step_of(path, values) as step:
        batches = iter(step.loader)
        losses = [step(next(batches)).item() for _ in range(steps)]
        whole = [p.full_tensor() if isinstance(p, DTensor) else p for p in step.model.parameters()]
        return losses, [p.detach().clone() for p in whole]


def is_same(one, other):
    return one[0] == other[0] and all(map(torch.equal, one[1], other[1]))


@pytest.mark.filterwarnings("default")  # inside the compiler, a warning as error is a crash
@pytest.mark.parametrize("case", CASES)
def test_moving_activations_trains_exactly_the_same(case, moved, write_workload):
    """Also where the block drops units at random, and writes to a tensor in place."""
    path = write_workload(DROPPING)
    kept = trained(path, CASES[case])
    assert not moved
    assert is_same(trained(path, {**CASES[case], "activation_offload": "host"}), kept)
    assert moved


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_weights_are_not_moved(precision, moved, write_workload):
    """Nor their casts to 16 bits: these stay on the device whatever the backward pass keeps."""
    values = {"precision": precision, "activation_offload": "host"}
    trained(write_workload(DROPPING), values, steps=1)
    weights = {(64, 16), (16, 64), (64,), (16,)}
    assert weights.isdisjoint(moved)


def test_small_tensors_are_not_moved(moved, monkeypatch, write_workload):
    """A copy of a few bytes takes as long as one of a megabyte."""
    monkeypatch.setattr(offload, "LEAST_BYTES", 4 * 64 * 4)  # the rows of the wide layer, in fp32
    trained(write_workload(DROPPING), {"activation_offload": "host"}, steps=1)
    assert set(moved) == {(4, 64)}


def on_device(saved):
    return [each.on_device is not None for each in saved._copies]


@pytest.mark.usefixtures("moved")
def test_the_device_keeps_the_activations_of_two_blocks(write_workload):
    """Those before are on the host; in the backward pass a block's come back one block early."""
    with step_of(write_workload(DROPPING), {"activation_offload": "host"}) as step:
        x, saved = torch.ones(4, 16, requires_grad=True), []
        for block in step.model[:4]:
            x = block(x)
            saved.append(block._mover.latest())
        first, second, third, fourth = saved
        assert third.block_before is second
        assert not any(on_device(first) + on_device(second))
        assert all(on_device(third) + on_device(fourth))
        third.unpack((third, third._copies[-1]))
        assert all(on_device(second))
        assert not any(on_device(first))


def test_the_last_block_keeps_its_activations(moved, write_workload):
    """The backward pass begins with it."""
    path = write_workload(DROPPING)
    with step_of(path, {"activation_offload": "host"}) as step:
        kinds = [type(module).__name__ for module in step.model]
    assert kinds == ["_Offloaded"] * 4 + ["Dropping", "Linear"]


def test_names_in_the_state_dict_stay(write_workload):
    """Also of a block that is checkpointed inside; and a copy of the model trains by itself."""
    path = write_workload(DROPPING)
    plain = load_workload(path).build_model().state_dict().keys()
    values = {"activation_offload": "host", "activation_checkpointing": "full"}
    model = step_of(path, values).model
    assert model.state_dict().keys() == plain
    copied = copy.deepcopy(model)
    assert copied[0]._mover is copied[1]._mover
    assert copied[0]._mover is not model[0]._mover
    copied(torch.ones(2, 16)).sum().backward()


def test_a_second_backward_pass_gets_the_same_activations(moved, write_workload):
    """As with `retain_graph`: what was brought back once is brought back again."""
    with step_of(write_workload(DROPPING), {"activation_offload": "host"}) as step:
        loss = step.loss(next(iter(step.loader)))
        loss.backward(retain_graph=True)
        once = [p.grad.clone() for p in step.model.parameters()]
        loss.backward()
        for first, both in zip(once, step.model.parameters(), strict=True):
            assert torch.allclose(2 * first, both.grad)


PARAMETERS = {"eager": {}, "compiled": {"compile_mode": "default", "compile_scope": "block"}}


@pytest.mark.usefixtures("no_group")
@pytest.mark.filterwarnings("default")  # inside the compiler, a warning as error is a crash
@pytest.mark.parametrize("case", PARAMETERS)
def test_parameters_on_the_host_train_the_same_on_one_device(case, write_workload):
    """FSDP moves them, in a group of this process alone."""
    path = write_workload()
    kept = trained(path, PARAMETERS[case])
    offloaded = trained(path, {**PARAMETERS[case], "parameter_offload": "host"})
    assert offloaded[0] == pytest.approx(kept[0], rel=1e-6)
    assert all(torch.allclose(a, b) for a, b in zip(offloaded[1], kept[1], strict=True))
    assert dist.get_world_size() == 1


@pytest.mark.usefixtures("no_group")
def test_offloaded_parameters_pass_the_numerics_check(write_workload, run_plan):
    """Which loads the same weights into both plans."""
    values = {"parameter_offload": "host", "precision": "bf16"}
    result = run_plan(write_workload(), values, compare_with={"batch_size": 4})
    assert result.numerics is not None
    assert result.numerics.passed


SHARDED = {
    f"{sharding}-{name}": {"sharding": sharding, "parameter_offload": "host", **values}
    for sharding in ("fsdp_zero2", "fsdp_zero3")
    for name, values in {"eager": {}, "compiled": COMPILED}.items()
}


def test_parameters_of_several_ranks_may_be_on_the_host_too(write_workload):
    """Each rank has its part there; the training is that of one device."""
    path = write_workload(TINY + SGD)
    (alone, together), _ = on_two_ranks(train_all, path, SHARDED)
    losses, parameters, _ = alone[1]
    for case in SHARDED:
        assert together[case][0] == pytest.approx(losses, rel=1e-5)
        assert close(together[case][1], parameters, 1e-5)


@pytest.mark.usefixtures("no_group")
def test_one_rank_has_a_group_only_where_parameters_are_moved(write_workload):
    """A script that asks whether it trains with others gets its usual answer otherwise."""
    with step_of(write_workload(), {"activation_offload": "host"}):
        assert not dist.is_initialized()
