"""Loops of other kinds than a DataLoader, a module and an optimizer: what may vary, and counts."""

import os
import re
import subprocess
import sys

import pytest
import yaml

from autotune.trials.request import Protocol
from autotune.trials.result import Outcome

MODEL = "import torch\nfrom torch import nn\nmodel = nn.Linear(4, 1)\n"
OPTIMIZER = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
STEP = "    loss.backward()\n    optimizer.step()\n    optimizer.zero_grad()\n"
LOADER = (
    "from torch.utils.data import DataLoader, TensorDataset\n"
    "points = TensorDataset(torch.randn(400, 4))\n"
    "train = DataLoader(points, batch_size=8, shuffle=True)\n"
    "valid = DataLoader(points, batch_size=8)\n"
)


@pytest.fixture
def write(home):
    """Replace the user's script."""

    def written(*parts: str) -> None:
        (home / "train.py").write_text("".join(parts))

    return written


def test_weights_changed_without_an_optimizer_are_trained(observe, trial, write):
    """Each backward pass is a step, and the plan reaches the model."""
    loop = (
        "while True:\n"
        "    loss = model(torch.randn(6, 4)).mean()\n"
        "    model.zero_grad()\n    loss.backward()\n"
        "    with torch.no_grad():\n"
        "        for p in model.parameters(): p -= 0.1 * p.grad\n"
    )
    write(MODEL, loop)
    facts = observe("train.py")
    assert facts.batch_size == 6
    assert "by itself" in dict(facts.held)["optimizer_impl"]
    assert any("each backward pass" in remark for remark in facts.remarks)
    measured = trial("train.py", plan={"precision": "bf16"}).measurement
    assert all(w.samples == 6 * w.steps for w in measured.windows)


def test_passes_before_the_optimizer_is_made_are_not_the_training(observe, write):
    first = (
        "model = nn.LazyLinear(1)\n"
        "for _ in range(5):\n    model(torch.randn(3, 4)).mean().backward()\n"
    )
    loop = "while True:\n    loss = model(torch.randn(6, 4)).mean()\n"
    write(MODEL, first, OPTIMIZER, loop, STEP)
    facts = observe("train.py")
    assert facts.optimizer_class == "SGD"


def test_training_without_modules_is_measured(observe, trial, write):
    """Only what needs no module may vary; each step counts as a sample."""
    write(
        "import torch\nweight = torch.randn(64, 4, requires_grad=True)\n"
        "optimizer = torch.optim.Adam([weight])\n"
        "while True:\n    loss = (torch.randn(8, 64) @ weight).square().mean()\n",
        STEP,
    )
    facts = observe("train.py")
    held = dict(facts.held)
    assert "calls no module" in held["precision"]
    assert "optimizer_impl" not in held
    assert (facts.batch_size, facts.num_parameters) == (1, 256)
    measured = trial("train.py", plan={"optimizer_impl": "fused"}).measurement
    assert all(w.samples == w.steps for w in measured.windows)
    compared = trial("train.py", plan={"optimizer_impl": "fused"}, compare_with={})
    assert "calls no module" in compared.numerics.unchecked


def test_batch_that_no_argument_sets_is_set_in_the_loader(observe, trial, write, capfd):
    """Only in those that are made as the training's; the rest of the script sees it, too."""
    loop = (
        "print('lengths', len(train), len(valid), flush=True)\n"
        "while True:\n    for (x,) in train:\n        loss = model(x).mean()\n"
    )
    write(MODEL, LOADER, OPTIMIZER, loop, STEP.replace("    ", "        "))
    facts = observe("train.py")
    flag = facts.command.flag_of("batch_size")
    assert flag == "DataLoader(batch_size=8, sampler=RandomSampler)"
    assert facts.fixed_batches is False
    assert any(flag in remark for remark in facts.remarks)
    measured = trial(
        "train.py", plan={"batch_size": 20}, bindings=[("batch_size", flag)]
    ).measurement
    assert {w.samples / w.steps for w in measured.windows} == {20}
    assert "lengths 20 50" in capfd.readouterr().out


def test_exec_tells_of_the_batch_and_that_it_has_no_loader(home, write, tmp_path):
    loop = "for (x,) in valid:\n    loss = model(x).mean()\n"
    write(MODEL, LOADER, OPTIMIZER, loop, STEP)
    binding = {"batch_size": "DataLoader(batch_size=12, sampler=RandomSampler)"}
    workload = {"command": ["python", "train.py"], "bindings": binding, "output_flags": []}
    plan = {"plan": {"batch_size": 32}, "workload": workload}
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan))
    command = [sys.executable, "-m", "autotune.cli.main", "exec", "--plan", "plan.yaml", "--"]
    done = subprocess.run(
        [*command, sys.executable, "train.py"],
        cwd=home,
        capture_output=True,
        text=True,
        check=True,
        env=os.environ,
    )
    assert "gives batches of 32 to the script's DataLoader(batch_size=12" in done.stderr
    assert "batch_size=32 is not in effect" in done.stderr


def test_batches_with_samples_in_the_second_dimension_are_counted(observe, trial, write):
    write(
        MODEL,
        "import argparse\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--batch_size', type=int, default=6)\nargs = parser.parse_args()\n",
        OPTIMIZER,
        "while True:\n    loss = model(torch.randn(35, args.batch_size, 4)).mean()\n",
        STEP,
    )
    facts = observe("train.py")
    assert facts.batch_size == 6
    bindings = [("batch_size", facts.command.flag_of("batch_size"))]
    measured = trial("train.py", plan={"batch_size": 12}, bindings=bindings).measurement
    assert {w.samples / w.steps for w in measured.windows} == {12}


def test_samples_of_loaders_that_are_read_in_turn_count_once(observe, trial, write):
    """They are those of the first; a batch that is set in one loader alone is not offered."""
    loop = (
        "other = DataLoader(points, batch_size=4, shuffle=True)\n"
        "while True:\n    for (x,), (y,) in zip(train, other):\n"
        "        loss = model(torch.cat([x, y])).mean()\n"
    )
    write(MODEL, LOADER, OPTIMIZER, loop, STEP.replace("    ", "        "))
    facts = observe("train.py")
    assert facts.batch_size == 8
    assert "several DataLoaders" in dict(facts.held)["batch_size"]
    measured = trial("train.py").measurement
    assert {w.samples / w.steps for w in measured.windows} == {8}


def test_argument_is_known_in_processes_that_the_script_starts(observe, write):
    write(
        "import argparse\nimport torch.multiprocessing as mp\n",
        MODEL,
        "def work(rank, size):\n",
        *(f"    {line}\n" for line in OPTIMIZER.splitlines()),
        "    while True:\n        loss = model(torch.randn(size, 4)).mean()\n",
        STEP.replace("    ", "        "),
        "if __name__ == '__main__':\n    parser = argparse.ArgumentParser()\n"
        "    parser.add_argument('--batch-size', type=int, default=6)\n"
        "    mp.spawn(work, (parser.parse_args().batch_size,))\n",
    )
    assert observe("train.py").command.flag_of("batch_size") == "--batch-size"


def test_passes_of_two_optimizers_are_no_accumulation(observe, write):
    """Neither are those that an optimizer asks for in its step."""
    loop = (
        "other = nn.Linear(4, 1)\nsecond = torch.optim.SGD(other.parameters(), lr=0.1)\n"
        "while True:\n    for (x,) in train:\n"
        "        other(x).mean().backward()\n        other(-x).mean().backward()\n"
        "        second.step()\n        loss = model(x).mean()\n"
    )
    write(MODEL, LOADER, OPTIMIZER, loop, STEP.replace("    ", "        "))
    assert not any("accumulates" in remark for remark in observe("train.py").remarks)
    closure = (
        "optimizer = torch.optim.LBFGS(model.parameters())\nx = torch.randn(8, 4)\n"
        "def closure():\n    optimizer.zero_grad()\n    loss = model(x).square().mean()\n"
        "    loss.backward()\n    return loss\n"
        "while True:\n    optimizer.step(closure)\n"
    )
    write(MODEL, closure)
    facts = observe("train.py")
    assert facts.batch_size == 8
    assert not any(re.search("accumulates", remark) for remark in facts.remarks)


BLOCKS = (
    "class Block(nn.Module):\n"
    "    def __init__(self):\n        super().__init__()\n        self.inner = nn.Linear(4, 4)\n"
    "    def forward(self, x):\n        return x + self.inner(x).relu()\n"
    "blocks = nn.Sequential(*[Block() for _ in range({number})])\n"
    "optimizer = torch.optim.SGD([*model.parameters(), *blocks.parameters()], lr=0.1)\n"
    "while True:\n    loss = model(blocks(torch.randn(6, 4))).square().mean()\n"
)


@pytest.mark.parametrize("number", [3, 1])
def test_one_of_two_models_has_blocks(number, trial, write):
    """The other is compiled as a whole; where none has any, a plan for blocks is refused."""
    write(MODEL, BLOCKS.format(number=number), STEP)
    plan = {"compile_mode": "default", "compile_scope": "block"}
    result = trial("train.py", plan=plan | {"activation_checkpointing": "full"})
    if number == 3:
        assert result.outcome is Outcome.OK, result.error
    else:
        assert result.outcome is Outcome.INVALID
        assert "needs repeated blocks, and the model has none" in (result.error or "")


def test_script_that_ends_while_it_is_measured_has_a_result(trial, write):
    """It comes from the windows until then."""
    loop = (
        "import time\nfor step in range(120):\n    time.sleep(0.01)\n"
        "    loss = model(torch.randn(6, 4)).mean()\n"
    )
    write(MODEL, OPTIMIZER, loop, STEP)
    protocol = Protocol(window_s=0.05, min_windows=1000, max_measure_s=30.0, max_warm_up_s=0.2)
    result = trial("train.py", protocol=protocol)
    assert result.outcome is Outcome.OK, result.error
    assert len(result.measurement.windows) < protocol.min_windows


def test_cross_entropy_of_probabilities_is_computed_in_fp32(trial, write, capfd):
    """CUDA refuses to compute it under autocast."""
    noted = (
        "from torch.overrides import TorchFunctionMode\n"
        "class Noted(TorchFunctionMode):\n"
        "    def __torch_function__(self, function, types, args=(), kwargs=None):\n"
        "        if function.__name__ == 'binary_cross_entropy':\n"
        "            print('entropy', args[0].dtype, torch.is_autocast_enabled('cpu'))\n"
        "        return function(*args, **(kwargs or {}))\n"
    )
    loop = (
        "loss_of = nn.BCELoss()\n"
        "while True:\n    output = model(torch.randn(6, 4)).sigmoid()\n"
        "    with Noted():\n        loss = loss_of(output, torch.ones_like(output))\n"
    )
    write(noted, MODEL, OPTIMIZER, loop, STEP)
    assert trial("train.py", plan={"precision": "bf16"}).outcome is Outcome.OK
    assert set(re.findall(r"entropy .*", capfd.readouterr().out)) == {
        "entropy torch.float32 False"
    }


def test_calls_of_a_model_that_the_script_compiles_are_counted_outside(
    observe, trial, write, capfd
):
    """A count inside would be a guard, and compile the model anew in each step."""
    loop = (
        "model = torch.compile(model, backend='eager')\nstep = 0\n"
        "while True:\n    loss = model(torch.randn(6, 4)).mean()\n    step += 1\n"
        "    if step == 5:\n        from torch._dynamo.utils import counters\n"
        "        print('graphs', counters['stats']['unique_graphs'], flush=True)\n"
    )
    write(MODEL, OPTIMIZER, loop, STEP)
    assert observe("train.py").batch_size == 6
    capfd.readouterr()
    measured = trial("train.py").measurement
    assert all(w.samples == 6 * w.steps for w in measured.windows)
    assert "graphs 1" in capfd.readouterr().out
