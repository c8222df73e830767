"""Scripts that train, as users write them, and the trials that run them."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.search_space.command import Command
from autotune.search_space.hardware import Hardware
from autotune.search_space.plan import Plan
from autotune.trials.command.launch import observe_command, run_command
from autotune.trials.request import ProbeRequest, Protocol, TrialRequest
from autotune.trials.result import Kept, Phase, Purpose, TrialResult

CPU = Hardware(
    device_kind="cpu",
    device_name="a CPU",
    num_devices=1,
    device_memory_bytes=2**33,
    num_cores=2,
    host_memory_bytes=2**33,
    capability=None,
    versions={},
)
SHORT = Protocol(window_s=0.05, min_windows=3, max_measure_s=1.0, max_warm_up_s=1.0)
# A loop with all that loops have: accumulation, clipping, a scheduler, an average of the weights,
# a validation, a checkpoint.
SCRIPT = """
import argparse, copy, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--accum", type=int, default=1)
parser.add_argument("--steps", type=int, default=100000)
args = parser.parse_args()

class Points(Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, i):
        generator = torch.Generator().manual_seed(i)
        return torch.randn(16, generator=generator), i % 4

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(16, 16)
    def forward(self, x):
        return x + torch.relu(self.inner(x))

torch.manual_seed(0)
model = nn.Sequential(Block(), Block(), Block(), nn.Linear(16, 4))
average = copy.deepcopy(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)
train = DataLoader(Points(), batch_size=args.batch_size, shuffle=True, drop_last=True)
valid = DataLoader(Points(), batch_size=50)
step = 0
while step < args.steps:
    for i, (x, y) in enumerate(train):
        loss = nn.functional.cross_entropy(model(x), y)
        (loss / args.accum).backward()
        if (i + 1) % args.accum:
            continue
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        step += 1
        if step in (1, 2, 5, 20, 110):
            print("loss", step, loss.item().hex(), flush=True)
        if step == args.steps:
            break
    model.eval()
    with torch.no_grad():
        for x, y in valid:
            model(x)
    model.train()
    torch.save(model.state_dict(), "last.pt")
print("state", sorted(model.state_dict()))
"""


@pytest.fixture
def home(tmp_path) -> Path:
    """A user's folder with a script, data, and what an earlier training left."""
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "last.pt").write_text("an earlier training's")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "points.txt").write_text("1 2 3")
    return tmp_path


@pytest.fixture
def observe(home):
    """Observe a command in the user's folder; return its facts, or the rejection."""

    def observed(*words: str, program: str = sys.executable, **options):
        command = Command(argv=(program, *words), **options)
        request = ProbeRequest(
            workload_path=str(home / "train.py"),
            working_dir=str(home),
            hardware=CPU,
            command=command,
        )
        (answer,) = observe_command(request)
        return answer

    return observed


@pytest.fixture
def trial(home):
    """Run a trial of a command in the user's folder; return its result."""

    def ran(*words: str, plan=None, bindings=(), **options) -> TrialResult:
        request = TrialRequest(
            number=1,
            plan=Plan.of(plan or {}),
            purpose=Purpose.MEASURE,
            workload_path=str(home / "train.py"),
            working_dir=str(home),
            device_kind="cpu",
            protocol=SHORT,
            command=Command(argv=(sys.executable, *words), bindings=tuple(bindings)),
        )
        *phases, result = run_command(replace(request, **options))
        assert all(isinstance(phase, Phase | Kept) for phase in phases)
        return result

    return ran
