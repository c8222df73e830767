import ast
import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from autotune.search_space.plan import Plan
from autotune.trials.applying.apply import build_step
from autotune.trials.applying.blocks import find_blocks
from autotune.trials.workload import load_workload

REPOSITORY = Path(__file__).parents[2]
EXAMPLES = sorted((REPOSITORY / "examples").glob("*.py"))
# The loss of a guess: even odds over 256 bytes, or over ten digits.
GUESS = {
    **dict.fromkeys(("gpt", "gpt_350m", "gpt_1b3"), math.log(256)),
    **dict.fromkeys(("digits_cnn", "deep_mlp"), math.log(10)),
}

every_example = pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)


def test_these_are_all():
    """The examples that the docs name are all there is."""
    assert {path.stem for path in EXAMPLES} == set(GUESS)


@every_example
def test_an_example_is_a_users_file(path):
    """Examples import nothing from autotune and build everything from what they import."""
    tree = ast.parse(path.read_text())
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.name for node in nodes for alias in node.names}
    modules = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    assert not [name for name in names | modules if name.startswith("autotune")]


@every_example
def test_an_example_learns(path):
    """Under its baseline plan each example trains: soon it does better than guessing."""
    workload = load_workload(path)
    plan = Plan.of({"batch_size": 16, "workers": 0, "threads": 1})
    with build_step(workload, plan, torch.device("cpu"), seed=0) as step:
        losses = [float(step(batch)) for batch in take(step.loader, 40)]
        score = workload.evaluate(step.model)
    assert sum(losses[-5:]) / 5 < min(losses[0], GUESS[path.stem])
    assert math.isfinite(score)
    assert step.model.training


def take(loader, count):
    while True:
        for batch in loader:
            if count == 0:
                return
            count -= 1
            yield batch


@pytest.mark.parametrize(("name", "count"), [("gpt", 4), ("deep_mlp", 17), ("digits_cnn", 0)])
def test_repeated_blocks_are_found(name, count):
    """Block-wise knobs apply to the transformer and the deep network, not to the small CNN."""
    workload = load_workload(REPOSITORY / "examples" / f"{name}.py")
    assert len(find_blocks(workload.model({}), workload)) == count


@pytest.mark.parametrize(
    ("name", "millions", "batch_size"),
    [("gpt", 124, 16), ("gpt_350m", 355, 16), ("gpt_1b3", 1314, 8)],
)
def test_gpts_have_their_size_on_a_gpu(monkeypatch, name, millions, batch_size):
    """Where there is a GPU the models have the parameters that they are named for."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.syspath_prepend(REPOSITORY / "examples")
    monkeypatch.delitem(sys.modules, "gpt", raising=False)
    spec = importlib.util.spec_from_file_location("on_gpu", REPOSITORY / f"examples/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with torch.device("meta"):
        model = module.build_model()
    assert round(sum(p.numel() for p in model.parameters()) / 1e6) == millions
    sizes = vars(module)
    assert sizes["BATCH_SIZE"] == batch_size
    assert sizes["TOKENS_PER_SAMPLE"] == 1024


def test_digits_are_augmented_anew_at_each_read():
    """Reading a sample twice gives two different images: the work is done in the loader."""
    dataset = load_workload(REPOSITORY / "examples/digits_cnn.py").build_dataset()
    (first, label), (second, same_label) = dataset[7], dataset[7]
    assert not torch.equal(first, second)
    assert label == same_label


def test_the_hand_written_loop_runs_a_plan_file(tmp_path):
    """The loop that measurements are held against reads a plan file and gives a speed."""
    plan = tmp_path / "plan.yaml"
    plan.write_text("plan: {batch_size: 4, threads: 1, workers: 1, optimizer_impl: fused}\n")
    script = REPOSITORY / "benchmarks" / "handwritten" / "deep_mlp.py"
    options = ["--plan", str(plan), "--warm-up-s", "0", "--seconds", "0.1"]
    done = subprocess.run(
        [sys.executable, "-W", "error", script, *options],
        capture_output=True,
        text=True,
        check=True,
    )
    report = json.loads(done.stdout)
    assert report["samples_per_s"] > 0
    assert report["settings"]["optimizer_impl"] == "fused"
