"""The user's optimizer built anew: all of it is there, or the plan is refused."""

import pytest
import torch

from autotune.search_space.plan import Plan
from autotune.trials.applying.apply import build_step
from autotune.trials.applying.optimizer import (
    build_optimizer,
    capturable,
    with_implementation,
)
from autotune.trials.failure import InvalidPlanError
from autotune.trials.probing.optimizer import capturable_only_fused, rebuild_problem
from autotune.trials.result import Outcome
from autotune.trials.workload import load_workload
from tests.trials.two_ranks import met, on_two_ranks

PLAN = Plan.of({"batch_size": 4})


def parameters():
    """One parameter with a gradient."""
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    return [parameter]


class Clipped(torch.optim.AdamW):
    """An argument of its own, which torch's defaults do not hold."""

    def __init__(self, params, max_norm=0.0, *, foreach=None, capturable=False):
        super().__init__(params, foreach=foreach, capturable=capturable)
        self.max_norm = max_norm


class Ranged(Clipped):
    """One whose argument is no single number, and a step that is not torch's."""

    def __init__(self, params, limits=(-1.0, 1.0), *, foreach=None, capturable=False):
        super().__init__(params, foreach=foreach, capturable=capturable)
        self.limits = limits


class Needing(torch.optim.AdamW):
    """An argument that must be given, and that it does not keep."""

    def __init__(self, params, rounds):
        super().__init__(params, lr=0.1 / rounds)


def with_hook(register):
    """An optimizer that calls the user's code around each step."""
    optimizer = torch.optim.AdamW(parameters())
    getattr(optimizer, register)(lambda *_: None)
    return optimizer


def with_state():
    """An optimizer that has trained."""
    optimizer = torch.optim.AdamW(parameters())
    optimizer.step()
    return optimizer


def with_scheduler():
    """An optimizer whose step a scheduler counts."""
    optimizer = torch.optim.AdamW(parameters())
    optimizer.scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
    return optimizer


HOLDING = {
    "_optimizer_step_pre_hooks": lambda: with_hook("register_step_pre_hook"),
    "_optimizer_step_post_hooks": lambda: with_hook("register_step_post_hook"),
    "state": with_state,
    "step": with_scheduler,
    "max_norm": lambda: Clipped(parameters(), max_norm=1.0),
    "limits": lambda: Ranged(parameters(), limits=(-0.5, 0.5)),
}


def test_a_schedule_in_a_hook_of_the_optimizer_is_kept(write_workload):
    """Schedulers replace `step` of the optimizer, which still takes its steps by itself."""
    path = write_workload(
        """
        def build_optimizer(params):
            optimizer = torch.optim.SGD(params, lr=1.0)
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
            optimizer.register_step_post_hook(lambda *_: schedule.step())
            return optimizer
        """
    )
    with build_step(load_workload(path), PLAN, torch.device("cpu"), seed=0) as step:
        for _, batch in zip(range(3), step.loader, strict=False):
            step(batch)
        assert step.optimizer.param_groups[0]["lr"] == 0.125


@pytest.mark.parametrize("held", HOLDING)
def test_an_optimizer_that_holds_more_than_its_arguments_is_not_built_anew(held):
    """What the user put there would be gone, without a word."""
    optimizer = HOLDING[held]()
    with pytest.raises(InvalidPlanError, match=f"what its {held} holds would be lost"):
        with_implementation(optimizer, "foreach")
    with pytest.raises(InvalidPlanError, match=held):
        capturable(optimizer)
    assert f"what its {held} holds would be lost" in rebuild_problem(optimizer)


def test_an_optimizer_that_its_arguments_do_not_make_is_not_built_anew():
    """What its constructor raises is told."""
    needed = rebuild_problem(Needing(parameters(), 3))
    assert "Needing cannot be built anew: TypeError" in needed
    assert "rounds" in needed
    assert rebuild_problem(torch.optim.AdamW(parameters())) is None


@pytest.mark.parametrize("name", ["Adagrad", "Adam", "AdamW", "RAdam", "RMSprop", "SGD"])
@pytest.mark.parametrize("fused", [False, True])
def test_torchs_own_are_built_anew(name, fused):
    """Some have a state from the start, and notes about their fused kernels."""
    kind = getattr(torch.optim, name)
    flags = {"fused": True} if fused and name not in ("RAdam", "RMSprop") else {}
    got = with_implementation(kind(parameters(), lr=0.5, **flags), "foreach")
    assert (type(got), got.param_groups[0]["lr"]) == (kind, 0.5)
    assert got.param_groups[0]["foreach"]


def test_a_recordable_optimizer_is_the_users():
    """Each group keeps its own settings; an empty one is no problem."""
    groups = [
        {"params": parameters(), "lr": 0.25},
        {"params": parameters(), "weight_decay": 0.5},
        {"params": []},
    ]
    got = capturable(torch.optim.AdamW(groups, lr=0.125, betas=(0.8, 0.9), fused=True))
    assert type(got) is torch.optim.AdamW
    assert [group["lr"] for group in got.param_groups] == [0.25, 0.125, 0.125]
    assert [group["weight_decay"] for group in got.param_groups] == [0.01, 0.5, 0.01]
    assert all(group["capturable"] and group["fused"] for group in got.param_groups)
    assert all(group["betas"] == (0.8, 0.9) for group in got.param_groups)


class Clipping(torch.optim.SGD):
    """With a step of its own, of which nobody knows what it keeps on the host."""

    def step(self, closure=None):
        return super().step(closure)


def test_an_optimizer_that_cannot_be_recorded_is_refused():
    """SGD reads its rate as a number, but for its fused kernel."""
    sgd = torch.optim.SGD(parameters(), lr=0.1, momentum=0.9)
    with pytest.raises(InvalidPlanError, match="SGD does not take capturable"):
        capturable(sgd)
    fused = with_implementation(sgd, "fused")
    assert capturable(fused) is fused
    assert capturable_only_fused(sgd)
    others = (torch.optim.AdamW, torch.optim.Adagrad, Clipping)
    assert not any(capturable_only_fused(kind(parameters(), lr=0.1)) for kind in others)


HELD = """
def build_optimizer(params):
    global optimizer
    optimizer = torch.optim.AdamW(params, lr=0.5)
    return optimizer

def compute_loss(model, batch):
    for group in optimizer.param_groups:
        group["lr"] *= 0.5
    x, y = batch
    return nn.functional.cross_entropy(model(x), y)
"""


@pytest.mark.parametrize("impl", ["default", "foreach", "fused"])
def test_a_rate_that_the_workload_sets_itself_counts(impl, write_workload):
    """It holds the optimizer that it built, not the one that was built in its place."""
    plan = Plan.of({"batch_size": 4, "optimizer_impl": impl})
    with build_step(load_workload(write_workload(HELD)), plan, torch.device("cpu"), 0) as step:
        step(next(iter(step.loader)))
        assert [group["lr"] for group in step.optimizer.param_groups] == [0.25]
        assert step.optimizer.param_groups[0].get(impl, True)


def _rates(place, path):
    ranks = met(place)
    plan = Plan.of({"batch_size": 4, "sharding": "zero1"})
    with build_step(load_workload(path), plan, torch.device("cpu"), 0, ranks) as step:
        before = [p.detach().clone() for p in step.model.parameters()]
        step(next(iter(step.loader)))
        rates = [group["lr"] for group in step.optimizer.param_groups]
        after = list(step.model.parameters())
    return rates, max((a - b).abs().max().item() for a, b in zip(after, before, strict=True))


def test_such_a_rate_reaches_the_parts_of_each_rank(write_workload):
    """Under zero1 the step itself is taken by yet another optimizer."""
    for rates, moved in on_two_ranks(_rates, write_workload(HELD.replace("*= 0.5", "= 1e-5"))):
        assert rates == [1e-5]
        assert moved < 1e-4


def test_an_optimizer_whose_step_needs_more_is_refused(write_workload, run_plan):
    """Such as one that computes the loss again and again."""
    result = run_plan(write_workload("def build_optimizer(p): return torch.optim.LBFGS(p)"))
    assert (result.outcome, result.user_error) == (Outcome.CRASH, True)
    assert "LBFGS.step needs closure" in (result.error or "")


def test_on_a_cpu_a_recorded_step_is_an_ordinary_one(write_workload):
    """A plan made on a GPU trains there, too; capturable optimizers would refuse."""
    workload = load_workload(write_workload())
    plan = Plan.of({"batch_size": 4, "cuda_graph": "step", "optimizer_impl": "foreach"})
    (group,) = build_optimizer(workload, plan, workload.model({})).param_groups
    assert (group["capturable"], group["foreach"]) == (False, True)
