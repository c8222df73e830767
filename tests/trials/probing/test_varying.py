"""What the probe sees of a workload in which not every step runs the same modules."""

import pytest

from autotune.search_space.space import build_space
from autotune.trials.probing.probe import probe
from tests.search_space.machines import CPU_MACHINE, GPU_MACHINE

EXPERTS = """
class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(16, 8)
        self.experts = nn.ModuleList(nn.Linear(16, 3) for _ in range(8))
    def forward(self, x):
        chosen = self.gate(x).argmax(1)
        out = torch.zeros(len(x), 3)
        for number, expert in enumerate(self.experts):
            if (chosen == number).any():
                out[chosen == number] = expert(x[chosen == number])
        return out

def build_model():
    return Experts()
"""
DROPPED = """
class Dropped(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.head = nn.ModuleList(Block() for _ in range(8)), nn.Linear(16, 3)
    def forward(self, x):
        for layer in self.layers:
            if torch.rand(()) < 0.5:
                x = layer(x)
        return self.head(x)

def build_model():
    return Dropped()
"""
CALLED_FOR_EACH = """
def collate_fn(samples):
    torch.manual_seed(len(seen))
    seen.append(1)
    return torch.randn(len(samples), int(torch.randint(1, 30, ())), 16), torch.zeros(len(samples))

seen = []

class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(16, 16)
    def forward(self, x):
        state = x.new_zeros(len(x), 16)
        for element in x.unbind(1):
            state = self.cell(element, state)
        return state

def build_model():
    return Cell()

def compute_loss(model, batch):
    return model(batch[0]).pow(2).mean()
"""
LOOKS_AT_VALUES = """
def compute_loss(model, batch):
    loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
    assert loss.item() > 0
    return loss
"""


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        (EXPERTS, True),
        (DROPPED, True),
        (CALLED_FOR_EACH, True),
        (LOOKS_AT_VALUES, False),
        ("", False),
    ],
    ids=["experts", "dropped", "called for each", "looks at values", "plain"],
)
def test_the_probe_sees_whether_what_runs_varies(extra, expected, write_workload):
    """By values, by chance or by shape; ranks that cut parameters would wait for each other."""
    assert probe(write_workload(extra), CPU_MACHINE, 0).varies is expected


PADDED = """
def collate_fn(samples):
    longest = max(int(y) + 1 for _, y in samples) * len(samples) if {uneven} else 16
    xs = torch.stack([torch.nn.functional.pad(x, (0, longest)) for x, _ in samples])
    return {{"x": xs, "y": torch.stack([y for _, y in samples])}}

class Cut(nn.Linear):
    def forward(self, x):
        return super().forward(x[:, :16])

def build_model():
    return Cut(16, 3)

def compute_loss(model, batch):
    return nn.functional.cross_entropy(model(batch["x"]), batch["y"])

BATCH_SIZE = 2
"""


@pytest.mark.parametrize("uneven", [True, False])
def test_batches_of_uneven_shapes_are_seen(write_workload, uneven):
    """They would be compiled and recorded anew for each shape, so those modes are not offered."""
    path = write_workload(PADDED.format(uneven=uneven))
    facts = probe(path, CPU_MACHINE, seed=0)
    assert facts.uneven_batches == uneven
    modes = build_space(facts, GPU_MACHINE).by_name["compile_mode"].values
    assert ("reduce-overhead" in modes) != uneven
