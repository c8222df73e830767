"""How much of a step's work is products that tensor cores read slowly."""

import pytest

from autotune.trials.probe import probe
from tests.search_space.machines import CPU_MACHINE

HEAD = """
BATCH_SIZE = 8

def build_model():
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, {vocabulary}))

def compute_loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])
"""
SCORES = """
BATCH_SIZE = 8

def build_model():
    return nn.Linear(16, 16 * {tokens})

def compute_loss(model, batch):
    x = model(batch[0]).view(-1, {tokens}, 16)
    return (x @ x.transpose(1, 2)).logsumexp(-1).mean()
"""
READS = """
def compute_loss(model, batch):
    loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
    assert loss.item() > 0
    return loss
"""


def share(text, write_workload):
    return probe(write_workload(text), CPU_MACHINE, 0).uneven_share


@pytest.mark.parametrize(("vocabulary", "of_head"), [(1001, 1), (1000, 0)])
def test_a_vocabulary_may_be_uneven(vocabulary, of_head, write_workload):
    """Forward and backward: three products of the head, two of the layer before it."""
    head, layer = 3 * 64 * vocabulary, 2 * 16 * 64
    found = share(HEAD.replace("{vocabulary}", str(vocabulary)), write_workload)
    assert found == pytest.approx(of_head * head / (head + layer))


@pytest.mark.parametrize("tokens", [48, 49])
def test_so_may_a_number_of_tokens(tokens, write_workload):
    """Scores written out are products of batches; the layer before them is even."""
    found = share(SCORES.replace("{tokens}", str(tokens)), write_workload)
    assert (found > 0.5) == (tokens == 49)


def test_what_cannot_be_looked_at_is_not_uneven(write_workload):
    """A loss that reads values needs them."""
    assert share(READS, write_workload) == 0.0
