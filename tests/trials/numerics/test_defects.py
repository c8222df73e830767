"""Plans that train something else than eager fp32 fail, and the check says by what.

Each defect is put into the step that is built for the plan; the reference's step is right.
"""

import copy

import pytest
import torch
from torch import nn

from autotune.trials.numerics import check as numerics
from autotune.trials.numerics_report import Part
from tests.trials.numerics import workloads as w

HALF = {"precision": "bf16"}
FOREACH = {"optimizer_impl": "foreach"}
PARTS = {"batch_size": 4, "accumulation": 4}


def backward_of(step, change):
    backward = step.backward
    step.backward = lambda loss: backward(change(loss))


def before_update(step, action):
    update = step.update

    def update_after():
        action()
        update()

    step.update = update_after


def gradients_doubled(step):
    """A scale that is not taken out again."""
    backward_of(step, lambda loss: loss * 2)


def loss_scaled(step):
    """The loss that is shown and trained on is another one."""
    loss = step.loss
    step.loss = lambda batch: loss(batch) * 1.5


def bias_dropped(step):
    """One small gradient never arrives."""
    (*_, bias) = (p for n, p in step.model.named_parameters() if n.endswith("bias"))
    before_update(step, lambda: setattr(bias, "grad", None))


def statistics_twice(step):
    """A block that is run again counts its batch again."""
    for norm in step.model.modules():
        if isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d):
            norm.register_forward_hook(lambda norm, given, out: type(norm).forward(norm, *given))


def in_evaluation(step):
    """Norms use what they remember, and dropout does nothing."""
    step.model.eval()


def weights_stale(step):
    """What was compiled or recorded goes on reading the weights that it saw first."""
    model, first = step.model, []

    def loss(batch):
        if not first:
            first.append(copy.deepcopy(model))
        for parameter in first[0].parameters():
            parameter.grad = None
        with step.autocast():
            return step._compute_loss(first[0], batch)

    def hand_over():
        for stale, own in zip(first[0].parameters(), model.parameters(), strict=True):
            own.grad = stale.grad.clone()

    step.loss = loss
    before_update(step, hand_over)


def batch_stale(step):
    """A graph whose input is not filled again."""
    loss, first = step.loss, []

    def stale(batch):
        first.append(batch)
        return loss(first[0])

    step.loss = stale


def mask_dropped(step):
    """Tokens see what they are to foretell."""
    for block in step.model.blocks:
        block.causal = False


def branch_detached(step):
    """No gradient passes through a part of a block."""
    mlp = step.model.blocks[0].mlp
    forward = mlp.forward
    mlp.forward = lambda x: forward(x.detach())


def divisor_left_out(step):
    """Gradients of micro-batches are added, not averaged."""
    backward_of(step, lambda loss: loss * step.accumulation)


def last_part_left_out(step):
    """The optimizer steps without the gradient of the last micro-batch."""
    backward_of(step, lambda loss: loss * (step._micro_steps + 1 < step.accumulation))


def rate_changed(step):
    """The optimizer was built with another learning rate."""
    for group in step.optimizer.param_groups:
        group["lr"] *= 1.1


def decay_changed(step):
    """The optimizer was built with another weight decay."""
    for group in step.optimizer.param_groups:
        group["weight_decay"] = 0.1


def update_halved(step):
    """The implementation of the optimizer moves weights by half, whatever its settings say."""
    weights = list(step.model.parameters())
    update = step.update

    def half():
        before = [p.detach().clone() for p in weights]
        update()
        with torch.no_grad():
            for parameter, start in zip(weights, before, strict=True):
                parameter.copy_((parameter + start) / 2)

    step.update = half


def clipped(step):
    """Gradients are made smaller than eager fp32 makes them."""
    before_update(step, lambda: nn.utils.clip_grad_norm_(step.model.parameters(), 0.01))


def never_updated(step):
    """The optimizer's step is left out."""

    def forget():
        step.optimizer.zero_grad()
        step._micro_steps = 0

    step.update = forget


def parameter_left_out(step):
    """The optimizer does not have one of the parameters."""
    del step.optimizer.param_groups[0]["params"][-1]


def no_defect(step):
    """What the plan itself does is wrong."""


OVERFLOWING = """
def compute_loss(model, batch):
    x, y = batch
    hidden = model[:-1](x * 1e4)
    return F.cross_entropy(F.linear(hidden, model[-1].weight * 1e3).float() / 1e6, y)
"""
CANCELLING = """
class Fragile(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 3)
    def forward(self, x):
        big = self.linear(x) + 1000.0  # bf16 keeps steps of 4 up there
        return (big - 1000.0).float()

def build_model():
    return Fragile()
"""

DEFECTS = {
    "gradients doubled": (w.ATTENTION, gradients_doubled, HALF, {}, Part.GRADIENTS),
    "gradients doubled in a chaotic net": (w.DEEP, gradients_doubled, HALF, {}, Part.GRADIENTS),
    "loss scaled": (w.ATTENTION, loss_scaled, HALF, {}, None),
    "loss scaled in a chaotic net": (w.DEEP, loss_scaled, HALF, {}, None),
    "a bias without gradient": (w.ATTENTION, bias_dropped, HALF, {}, Part.GRADIENTS),
    "statistics twice": (w.NORMED, statistics_twice, HALF, {"batch_size": 4}, Part.BUFFERS),
    "statistics twice in a chaotic net": (w.DEEP, statistics_twice, HALF, {}, Part.BUFFERS),
    "norms in evaluation": (w.NORMED, in_evaluation, HALF, {"batch_size": 4}, None),
    "dropout left out": (w.DROPPING, in_evaluation, HALF, {}, None),
    "fp16 overflows for ever": (OVERFLOWING, no_defect, {"precision": "fp16"}, {}, None),
    "bf16 loses what counts": (CANCELLING, no_defect, HALF, {}, None),
    "stale weights": (w.ATTENTION, weights_stale, HALF, {}, Part.GRADIENTS),
    "stale batch": (w.ATTENTION, batch_stale, HALF, {}, Part.GRADIENTS),
    "mask dropped": (w.ATTENTION, mask_dropped, HALF, {}, None),
    "branch detached": (w.ATTENTION, branch_detached, HALF, {}, Part.GRADIENTS),
    "divisor left out": (w.PARTS, divisor_left_out, HALF, PARTS, Part.GRADIENTS),
    "last micro-batch left out": (w.PARTS, last_part_left_out, HALF, PARTS, Part.GRADIENTS),
    "another learning rate": (w.ATTENTION, rate_changed, FOREACH, {}, Part.OPTIMIZER),
    "another weight decay": (w.ATTENTION, decay_changed, FOREACH, {}, Part.OPTIMIZER),
    "half an update": (w.ATTENTION, update_halved, HALF, {}, Part.WEIGHTS),
    "gradients clipped": (w.ATTENTION, clipped, HALF, {}, Part.GRADIENTS),
    "no update at all": (w.ATTENTION, never_updated, HALF, {}, None),
    "a parameter left out of the optimizer": (
        w.ATTENTION,
        parameter_left_out,
        HALF,
        {},
        Part.WEIGHTS,
    ),
}


@pytest.mark.parametrize("case", DEFECTS)
def test_a_wrong_plan_fails(case, write_workload, monkeypatch):
    """Also beside the rounding of bf16, and the report names the part that is wrong."""
    source, defect, values, common, part = DEFECTS[case]
    failed = report_of(write_workload(source, base=w.HEAD), defect, values, common, monkeypatch)
    wrong = {found.part for found in failed.deviations if not found.passed}
    assert wrong, failed.summary
    assert part is None or part in wrong


def report_of(path, defect, values, common, monkeypatch):
    """Return the report of a plan whose step has the defect."""
    build_step = numerics.build_step

    def build(workload, plan, *args):
        step = build_step(workload, plan, *args)
        if values.items() <= set(plan.items):  # it is not the reference
            defect(step)
        return step

    monkeypatch.setattr(numerics, "build_step", build)
    return w.checked(path, values, **common)
