"""Workloads written to files, and trials of them run in this process."""

import itertools
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from autotune.search_space.plan import Plan, Value
from autotune.trials.applying import apply
from autotune.trials.quality import QualityRequest
from autotune.trials.rank import run_trial
from autotune.trials.request import Protocol, TrialRequest
from autotune.trials.result import Phase, Purpose, TrialResult

TINY = """
import time
import torch
from torch import nn
from torch.utils.data import Dataset

BATCH_SIZE = 4

class Rows(Dataset):
    def __init__(self, size=64):
        self.size = size
    def __len__(self):
        return self.size
    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(16, generator=generator), index % 3

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)
    def forward(self, x):
        return x + torch.relu(self.linear(x))

def build_model():
    return nn.Sequential(*[Block() for _ in range(4)], nn.Linear(16, 3))

def build_dataset():
    return Rows()

def compute_loss(model, batch):
    x, y = batch
    return nn.functional.cross_entropy(model(x), y)
"""
QUICK = Protocol(window_s=0.02, min_windows=3, max_measure_s=0.2, max_warm_up_s=0.2)

_names = itertools.count()

WriteWorkload = Callable[..., Path]
RunPlan = Callable[..., TrialResult]


@pytest.fixture(autouse=True)
def closed_settings():
    """Close the steps that a test leaves open, which would change the next one's process."""
    yield
    for settings in list(apply._open_settings):
        settings.close()


@pytest.fixture(autouse=True)
def one_thread():
    """Compute in one thread: models this small gain nothing from more, which wait on each other.

    On a busy machine that waiting takes longer than all else.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def write_workload(tmp_path: Path) -> WriteWorkload:
    """Write the tiny workload plus `extra` source; each file has a name of its own."""

    def write(extra: str = "", *, base: str = TINY) -> Path:
        path = tmp_path / f"model_{next(_names)}.py"
        path.write_text(base + textwrap.dedent(extra))
        return path

    return write


@pytest.fixture
def run_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPlan:
    """Run one trial of a workload file and return its result."""
    monkeypatch.chdir(tmp_path)

    def run(
        path: Path,
        values: dict[str, Value] | None = None,
        *,
        protocol: Protocol = QUICK,
        compare_with: dict[str, Value] | None = None,
        interesting_above: float | None = None,
        quality: QualityRequest | None = None,
        uneven_batches: bool = False,
    ) -> TrialResult:
        request = TrialRequest(
            number=1,
            plan=Plan.of({"batch_size": 4, **(values or {})}),
            purpose=Purpose.MEASURE,
            workload_path=str(path),
            working_dir=str(tmp_path),
            device_kind="cpu",
            protocol=protocol,
            interesting_above=interesting_above,
            quality=quality,
            uneven_batches=uneven_batches,
            compare_with=None if compare_with is None else Plan.of(compare_with),
        )
        *phases, result = run_trial(request)
        assert all(isinstance(phase, Phase) for phase in phases)
        assert isinstance(result, TrialResult)
        return result

    return run
