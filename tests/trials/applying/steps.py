"""Steps of small workloads, and what they train to."""

import torch

from autotune.search_space.plan import Plan
from autotune.trials.applying.apply import build_step
from autotune.trials.workload import load_workload

CPU = torch.device("cpu")


def step_of(path, values=None):
    plan = Plan.of({"batch_size": 4, **(values or {})})
    return build_step(load_workload(path), plan, CPU, seed=0)
