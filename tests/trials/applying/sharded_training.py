"""Training of a small workload on two ranks, to be compared with one device."""

import itertools

import torch

from autotune.search_space.plan import Plan
from autotune.trials.applying.apply import build_step
from autotune.trials.process_group import ALONE
from autotune.trials.workload import load_workload
from tests.trials.two_ranks import met

STEPS = 3


# Plain SGD: after some steps the parameters are the start less the sum of the gradients, so a
# gradient that is off by any factor shows. With Adam it would not.
SGD = """
class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*[Block() for _ in range(4)])
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 3)
    def forward(self, x):
        return self.head(self.norm(self.layers(x)))

def build_model():
    return Normed()

def build_optimizer(params):
    first, *rest = params
    groups = [{"params": [first], "lr": 0.05}, {"params": rest}]
    return torch.optim.SGD(groups, lr=0.2)
"""


SHARDINGS = ("ddp", "zero1", "fsdp_zero2", "fsdp_zero3", "hsdp")


COMPILED = {"compile_mode": "default", "compile_scope": "block"}


def train(path, values, batch_size, ranks):
    plan = Plan.of({**values, "batch_size": batch_size})
    with build_step(load_workload(path), plan, torch.device("cpu"), 0, ranks) as step:
        batches = itertools.cycle(step.loader)
        losses = [step(next(batches)).item() for _ in range(STEPS * step.accumulation)]
        parameters = [full_value(p).tolist() for p in step.model.parameters()]
        return ranks.mean(*losses), parameters, list(step.model.state_dict())


def full_value(parameter):
    full = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
    return full.detach()


def train_all(place, path, cases):
    ranks = met(place)
    alone = {count: train(path, {"accumulation": count}, 8, ALONE) for count in (1, 2)}
    together = {name: train(path, values, 4, ranks) for name, values in cases.items()}
    return alone, together


def close(got, expected, tolerance):
    return all(
        torch.allclose(torch.tensor(a), torch.tensor(b), atol=tolerance, rtol=tolerance)
        for a, b in zip(got, expected, strict=True)
    )
