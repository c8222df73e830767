"""A training that is resumed from a checkpoint keeps its plan."""

import copy

import pytest
import torch

from autotune.errors import UsageError
from autotune.search_space.plan import Plan
from autotune.trials.applying.apply import build_step
from autotune.trials.workload import load_workload
from tests.trials.applying.steps import CPU, step_of
from tests.trials.two_ranks import met, on_two_ranks

FUSED = """
def build_optimizer(params):
    return torch.optim.AdamW(params, lr=0.01, fused=True)
"""


def saved(path, values, file):
    """Train two steps under a plan, and save a checkpoint as users do."""
    with step_of(path, values) as step:
        for _, batch in zip(range(2), step.loader, strict=False):
            step(batch)
        torch.save(
            {"model": step.model.state_dict(), "optimizer": step.optimizer.state_dict()}, file
        )
    return torch.load(file)


@pytest.mark.parametrize("before", ["default", "foreach", "fused"])
@pytest.mark.parametrize("impl", ["default", "foreach", "fused"])
def test_a_resumed_training_keeps_the_implementation_of_its_plan(
    before, impl, write_workload, tmp_path
):
    """What torch would load are the flags of the checkpoint, which was made without the plan."""
    path = write_workload()
    checkpoint = saved(path, {"optimizer_impl": before}, tmp_path / "checkpoint.pt")
    with step_of(path, {"optimizer_impl": impl}) as step:
        (group,) = step.optimizer.param_groups
        flags = group["foreach"], group["fused"]
        step.optimizer.load_state_dict(checkpoint["optimizer"])
        (group,) = step.optimizer.param_groups
        assert (group["foreach"], group["fused"]) == flags
        step(next(iter(step.loader)))
        assert {int(state["step"]) for state in step.optimizer.state.values()} == {3}


def test_default_is_the_implementation_of_the_users(write_workload, tmp_path):
    """A plan that leaves the user's fused optimizer as it is resumes fused, too."""
    path = write_workload(FUSED)
    checkpoint = saved(path, {"optimizer_impl": "foreach"}, tmp_path / "checkpoint.pt")
    with step_of(path, {"optimizer_impl": "default"}) as step:
        step.optimizer.load_state_dict(checkpoint["optimizer"])
        assert step.optimizer.param_groups[0]["fused"]


def test_a_plan_without_the_knob_leaves_loading_to_torch(write_workload, tmp_path):
    """The user's optimizer is used as it is."""
    path = write_workload()
    checkpoint = saved(path, {"optimizer_impl": "fused"}, tmp_path / "checkpoint.pt")
    with step_of(path) as step:
        step.optimizer.load_state_dict(checkpoint["optimizer"])
        assert step.optimizer.param_groups[0]["fused"]


def test_settings_that_belong_to_the_training_come_from_the_checkpoint(write_workload, tmp_path):
    """Such as a learning rate in the middle of its schedule; the dict itself stays as it was."""
    path = write_workload()
    checkpoint = saved(path, {}, tmp_path / "checkpoint.pt")
    checkpoint["optimizer"]["param_groups"][0]["lr"] = 0.125
    before = copy.deepcopy(checkpoint["optimizer"]["param_groups"])
    with step_of(path, {"optimizer_impl": "fused"}) as step:
        step.optimizer.load_state_dict(checkpoint["optimizer"])
        assert step.optimizer.param_groups[0]["lr"] == 0.125
    assert checkpoint["optimizer"]["param_groups"] == before


def test_a_checkpoint_of_other_groups_is_refused_by_torch(write_workload):
    """With torch's own message."""
    step = step_of(write_workload(), {"optimizer_impl": "fused"})
    with pytest.raises(ValueError, match="different number of parameter groups"):
        step.optimizer.load_state_dict({"state": {}, "param_groups": []})


def _resumed(place, path):
    """Train, save and resume; give the flags, and whether it trained as if uninterrupted."""
    ranks = met(place)
    plan = Plan.of({"batch_size": 4, "sharding": "zero1", "optimizer_impl": "fused"})
    with build_step(load_workload(path), plan, CPU, 0, ranks) as step:
        batches = [batch for _, batch in zip(range(4), step.loader, strict=False)]
        for batch in batches[:2]:
            step(batch)
        step.optimizer.consolidate_state_dict(to=0)
        held = [copy.deepcopy(step.optimizer.state_dict()) if place.rank == 0 else None]
        torch.distributed.broadcast_object_list(held, src=0)
        model = copy.deepcopy(step.model.state_dict())
        for batch in batches[2:]:
            step(batch)
        uninterrupted = [p.detach().clone() for p in step.model.parameters()]
    (checkpoint,) = held
    for group in checkpoint["param_groups"]:
        group.update(fused=None, foreach=None)
    with build_step(load_workload(path), plan, CPU, 0, ranks) as step:
        step.model.load_state_dict(model)
        step.optimizer.load_state_dict(checkpoint)
        groups = [*step.optimizer.param_groups, *step.optimizer.optim.param_groups]
        for batch in batches[2:]:
            step(batch)
        same = all(map(torch.equal, step.model.parameters(), uninterrupted))
    whole = all(state is not None for state in checkpoint["state"].values())
    return {group["fused"] for group in groups}, same, whole


def test_a_part_of_zero1_keeps_the_implementation(write_workload):
    """On each rank, in both optimizers that torch makes; training goes on as if uninterrupted."""
    for fused, same, whole in on_two_ranks(_resumed, write_workload()):
        assert fused == {True}
        assert same
        assert whole


FP16 = {"precision": "fp16"}


def losses(step, batches):
    return [float(step(batch)) for batch in batches]


def test_fp16_goes_on_with_its_scale(write_workload, tmp_path):
    """A resumed training has the losses of one that was not interrupted, bit for bit.

    With a fresh scaler its first steps would overflow and be left out.
    """
    path, file = write_workload(), tmp_path / "checkpoint.pt"
    with step_of(path, FP16) as step:
        batches = [batch for _, batch in zip(range(12), step.loader, strict=False)]
        losses(step, batches[:6])
        parts = {"model": step.model, "optimizer": step.optimizer, "step": step}
        torch.save({name: part.state_dict() for name, part in parts.items()}, file)
        scale = step.state_dict()["scaler"]["scale"]
        expected = losses(step, batches[6:])
    checkpoint = torch.load(file)
    with step_of(path, FP16) as step:
        assert step.state_dict()["scaler"]["scale"] != scale
        step.model.load_state_dict(checkpoint["model"])
        step.optimizer.load_state_dict(checkpoint["optimizer"])
        step.load_state_dict(checkpoint["step"])
        assert losses(step, batches[6:]) == expected


def test_a_step_without_a_scaler_has_nothing_to_keep(write_workload):
    """What another precision kept is left out, and fp16 begins anew where nothing was kept."""
    path = write_workload()
    with step_of(path, FP16) as scaled, step_of(path) as plain:
        assert plain.state_dict() == {}
        plain.load_state_dict(scaled.state_dict())
        before = scaled.state_dict()
        scaled.load_state_dict(plain.state_dict())
        assert scaled.state_dict() == before


def test_a_state_of_something_else_is_refused(write_workload):
    """Such as the model's, given by mistake."""
    step = step_of(write_workload(), FP16)
    with pytest.raises(UsageError, match="is nothing that a step keeps"):
        step.load_state_dict(step.model.state_dict())
