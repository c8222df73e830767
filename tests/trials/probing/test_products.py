"""How much of a step's work is products that tensor cores read slowly."""

import pytest

from autotune.trials.probing.probe import probe
from tests.search_space.machines import CPU_MACHINE

HEAD = """
BATCH_SIZE = {batch}

def build_model():
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, {vocabulary}))

def compute_loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])
"""
ATTENTION = """
def build_model():
    return nn.Linear(16, 16 * 49)

def compute_loss(model, batch):
    x = model(batch[0]).view(-1, 1, 49, 16)
    return nn.functional.scaled_dot_product_attention(x, x, x).mean()
"""
READS = """
def compute_loss(model, batch):
    loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
    assert loss.item() > 0
    return loss
"""


def share(text, write_workload):
    return probe(write_workload(text), CPU_MACHINE, 0).uneven_share


@pytest.mark.parametrize("batch", [8, 50])
@pytest.mark.parametrize(("vocabulary", "of_head"), [(1001, 1), (1000, 0)])
def test_a_vocabulary_may_be_uneven(vocabulary, of_head, batch, write_workload):
    """In three products of the head, two has the layer before it; what the batch makes is none."""
    head, layer = 3 * 64 * vocabulary, 2 * 16 * 64
    text = HEAD.replace("{vocabulary}", str(vocabulary)).replace("{batch}", str(batch))
    assert share(text, write_workload) == pytest.approx(of_head * head / (head + layer))


def test_fused_attention_is_no_product_of_weights(write_workload):
    """Where only shapes are computed it is taken apart into products, 49 tokens wide."""
    assert share(ATTENTION, write_workload) == 0.0


def test_what_cannot_be_looked_at_is_not_known(write_workload):
    """A loss that reads values needs them."""
    assert share(READS, write_workload) is None
