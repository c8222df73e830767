"""`autotune run`, from the command line to the plan file, and what it says to bad input."""

import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from autotune.agent import session
from autotune.cli.main import main
from autotune.errors import InterruptedRunError
from autotune.export.plan_file import load_plan_file
from tests.trials.conftest import TINY

REPOSITORY = Path(__file__).parents[2]
INDIVISIBLE = "\nBATCH_SIZE = 24\nGLOBAL_BATCH_SIZE = 64\n"
# Sleeping takes the same time on a busy machine, so there is no doubt which is faster.
PAUSING = """
KNOBS = {"pause_s": [0.05, 0.01]}

class Pause(nn.Module):
    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds
    def forward(self, x):
        time.sleep(self.seconds)
        return x

def build_model(pause_s):
    return nn.Sequential(Block(), Pause(pause_s), nn.Linear(16, 3))
"""


@pytest.fixture
def autotune(tmp_path, type_command):
    """Type `autotune` and more beside a small `model.py`; give status, stdout and stderr."""
    (tmp_path / "model.py").write_text(TINY)
    return partial(type_command, "autotune")


COMMAND_LINES = {
    "missing_file": (["run", "none.py"], 3, "there is no file"),
    "budget_word": (["run", "model.py", "--budget", "soon"], 2, "write it like 90s, 15m or 1h30m"),
    "budget_zero": (["run", "model.py", "--budget", "0"], 2, "too short"),
    "fix_no_value": (["run", "model.py", "--fix", "precision"], 2, "names no value"),
    "numerics": (["run", "model.py", "--numerics", "loose"], 2, "exact, rounding, precision"),
    "memory": (["run", "model.py", "--max-memory", "much"], 2, "write it like 40GiB"),
    "devices": (["run", "model.py", "--gpus-per-trial", "0"], 2, "--gpus-per-trial"),
    "storage": (["run", "model.py", "--storage", "no/such/folder/a.db"], 5, "no/such/folder"),
    "out": (["run", "model.py", "--out", "no/such/folder/p.yaml"], 2, "no/such/folder"),
    "option": (["run", "model.py", "--bugdet", "60s"], 2, "--bugdet"),
    "no_store": (["runs"], 5, "autotune run"),
}


@pytest.mark.parametrize("case", COMMAND_LINES)
def test_a_mistake_on_the_command_line_is_explained(case, autotune):
    """On stderr, with its exit code, and without a traceback; stdout stays empty."""
    words, status, message = COMMAND_LINES[case]
    got, out, err = autotune(*words)
    assert got == status
    assert message in err
    assert "Traceback" not in err
    assert out == ""


WORKLOADS = {
    "syntax": ("def build_model(:\n", [], 3, "SyntaxError"),
    "indivisible": (TINY + INDIVISIBLE, [], 3, "BATCH_SIZE=24 does not divide GLOBAL_BATCH_SIZE"),
    "unknown_knob": (TINY, ["--fix", "precison=bf16"], 2, "did you mean 'precision'?"),
    "dies": (TINY + "\nimport os\nos.abort()\n", [], 3, "signal 6"),
}


@pytest.mark.parametrize("case", WORKLOADS)
def test_a_mistake_in_the_workload_is_explained(case, autotune, tmp_path):
    """No frame of ours in it, and the user's own file where their code raised."""
    source, options, status, message = WORKLOADS[case]
    (tmp_path / "model.py").write_text(source)
    got, _, err = autotune("space", "model.py", *options)
    assert got == status
    assert message in err
    assert "autotune/trials" not in err


@pytest.fixture
def asked(monkeypatch):
    """Type `run` as usual, but only note what `tune` would be asked."""
    requests = []

    def note(request, make_observer, is_stopped):
        requests.append(request)
        raise InterruptedRunError("only noted")

    monkeypatch.setattr(session, "tune", note)
    return requests


def test_in_a_process_of_somebody_else_the_budget_counts_from_the_call(autotune, asked):
    """However old the process is, as a notebook's or a test's, none of the budget is gone."""
    before = time.monotonic()
    autotune("run", "model.py")
    assert before <= asked[0].started_at <= time.monotonic()


def test_the_command_counts_its_budget_from_the_start_of_its_process(autotune, asked, monkeypatch):
    """Whoever types the command waits for the imports as well."""
    before = time.monotonic()
    monkeypatch.setattr(sys, "argv", ["autotune", "run", "model.py"])
    with pytest.raises(SystemExit):
        main()
    assert asked[0].started_at < before


def test_a_run_ends_with_a_confirmed_plan_that_can_be_used(autotune, tmp_path):
    """One JSON document on stdout, trials in the store, and a plan file that loads."""
    (tmp_path / "model.py").write_text(TINY + PAUSING)
    options = ["--knobs", "pause_s", "--budget", "6m", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "autotune", "run", "model.py", *options],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout)
    assert run["state"] == "done"
    winner = run["winner"]
    assert (winner["plan"]["pause_s"], winner["confirmed"]) == (0.01, True)
    assert winner["speedup_low"] > 1.0
    assert load_plan_file(tmp_path / "plan.yaml").user_knobs == {"pause_s": 0.01}
    assert "baseline" in done.stderr
    assert json.loads(autotune("trials", "last", "--json")[1])
    diagnoses = json.loads(autotune("show", "last", "--json")[1])["diagnoses"]
    # Sleeping in forward keeps the host from starting the next operator.
    assert diagnoses["baseline"]["bound"] == "launches"
    assert diagnoses["winner"]["shares"]["forward"] > 0
    assert autotune("export", "last", "-o", "plan.toml")[0] == 0
