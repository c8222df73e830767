"""`autotune run -- COMMAND`: a training script as it is, from the command line to its plan."""

import sys

import pytest

from autotune.export.plan_file import load_plan_file
from tests.trials.command.conftest import SCRIPT


@pytest.fixture
def script(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    return (sys.executable, "train.py")


@pytest.mark.usefixtures("quick_trials")
def test_run_tunes_a_command_and_says_how_to_train_with_its_plan(type_command, script, tmp_path):
    options = ("--budget", "90s", "--trials", "1", "--knobs", "optimizer_impl,threads")
    status, out, err = type_command("autotune", "run", *options, "--", *script)
    assert status == 0, err
    assert f"autotune exec --plan plan.yaml -- {sys.executable} train.py" in out
    written = load_plan_file(tmp_path / "plan.yaml")
    assert written.command.argv == script
    assert written.command.flag_of("batch_size") == "--batch-size"
    assert written.baseline_figures.throughput > 0
    assert not (tmp_path / "last.pt").exists()
    _, shown, _ = type_command("autotune", "show", "last")
    assert f"{sys.executable} train.py" in shown


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("run",), "give your model.py, or `-- COMMAND`"),
        (("run", "train.py"), "`autotune run -- python train.py`"),
        (("run", "--bind", "batch=3", "--", "python", "train.py"), "KNOB=ARGUMENT"),
        (("run", "--bind", "batch_size=-b", "model.py"), "are for `-- COMMAND`"),
        (("space", "--", "/no/such/program"), "cannot run '/no/such/program'"),
        (("diagnose", "--", "python", "train.py"), "needs a model.py with functions"),
        (("exec", "--plan", "plan.yaml", "--", "/no/such/program"), "cannot run"),
    ],
)
@pytest.mark.usefixtures("quick_trials", "script")
def test_what_cannot_be_tuned_is_told_in_words(type_command, tmp_path, words, told):
    (tmp_path / "plan.yaml").write_text("plan: {workers: 1}\n")
    status, _, err = type_command("autotune", *words)
    assert status not in (0, None)
    assert told in err
    assert "Traceback" not in err


@pytest.mark.usefixtures("quick_trials")
def test_words_behind_a_model_are_its_arguments(type_command, tmp_path):
    """They are in `sys.argv` of the process that looks at it."""
    (tmp_path / "model.py").write_text(
        "import sys\nraise SystemExit(f'seen {sys.argv[1:]} by build_model')\n"
    )
    _, _, err = type_command("autotune", "space", "model.py", "--", "--size", "3")
    assert "seen ['--size', '3']" in err
