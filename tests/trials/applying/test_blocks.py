"""What stands beside the repeated blocks of a model, and is compiled with them."""

import copy
import io

import pytest
import torch
from torch import nn

from autotune.errors import WorkloadError
from autotune.search_space.plan import Plan
from autotune.trials.applying.apply import build_step
from autotune.trials.applying.blocks import find_beside, find_blocks
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


LAYERS = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleList([Block(), nn.Dropout(0.0), nn.Linear(16, 16)]) for _ in range(3)
        )
        self.head = nn.Linear(16, 3)
    def forward(self, x):
        for block, dropout, linear in self.layers:
            x = linear(dropout(block(x)))
        return self.head(x)

def build_model():
    return Model()
"""


def test_lists_in_a_list_are_no_blocks_but_their_parts_are(write_workload):
    """A list has no forward pass that could be recomputed, compiled or cut."""
    workload = load_workload(write_workload(LAYERS))
    model = workload.build_model()
    expected = [part for layer in model.layers for part in (layer[0], layer[2])]
    assert find_blocks(model, workload) == expected
    plan = Plan.of({"batch_size": 4, "activation_checkpointing": "full"})
    calls = []
    with build_step(workload, plan, torch.device("cpu"), seed=0) as step:
        linears = [m for m in step.model.layers.modules() if isinstance(m, nn.Linear)]
        for linear in linears:
            linear.register_forward_pre_hook(lambda *_: calls.append(1))
        step(next(iter(step.loader)))
    assert len(calls) == 2 * len(linears)  # and again in the backward pass
    named = load_workload(write_workload(LAYERS + "def blocks(model): return model.layers"))
    with pytest.raises(WorkloadError, match="returned a ModuleList, which has no forward"):
        find_blocks(named.build_model(), named)


MODELS = """
class Stack(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.block = nn.ModuleList(Block() for _ in range(size))
        self.norm = nn.LayerNorm(16)

class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(999, 16), nn.Embedding(999, 16)
        self.encoder, self.decoder = Stack(1), Stack(2)

class Stage(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.down, self.blocks = nn.Linear(16, 2), nn.Sequential(*(Block() for _ in range(size)))

class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.experts = nn.Linear(16, 8), nn.ModuleList(Block() for _ in range(8))

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(16, 16) for _ in range(4))

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.up, self.down = Attention(), nn.Linear(16, 64), nn.Linear(64, 16)
"""
FOUND = {
    "nn.ModuleList([Pair()])": ("Block", 3),
    "nn.Sequential(Stage(1), Stage(3), nn.Linear(16, 3))": ("Block", 4),
    "nn.Sequential(Experts(), Experts(), Experts())": ("Experts", 3),
    "nn.Sequential(Layer(), Layer(), nn.Linear(16, 3))": ("Layer", 2),
    "nn.Sequential(nn.Linear(64, 99), nn.Linear(99, 9), Block(), Block())": ("Block", 2),
    "nn.ModuleList([nn.Embedding(9, 16), nn.Embedding(9, 16), nn.Linear(16, 3)])": (None, 0),
}


@pytest.mark.parametrize("model", FOUND)
def test_blocks_are_what_most_of_the_model_repeats(model, write_workload):
    """All of a class, wherever they are; in stages, their steps; not experts, not projections."""
    workload = load_workload(write_workload(MODELS + f"def build_model(): return {model}"))
    found = find_blocks(workload.build_model(), workload)
    name, count = FOUND[model]
    assert [type(block).__name__ for block in found] == [name] * count


def test_an_encoder_and_a_decoder_of_other_blocks_are_both_found(write_workload):
    """In their order; what is a small part of the model is none of them."""
    model = """
class Cross(Layer):
    pass

class Small(nn.Linear):
    pass

def build_model():
    encoder, decoder = (nn.ModuleList(kind() for _ in range(3)) for kind in (Layer, Cross))
    return nn.ModuleList([encoder, decoder, nn.Sequential(*(Small(16, 16) for _ in range(3)))])
"""
    workload = load_workload(write_workload(MODELS + model))
    found = find_blocks(workload.build_model(), workload)
    assert [type(block).__name__ for block in found] == ["Layer"] * 3 + ["Cross"] * 3


STAGES = """
def build_model():
    widths = [16 + k for k in range(4)]
    stages = [nn.Sequential(nn.Linear(a, b), nn.ReLU()) for a, b in zip(widths, widths[1:])]
    return nn.Sequential(nn.Sequential(*stages), nn.Linear(widths[-1], 3))
"""


@pytest.mark.filterwarnings("default")  # inside the compiler, a warning as error is a crash
def test_block_scope_compiles_many_different_blocks(write_workload):
    """The compiler keeps few programs for one piece of code, here two; each stage has its own."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    plan = Plan.of({"batch_size": 4, "compile_mode": "default", "compile_scope": "block"})
    path = write_workload(STAGES)
    few = torch._dynamo.config.patch(recompile_limit=2)
    with few, build_step(load_workload(path), plan, torch.device("cpu"), seed=0) as step:
        step(next(iter(step.loader)))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 3 + 1


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("scope", ["model", "block"])
def test_a_copy_of_a_compiled_model_has_its_own_weights(scope, write_workload):
    """An average of weights is such a copy; so is a model that was saved whole."""
    plan = Plan.of({"batch_size": 4, "compile_mode": "default", "compile_scope": scope})
    path = write_workload(
        "def build_model(): return nn.Sequential(*(nn.Linear(16, 16) for _ in range(3)))"
    )
    with build_step(load_workload(path), plan, torch.device("cpu"), seed=0) as step:
        copied = copy.deepcopy(step.model)
        file = io.BytesIO()
        torch.save(step.model, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=False)
        for model in (copied, loaded):
            torch.testing.assert_close(model(torch.ones(2, 16)), step.model(torch.ones(2, 16)))
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.zero_()
            assert not model(torch.ones(2, 16)).any()
        assert step.model(torch.ones(2, 16)).any()


@pytest.mark.filterwarnings("default")  # inside the compiler, a warning as error is a crash
def test_block_scope_compiles_blocks_once_and_the_head(write_workload):
    """Four equal blocks share a graph, but that the first one's input has no gradient."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    plan = Plan.of({"batch_size": 4, "compile_mode": "default", "compile_scope": "block"})
    with build_step(load_workload(write_workload()), plan, torch.device("cpu"), seed=0) as step:
        step(next(iter(step.loader)))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 3
