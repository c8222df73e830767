"""What stands beside the repeated blocks of a model, and is compiled with them."""

import pytest
import torch
from torch import nn

from autotune.search_space.plan import Plan
from autotune.trials.apply import build_step
from autotune.trials.blocks import find_beside
from autotune.trials.workload import load_workload


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(8, 4)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.norm = nn.LayerNorm(4)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv1d(1, 4, 3), nn.BatchNorm1d(4), nn.ReLU())
        self.decoder = Decoder()
        self.heads = nn.ModuleDict({"class": nn.Linear(4, 2), "box": nn.Linear(4, 4)})
        self.dropout = nn.Dropout()


def test_layers_that_multiply_stand_beside_the_blocks():
    """Whole where they hold no block; neither lookups, nor norms, nor containers."""
    model = Model()
    found = list(find_beside(model, list(model.decoder.layers)))
    assert found == [model.stem, model.heads["class"], model.heads["box"]]


@pytest.mark.filterwarnings("default")  # inside the compiler, a warning as error is a crash
def test_block_scope_compiles_blocks_once_and_the_head(write_workload):
    """Four equal blocks share a graph, but that the first one's input has no gradient."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    plan = Plan.of({"batch_size": 4, "compile_mode": "default", "compile_scope": "block"})
    with build_step(load_workload(write_workload()), plan, torch.device("cpu"), seed=0) as step:
        step(next(iter(step.loader)))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 3
