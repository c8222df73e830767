"""Experts' loops measure one workload end to end by hand, in processes of their own."""

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TINY = """
import torch
from torch import nn
from torch.utils.data import TensorDataset

BATCH_SIZE, GLOBAL_BATCH_SIZE = 8, 32

def build_model():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))

def build_dataset():
    return TensorDataset(torch.randn(256, 8), torch.randint(2, (256,)))

def compute_loss(model, batch):
    x, y = batch
    return nn.functional.cross_entropy(model(x), y)
"""


@pytest.fixture(scope="module")
def scripts():
    """The scripts, which import each other from their folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
        yield SimpleNamespace(
            experts=importlib.import_module("experts"),
            loop=importlib.import_module("experts_loop"),
        )


@pytest.fixture
def tiny(tmp_path):
    path = tmp_path / "tiny.py"
    path.write_text(TINY)
    return path


def test_experts_do_not_use_what_they_are_held_against():
    """Their scripts import nothing from autotune."""
    for path in BENCHMARKS.glob("experts*.py"):
        nodes = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.ImportFrom)]
        assert not [n.module for n in nodes if n.module.startswith("autotune")]
        assert "import autotune" not in path.read_text()


def test_the_loop_measures_a_setting(tiny):
    """It trains in steps of the whole batch, and tells the speed and the machine."""
    setting = {"fused": True, "times": 2, "workers": 1, "precision": "bf16"}
    command = [sys.executable, BENCHMARKS / "experts_loop.py", tiny, "--seconds", "0.1"]
    done = subprocess.run(
        [*command, "--setting", json.dumps(setting)], stdout=subprocess.PIPE, check=True
    )
    measured = json.loads(done.stdout)
    assert measured["throughput"] > 0
    assert measured["windows"] >= 1
    assert measured["batch_size"] == 16
    assert measured["device"]


def test_each_result_is_written_down_at_once(scripts, tiny, tmp_path, monkeypatch, capsys):
    """A setting that fails is one of them, and the fastest is named."""
    good, bad = {"fused": True}, {"times": 3}
    monkeypatch.setattr(scripts.experts, "settings_for", lambda workload, kind: [bad, good])
    out = tmp_path / "experts.jsonl"
    arguments = ["experts.py", str(tiny), "--seconds", "0.1", "--limit", "300", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", arguments)
    scripts.experts.main()
    failed, measured = [json.loads(line) for line in out.read_text().splitlines()]
    assert failed["throughput"] is None
    assert "24 does not divide GLOBAL_BATCH_SIZE 32" in failed["error"]
    assert measured["throughput"] > 0
    assert measured["setting"] == good
    assert measured["workload"] == "tiny"
    assert "best" in capsys.readouterr().out.splitlines()[-2]


def test_a_setting_ends_at_its_limit(scripts, tmp_path):
    """The processes that it started end with it."""
    alive = tmp_path / "alive"
    script = f"sleep 2 && touch {alive} & sleep 60"
    assert scripts.experts.run_for(0.2, ["sh", "-c", script]) is None
    assert subprocess.run(["pgrep", "-f", str(alive)], check=False).returncode == 1


def test_warming_up_goes_on_while_something_compiles(scripts):
    """A step that takes far longer than those around it is one that compiled again."""
    steady = [9.0] + [0.25] * 10
    assert scripts.loop.is_warm(steady, elapsed_s=11.5)
    assert not scripts.loop.is_warm([*steady, 4.0, 0.25], elapsed_s=15.75)
    assert not scripts.loop.is_warm([9.0, 0.25], elapsed_s=9.25)
    assert scripts.loop.is_warm([9.0, 7.0, 0.1, 8.0, 0.1, 9.0], elapsed_s=33.2)


@pytest.mark.parametrize(
    ("text", "expected"), [("90", 90), ("90s", 90), ("2m", 120), ("1h", 3600)]
)
def test_durations_have_units(scripts, text, expected):
    """As those of the command have."""
    assert scripts.experts.seconds(text) == expected


def test_a_workload_that_is_not_there_is_refused(scripts):
    """The message names those of the zoo."""
    with pytest.raises(Exception, match=r"no file .*nowhere\.py; the zoo has causal_lm"):
        scripts.experts.workload_path("nowhere")
