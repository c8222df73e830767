"""A run that a signal ends: what it writes, and its exit code."""

import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autotune.agent import session
from autotune.agent.request import EndedRun
from autotune.cli.stopping import stop_on_signals
from autotune.errors import InterruptedRunError, StoreError
from autotune.export.plan_file import load_plan_file
from autotune.storage.sql import open_store
from tests.trials.conftest import TINY

REPOSITORY = Path(__file__).parents[2]
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ONE_TRIAL = "\nKNOBS = {'pause_s': [0.02, 0.01]}\n" + TINY.replace(
    "def build_model():", "def build_model(pause_s):\n    time.sleep(pause_s)"
)
COMMAND = [sys.executable, "-m", "tests.brief_trials", "run", "model.py", "--budget", "5m"]


@pytest.fixture(autouse=True)
def _no_nohup():
    """Let SIGHUP end programs, also where the tests were started by nohup."""
    users = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, users)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_before_the_first_trial_ends_the_run_at_once(number):
    """It interrupts whatever the run waits for, and says what follows."""
    said = []
    with (  # noqa: PT012  the signal comes while something is waited for
        pytest.raises(InterruptedRunError, match="no plan was written; the same command goes on"),
        stop_on_signals(said.append),
    ):
        os.kill(os.getpid(), number)
        time.sleep(60.0)
    assert len(said) == 1


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_during_trials_is_noted(number):
    """The run ends by itself then; another SIGTERM or SIGHUP changes nothing, Ctrl-C leaves."""
    said = []
    with pytest.raises(KeyboardInterrupt), stop_on_signals(said.append) as stop:  # noqa: PT012
        stop.begin()
        for again in (number, signal.SIGTERM, signal.SIGHUP):
            os.kill(os.getpid(), again)
        assert stop.is_set()
        assert len(said) == 1
        os.kill(os.getpid(), signal.SIGINT)


def test_handlers_are_given_back_and_nohup_is_respected():
    """Afterwards signals do what they did before, and an ignored SIGHUP stays ignored."""
    before = [signal.getsignal(number) for number in SIGNALS]
    users = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_on_signals(print) as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.is_set()
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, users)
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_a_run_whose_terminal_is_closed_writes_the_best_so_far(tmp_path):
    """Its exit code is 130, and nothing that it writes to the terminal then is an error."""
    (tmp_path / "model.py").write_text(ONE_TRIAL)
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "TERM": "xterm"}
        os.execve(sys.executable, COMMAND, environment)
    said = b""
    while b"trial 2" not in said:  # the baseline was measured
        said += os.read(terminal, 65536)
    os.close(terminal)
    status = os.waitpid(pid, 0)[1]
    assert os.waitstatus_to_exitcode(status) == 130
    assert not load_plan_file(tmp_path / "plan.yaml").confirmed


def test_sigterm_ends_a_run_with_the_best_so_far(tmp_path):
    """Also after Ray has connected, which takes the signal for itself and prints its stack."""
    (tmp_path / "model.py").write_text(ONE_TRIAL)
    with subprocess.Popen(
        COMMAND,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        lines = iter(process.stderr.readline, "")
        assert any("your own configuration" in line for line in lines)
        process.terminate()
        said = process.stderr.read()
    assert process.returncode == 130
    assert "stopping after SIGTERM\n" in said
    assert said.endswith(
        "autotune: interrupted: plan.yaml holds the best plan so far, not confirmed; the same "
        "command goes on with this run\n"
    )
    assert "***" not in said
    assert not load_plan_file(tmp_path / "plan.yaml").confirmed


@pytest.fixture
def failed(h200, monkeypatch, tmp_path):
    """Let every run be a recorded one whose store was removed at its end."""
    store = open_store(h200, read_only=True)
    run = next(run for run in store.runs() if run.winner is not None)
    trials = store.trials(run.id)
    store.close()
    ended = EndedRun(record=run, trials=trials, failure=StoreError("the store was removed"))

    def tune(*_):
        shutil.rmtree(tmp_path / "plans", ignore_errors=True)
        return ended

    monkeypatch.setattr(session, "tune", tune)
    (tmp_path / "model.py").write_text(TINY)


def test_what_a_failed_store_lacks_is_printed_and_in_the_plan_file(failed, type_command, tmp_path):
    """The error says where the result is, and the exit code is that of the store."""
    status, out, err = type_command("autotune", "run", "model.py")
    assert status == 5
    assert "autotune: the store was removed; plan.yaml holds the plan\n" in err
    assert load_plan_file(tmp_path / "plan.yaml").plan
    assert "samples/s" in out


def test_a_plan_file_that_cannot_be_written_either_is_told(failed, type_command, tmp_path):
    """Its folder was removed as well: what was found is printed at least."""
    (tmp_path / "plans").mkdir()
    status, out, err = type_command("autotune", "run", "model.py", "--out", "plans/plan.yaml")
    assert status == 5
    assert "the plan is printed above and nowhere else (cannot write plans/plan.yaml" in err
    assert "samples/s" in out
