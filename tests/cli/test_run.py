"""`autotune run`, from the command line to the plan file, and what it says to bad input."""

import json
import os
import subprocess
import sys
import time
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from autotune.agent import session
from autotune.agent.objectives.least_memory import LeastMemory
from autotune.agent.objectives.throughput import FASTEST
from autotune.agent.objectives.time_to_quality import TimeToQuality
from autotune.agent.objectives.time_to_train import TimeToTrain
from autotune.agent.spaces import this_machine
from autotune.cli.main import main
from autotune.errors import InterruptedRunError
from autotune.export.plan_file import load_plan_file
from autotune.storage.driver import this_driver
from autotune.storage.sql import open_store
from autotune.storage.testing import make_run
from tests.trials.conftest import TINY

REPOSITORY = Path(__file__).parents[2]
INDIVISIBLE = "\nBATCH_SIZE = 24\nGLOBAL_BATCH_SIZE = 64\n"
# Sleeping takes the same time on a busy machine, and far longer than all that does not, so there
# is no doubt which is faster.
PAUSING = """
KNOBS = {"pause_s": [0.5, 0.1]}

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
PREPARING_S = 8.0
PREPARING = f"""
KNOBS = {{"prepared": [False, True]}}
BATCH_SIZE = 8

class Pause(nn.Module):
    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds
    def forward(self, x):
        time.sleep(self.seconds)
        return x

def build_model(prepared):
    time.sleep({PREPARING_S} if prepared else 0.0)
    return nn.Sequential(Block(), Pause(0.01 if prepared else 0.1), nn.Linear(16, 3))
"""


def typed_for_real(folder, *options):
    """Run `autotune run model.py` in a process of its own, with brief trials."""
    return subprocess.run(
        [sys.executable, "-m", "tests.brief_trials", "run", "model.py", *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def autotune(tmp_path, type_command, quick_trials):
    """Type `autotune` and more beside a small `model.py`; give status, stdout and stderr."""
    (tmp_path / "model.py").write_text(TINY)
    return partial(type_command, "autotune")


COMMAND_LINES = {
    "missing_file": (["run", "none.py"], 3, "there is no file"),
    "budget_word": (["run", "model.py", "--budget", "soon"], 2, "write it like 90s, 15m or 1h30m"),
    "budget_zero": (["run", "model.py", "--budget", "0"], 2, "too short"),
    "fix_no_value": (["run", "model.py", "--fix", "precision"], 2, "has no value"),
    "numerics": (["run", "model.py", "--numerics", "loose"], 2, "exact, rounding, precision"),
    "memory": (["run", "model.py", "--max-memory", "much"], 2, "write it like 40GiB"),
    "devices": (["run", "model.py", "--gpus-per-trial", "0"], 2, "--gpus-per-trial"),
    "storage": (["run", "model.py", "--storage", "no/such/folder/a.db"], 5, "no/such/folder"),
    "out": (["run", "model.py", "--out", "no/such/folder/p.yaml"], 2, "no/such/folder"),
    "option": (["run", "model.py", "--bugdet", "60s"], 2, "--bugdet"),
    "objective": (["run", "model.py", "--objective", "fast"], 2, "'time-to-train', 'memory'"),
    "no_samples": (
        ["run", "model.py", "--objective", "time-to-train"],
        2,
        "for example --train-samples 10M",
    ),
    "lone_samples": (
        ["run", "model.py", "--train-samples", "10M"],
        2,
        "add --objective time-to-train, or leave the option out",
    ),
    "other_samples": (
        ["run", "model.py", "--objective=memory", "--min-throughput=9", "--train-samples=10M"],
        2,
        "--train-samples 10M has no meaning with --objective memory",
    ),
    "zero_samples": (
        ["run", "model.py", "--objective=time-to-train", "--train-samples=0"],
        2,
        "--train-samples '0' is no positive number",
    ),
    "some_samples": (
        ["run", "model.py", "--objective=time-to-train", "--train-samples=many"],
        2,
        "write it like 50000, 50k or 10M",
    ),
    "no_target": (["run", "model.py", "--objective", "time-to-quality"], 2, "add it, for example"),
    "lone_target": (
        ["run", "model.py", "--target", "0.9"],
        2,
        "add --objective time-to-quality, or leave the option out",
    ),
    "target_of_two": (
        ["run", "model.py", "--objective=time-to-quality", "--target=1", "--train-samples=10M"],
        2,
        "--train-samples 10M has no meaning with --objective time-to-quality",
    ),
    "no_least": (["run", "model.py", "--objective", "memory"], 2, "like --min-throughput 250"),
    "lone_least": (
        ["run", "model.py", "--min-throughput", "90%"],
        2,
        "add --objective memory, or leave the option out",
    ),
    "zero_least": (
        ["run", "model.py", "--objective=memory", "--min-throughput=0"],
        2,
        "--min-throughput '0' is no positive throughput",
    ),
    "negative_least": (
        ["run", "model.py", "--objective=memory", "--min-throughput=-5%"],
        2,
        "a share of the baseline's like 90%",
    ),
    "word_least": (
        ["run", "model.py", "--objective=memory", "--min-throughput=nan"],
        2,
        "--min-throughput 'nan' is no positive throughput",
    ),
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


def test_a_run_says_its_first_word_before_anything_is_imported(tmp_path):
    """Imports take a second; help and other commands have no such word."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}

    def typed(*words):
        command = [sys.executable, "-X", "importtime", "-m", "autotune", *words]
        ran = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        return ran.stderr

    before, word, _ = typed("run", "none.py").partition("autotune run: starting\n")
    assert word
    assert "typer" not in before
    assert "autotune run: starting" not in typed("run", "--help")
    assert "autotune run: starting" not in typed("runs")


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


ASKED = {
    "throughput": ([], FASTEST),
    "10M": (["--objective=time-to-train", "--train-samples=10M"], TimeToTrain(samples=10**7)),
    "1.5B": (
        ["--objective=time-to-train", "--train-samples=1.5B"],
        TimeToTrain(samples=1_500_000_000),
    ),
    "50_000": (
        ["--objective=time-to-train", "--train-samples=50_000"],
        TimeToTrain(samples=50_000),
    ),
    "250.5": (
        ["--objective=memory", "--min-throughput=250.5"],
        LeastMemory(min_throughput=250.5),
    ),
    "0.9": (["--objective=time-to-quality", "--target=0.9"], TimeToQuality(target=0.9)),
    "90%": (["--objective=memory", "--min-throughput=90%"], LeastMemory(min_share=0.9)),
}


@pytest.mark.parametrize("case", ASKED)
def test_what_is_looked_for_is_understood(case, autotune, asked):
    """Numbers as people write them, and a part of the baseline's throughput."""
    options, objective = ASKED[case]
    autotune("run", "model.py", *options)
    assert asked[0].objective == objective


def test_a_dry_run_says_what_is_looked_for(autotune):
    """In words, and as JSON in the words of the options."""
    options = ["--objective", "time-to-train", "--train-samples", "2M", "--dry-run"]
    status, out, err = autotune("run", "model.py", *options)
    assert status == 0, err
    assert "would look for the least time to train on 2M samples" in out
    document = json.loads(autotune("run", "model.py", *options, "--json")[1])
    assert document["objective"] == {"name": "time-to-train", "train_samples": 2_000_000}


def test_a_faster_plan_that_starts_too_late_keeps_the_baseline(autotune, tmp_path):
    """Real trials: for few samples a long start-up is not worth five times the speed."""
    (tmp_path / "model.py").write_text(TINY + PREPARING)
    options = ["--objective=time-to-train", "--train-samples=40", "--knobs=prepared"]
    done = typed_for_real(tmp_path, *options, "--budget", "3m", "--json")
    assert done.returncode == 0, done.stderr
    assert "looking for the least time to train on 40 samples" in done.stderr
    run = json.loads(done.stdout)
    assert run["objective"] == {"name": "time-to-train", "train_samples": 40}
    trials = json.loads(autotune("trials", "last", "--json")[1])
    speeds = {t["plan"]["prepared"]: t["measurement"]["throughput"] for t in trials}
    assert speeds[True] > 2 * speeds[False]
    winner = run["winner"]
    assert winner["kept_baseline"]
    assert winner["plan"]["prepared"] is False
    assert winner["train_s"] == winner["baseline_train_s"] < PREPARING_S
    written = load_plan_file(tmp_path / "plan.yaml")
    assert written.objective == run["objective"]
    assert written.own.train_s == pytest.approx(winner["train_s"])
    assert "40 samples" in autotune("show", "last")[1]


# As good as the number of steps it took, so that a faster plan is good sooner.
COUNTING = (
    PAUSING
    + """
class Counted(nn.Linear):
    def __init__(self):
        super().__init__(16, 3)
        self.register_buffer("steps", torch.zeros(()))
    def forward(self, x):
        self.steps += self.training
        return super().forward(x)

def build_model(pause_s):
    return nn.Sequential(Block(), Pause(pause_s), Counted())

def evaluate(model):
    return model[2].steps.item() / 20
"""
)


def test_the_plan_that_reaches_a_target_first_wins(autotune, tmp_path):
    """Real trainings: twenty steps, with a plan whose steps take a fifth of the baseline's."""
    (tmp_path / "model.py").write_text(TINY + COUNTING)
    options = ["--objective=time-to-quality", "--target=1", "--knobs=pause_s", "--seed=3"]
    done = typed_for_real(tmp_path, *options, "--budget", "3m", "--json")
    assert done.returncode == 0, done.stderr
    assert "54.0 s of it to train the fastest plans to that" in done.stderr
    assert "trained to the target" in done.stderr
    run = json.loads(done.stdout)
    assert run["objective"] == {"name": "time-to-quality", "target": 1.0}
    winner = run["winner"]
    assert winner["plan"]["pause_s"] == 0.1
    assert 1.0 < winner["train_s"] < winner["baseline_train_s"]
    assert run["verdict"]["reached_s"] == winner["train_s"]
    (account,) = [line for line in winner["remarks"] if line.startswith("training time until")]
    assert "one training each with seed 3: pause_s=0.1: " in account
    written = load_plan_file(tmp_path / "plan.yaml")
    assert written.own.train_s == pytest.approx(winner["train_s"])
    assert written.objective == run["objective"]
    trials = json.loads(autotune("trials", "last", "--json")[1])
    curves = [trial["quality"] for trial in trials if trial["purpose"] == "quality"]
    assert [curve["reached_s"] for curve in curves] == [
        winner["train_s"],
        winner["baseline_train_s"],
    ]
    number = str(trials[-1]["number"])
    assert "evaluate(model) reached 1 after" in autotune("show", "last", number)[1]
    assert "to the target" in autotune("show", "last")[1]


def test_a_target_needs_something_to_evaluate(autotune):
    """Nothing is run without it."""
    status, _, err = autotune(
        "run", "model.py", "--objective=time-to-quality", "--target=0.9", "--budget=60s"
    )
    assert status == 2
    assert "--target 0.9 needs evaluate(model), and model.py defines none" in err


def test_a_run_ends_with_a_confirmed_plan_that_can_be_used(autotune, tmp_path):
    """One JSON document on stdout, trials in the store, and a plan file that loads."""
    (tmp_path / "model.py").write_text(TINY + PAUSING)
    hardware = this_machine(1).to_dict()
    with closing(open_store(str(tmp_path / "autotune.db"))) as store:
        other = store.create_run(make_run(driver=this_driver(), hardware=hardware))
    # Two minutes left after the search are enough to diagnose the winner, too.
    options = ["--knobs", "pause_s", "--budget", "240s", "--json"]
    done = typed_for_real(tmp_path, *options)
    assert done.returncode == 0, done.stderr
    assert f"{other.name} of model.py goes on here, too" in done.stderr
    run = json.loads(done.stdout)
    assert run["state"] == "done"
    winner = run["winner"]
    found = (winner["plan"]["pause_s"], winner["confirmed"])
    assert found == (0.1, True), (done.stderr, winner["how"], winner["remarks"])
    assert winner["speedup_low"] > 1.0
    assert load_plan_file(tmp_path / "plan.yaml").user_knobs == {"pause_s": 0.1}
    assert "ok             your own configuration" in done.stderr
    assert run["verdict"]["word"] == "CONFIRMED"
    assert run["why"]["shares"][0]["settings"] == {"pause_s": 0.1}
    assert json.loads(autotune("trials", "last", "--json")[1])
    diagnoses = json.loads(autotune("show", "last", "--json")[1])["diagnoses"]
    # Sleeping in forward keeps the host from starting the next operator.
    assert diagnoses["baseline"]["bound"] == "launches"
    assert diagnoses["winner"]["shares"]["forward"] > 0
    assert autotune("export", "last", "-o", "plan.toml")[0] == 0
