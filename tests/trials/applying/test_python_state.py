"""What a step changes in Python is seen, wherever user code keeps it, and nothing else is."""

import collections
import random
import types

import numpy as np
import pytest
import torch

from autotune.trials.applying.python_state import check_unchanged, python_state
from autotune.trials.failure import InvalidPlanError
from tests.trials.replayed_on_cpu import on_a_device


class Plain(torch.nn.Linear):
    """Scales by a number that it never changes, and normalises in place."""

    def __init__(self):
        super().__init__(3, 3)
        self.scale, self.nothing = 2.0, float("nan")
        self.norm = torch.nn.BatchNorm1d(3)
        self.sizes = {"in": [3], "array": np.ones(2), "nan": float("nan")}

    def forward(self, x):
        return self.norm(super().forward(x)) * self.scale


class Doing(Plain):
    """Does something more in each step."""

    counted = 0

    def __init__(self, do):
        super().__init__()
        self.do, self.calls, self.log = do, 0, collections.deque(maxlen=3)
        self.mixed = {"buffer": torch.ones(2), "calls": 0, 7: [0]}
        self.helper, self.array = types.SimpleNamespace(calls=0), np.zeros(2)
        self.generator, self.numpys = torch.Generator(), np.random.default_rng(0)
        self.register_buffer("mean", torch.zeros(1))

    def forward(self, x):
        self.do(self)
        return super().forward(x)


def _changes_class(model):
    Doing.counted += 1


def _moves_mean(model):
    model.mean = model.mean * 0.9


def _counts_in_mixed(model):
    model.mixed["calls"] += 1


def _counts_deeper(model):
    model.mixed[7][0] += 1


def _counts_in_helper(model):
    model.helper.calls += 1


def _counts(model):
    model.calls += 1


def _swaps_memory(model):
    model.weight.data = model.weight.data.clone()


CHANGES = {
    "calls of Doing.*from 1 to 2": _counts,
    "log of Doing": lambda model: model.log.append(len(model.log)),
    "calls of mixed of Doing": _counts_in_mixed,
    "0 of 7 of mixed of Doing": _counts_deeper,
    "calls of helper of Doing": _counts_in_helper,
    "array of Doing": lambda model: model.array.__iadd__(1),
    "counted of Doing": _changes_class,
    "mean of _buffers of Doing": _moves_mean,
    "weight of _parameters of Doing": _swaps_memory,
    "changes random": lambda model: random.random(),
    "torch's generator on the CPU": lambda model: torch.rand(1),
    "changes numpy.random": lambda model: np.random.rand(),  # noqa: NPY002  users do
    "generator of Doing": lambda model: torch.rand(1, generator=model.generator),
    "numpys of Doing": lambda model: model.numpys.random(),
}


def plain_loss(model, batch):
    """A loss that remembers nothing."""
    return model(batch).sum()


STEPS = 0


def counting_loss(model, batch):
    """A loss that counts in its own file."""
    global STEPS  # noqa: PLW0603  what is tested
    STEPS += 1
    return plain_loss(model, batch)


def closure():
    """A loss that counts in a variable around it."""
    count = 0

    def loss(model, batch):
        nonlocal count
        count += 1
        return plain_loss(model, batch)

    return loss


class CountingAdam(torch.optim.AdamW):
    """Keeps the number of its steps as a number."""

    t = 0

    def step(self, closure=None):
        self.t += 1
        return super().step(closure)


def with_counting_hook():
    """A model whose hook counts in a variable around it."""
    model, count = Plain(), 0

    def hook(*_):
        nonlocal count
        count += 1

    model.register_forward_hook(hook)
    return model


def watch(model, compute_loss=plain_loss, kind=torch.optim.AdamW, between=lambda optimizer: None):
    """Check a third step."""
    model = torch.nn.Sequential(model)
    optimizer = kind(model.parameters(), foreach=True)

    def step():
        compute_loss(model, torch.ones(2, 3)).backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    before = python_state(model, optimizer, compute_loss)
    step()
    between(optimizer)
    check_unchanged(before, python_state(model, optimizer, compute_loss))


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_model_changes_is_seen(change, monkeypatch):
    """Numbers, containers, objects, classes, tensors that take the place of others, randomness."""
    on_a_device(monkeypatch)
    with pytest.raises(InvalidPlanError, match=change):
        watch(Doing(CHANGES[change]))


@pytest.mark.parametrize(
    ("change", "changed"),
    [
        ("STEPS of .*test_python_state", {"compute_loss": counting_loss}),
        ("a variable around compute_loss", {"compute_loss": closure()}),
        ("t of the optimizer", {"kind": CountingAdam}),
        ("a variable around", {"model": with_counting_hook()}),
    ],
)
def test_what_the_loss_the_optimizer_or_a_hook_changes_is_seen(change, changed, monkeypatch):
    """Also in the file of the loss, and in variables around functions."""
    on_a_device(monkeypatch)
    with pytest.raises(InvalidPlanError, match=change):
        watch(**{"model": Plain(), **changed})


def test_a_tensor_on_the_cpu_may_not_be_written_to():
    """A recorded step runs on the device."""
    with pytest.raises(InvalidPlanError, match="weight of _parameters"):
        watch(Plain())


def test_a_setting_of_the_optimizer_is_seen(monkeypatch):
    """A weight decay that a step changes."""
    on_a_device(monkeypatch)

    def decay(optimizer):
        optimizer.param_groups[0]["weight_decay"] *= 2

    with pytest.raises(InvalidPlanError, match=r"weight_decay of .*optimizer.*0\.01 to 0\.02"):
        watch(Plain(), between=decay)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_step_of_tensors_on_a_device_may_be_recorded(monkeypatch, compiled):
    """Batch norm and optimizer write to them in place; numbers are only read, NaN among them."""
    on_a_device(monkeypatch)
    model = Plain()
    if compiled:
        model.forward = torch.compile(model.forward, backend="aot_eager")
    watch(model)
