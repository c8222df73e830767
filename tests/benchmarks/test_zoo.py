"""Every workload of the zoo is a user's file that trains, and has settings that experts try."""

import ast
import importlib
import itertools
import math
import sys
from pathlib import Path

import pytest
import torch

from autotune.search_space.plan import Plan
from autotune.trials.applying.apply import build_step
from autotune.trials.workload import load_workload

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
ZOO = sorted((BENCHMARKS / "zoo").glob("*.py"))
LIBRARIES = ("PIL", "timm", "torch_geometric", "torchaudio", "torchvision", "transformers")

every_workload = pytest.mark.parametrize("path", ZOO, ids=lambda path: path.stem)


def test_there_are_a_dozen_or_more():
    """Fewer say little about models that nobody here has seen."""
    assert len(ZOO) >= 12


@every_workload
def test_a_workload_is_a_users_file(path):
    """It imports nothing from autotune, and defines the contract's functions at its top level."""
    tree = ast.parse(path.read_text())
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert {"build_model", "build_dataset", "compute_loss"} <= functions
    assert not [name for name in imported(tree) if name.startswith("autotune")]


@every_workload
def test_a_workload_trains(path):
    """On the CPU two steps of its baseline give finite losses, and other weights."""
    import_libraries(path)
    workload = load_workload(path)
    plan = Plan.of({"batch_size": min(workload.batch_size, 4), "workers": 0, "threads": 1})
    with build_step(workload, plan, torch.device("cpu"), seed=0) as step:
        before = [p.detach().clone() for p in step.model.parameters()]
        losses = [float(step(batch)) for batch in itertools.islice(step.loader, 2)]
        after = [p.detach() for p in step.model.parameters()]
    assert all(math.isfinite(loss) for loss in losses)
    assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("device_kind", ["cuda", "cpu"])
@every_workload
def test_experts_try_about_half_a_dozen_settings(path, device_kind, settings):
    """For each workload on each kind of device, no two of them alike."""
    chosen = settings.settings_for(path.stem, device_kind)
    assert path.stem in settings.ON_GPU
    assert 5 <= len(chosen) <= 7
    assert not [pair for pair in itertools.combinations(chosen, 2) if pair[0] == pair[1]]


@pytest.mark.parametrize("device_kind", ["cuda", "cpu"])
def test_experts_keep_a_batch_that_is_fixed(device_kind, settings, monkeypatch):
    """Whatever they try on the mixture of experts divides its GLOBAL_BATCH_SIZE."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: device_kind == "cuda")
    workload = load_workload(BENCHMARKS / "zoo" / "mixture_of_experts.py")
    for setting in settings.settings_for("mixture_of_experts", device_kind):
        assert workload.global_batch_size % (workload.batch_size * setting.get("times", 1)) == 0


@pytest.fixture(scope="module")
def settings():
    """The table of what experts try, a script beside others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
        yield importlib.import_module("experts_settings")


def imported(tree):
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.name for node in nodes for alias in node.names}
    return names | {node.module for node in nodes if isinstance(node, ast.ImportFrom)}


def import_libraries(path):
    """Skip a workload whose libraries are not there; the extra `zoo` brings them."""
    names = {name.partition(".")[0] for name in imported(ast.parse(path.read_text()))}
    for name in sorted(names & set(LIBRARIES)):
        pytest.importorskip(name, reason=f"the extra zoo is not installed: no {name}")
