"""The example scripts, unedited: what is seen in them, and that a plan reaches them."""

import sys
from pathlib import Path

import pytest

from autotune.search_space.command import Command
from autotune.search_space.facts import WorkloadFacts
from autotune.search_space.plan import Plan
from autotune.trials.command.launch import observe_command, run_command
from autotune.trials.request import ProbeRequest, TrialRequest
from autotune.trials.result import Outcome, Purpose
from tests.trials.command.conftest import CPU, SHORT

SCRIPTS = Path(__file__).parents[2] / "examples" / "scripts"
LAUNCH = ("-m", "accelerate.commands.launch", "--num_processes", "1", "--cpu")
COMMANDS = {
    "plain": (("plain.py", "--width", "32", "--layers", "2"), "--batch-size", "AdamW", 2),
    "hf_trainer": (
        ("hf_trainer.py", "--n_embd", "32", "--n_positions", "32", "--vocab_size", "64"),
        "--per_device_train_batch_size",
        "AdamW",
        4,
    ),
    "lightning": (("lightning_digits.py",), "--batch_size", "Adam", 0),
    "accelerate": (
        (*LAUNCH, "accelerate_mlp.py", "--width", "32", "--gradient_accumulation_steps", "2"),
        "--batch_size",
        "AdamW",
        6,
    ),
}


@pytest.mark.parametrize(("words", "flag", "optimizer", "blocks"), COMMANDS.values(), ids=COMMANDS)
def test_script_is_seen_and_takes_a_plan(words, flag, optimizer, blocks, tmp_path):
    argv = tuple(str(SCRIPTS / word) if word.endswith(".py") else word for word in words)
    request = {"workload_path": str(tmp_path / "script.py"), "working_dir": str(tmp_path)}
    command = Command(argv=(sys.executable, *argv))
    (facts,) = observe_command(ProbeRequest(**request, hardware=CPU, command=command))
    assert isinstance(facts, WorkloadFacts), facts
    assert facts.command.flag_of("batch_size") == flag
    assert (facts.optimizer_class, facts.num_blocks) == (optimizer, blocks)
    plan = {"precision": "bf16", "workers": 1, "optimizer_impl": "foreach"}
    plan |= {"batch_size": 4 * facts.batch_size}
    if facts.command.flag_of("accumulation"):
        plan |= {"batch_size": 2 * facts.batch_size, "accumulation": 1}
    *_, result = run_command(
        TrialRequest(
            **request,
            number=1,
            plan=Plan.of(plan),
            purpose=Purpose.MEASURE,
            device_kind="cpu",
            protocol=SHORT,
            command=facts.command,
        )
    )
    assert result.outcome is Outcome.OK, result.traceback
    per_step = {w.samples / w.steps for w in result.measurement.windows}
    assert max(per_step) <= plan["batch_size"]
    assert list(tmp_path.iterdir()) == []
