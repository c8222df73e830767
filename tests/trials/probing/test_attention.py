"""How much of a step's arithmetic is in torch's attention."""

import pytest
import torch

from autotune.trials.probing.probe import probe
from tests.search_space.machines import CPU_MACHINE

FUSED = """
def build_model():
    return nn.Linear(16, 16 * 50)

def compute_loss(model, batch):
    x = model(batch[0]).view(-1, 1, 50, 16)
    return nn.functional.scaled_dot_product_attention({call}).mean()
"""
LAYER = """
def build_model():
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    return nn.Sequential(layer, nn.Flatten(), nn.Linear(16 * 4, 3))

def compute_loss(model, batch):
    tokens = batch[0].view(-1, 4, 4).repeat(1, 1, 4)
    return nn.functional.cross_entropy(model(tokens), batch[1])
"""
READS = """
def compute_loss(model, batch):
    loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
    assert loss.item() > 0
    return loss
"""


FAILS = """
def compute_loss(model, batch):
    raise ValueError("not yet")
"""


def share(text, write_workload):
    return probe(write_workload(text), CPU_MACHINE, 0).attention_share


@pytest.mark.parametrize("call", ["x, x, x", "query=x, key=x, value=x", "x, x, value=x"])
def test_calls_are_counted_forward_and_backward(call, write_workload):
    """Two products of 50 by 16 by 50 and their four in the backward pass; the layer has two."""
    attention, layer = 6 * 50 * 16 * 50, 2 * 16 * 16 * 50
    expected = attention / (attention + layer)
    assert share(FUSED.replace("{call}", call), write_workload) == pytest.approx(expected)


def test_torchs_own_layers_call_it(write_workload):
    """So do models of libraries, which nobody asked to."""
    assert 0.0 < share(LAYER, write_workload) < 0.5


def test_a_model_without_attention_has_none(write_workload):
    """Then there is no kernel to choose."""
    assert share("", write_workload) == 0.0


def test_attention_is_counted_where_values_are_needed_too(write_workload):
    """Such a model runs a few samples on the CPU; models of transformers are of this kind."""
    reads = "    assert x.sum().item() != 0\n    return nn.functional"
    reading = FUSED.replace("{call}", "x, x, x").replace("    return nn.functional", reads)
    attention, layer = 2 * 50 * 16 * 50, 16 * 16 * 50
    expected = attention / (attention + layer)
    assert share(reading, write_workload) == pytest.approx(expected)
    assert share(READS, write_workload) == 0.0


def test_what_cannot_be_run_is_not_known(write_workload):
    """A trial will show what raises."""
    assert share(FAILS, write_workload) is None


def test_looking_leaves_torch_as_it_was(write_workload):
    """Nothing is counted after the look."""
    share(FUSED.replace("{call}", "x, x, x"), write_workload)
    assert not torch._C._len_torch_function_stack()
