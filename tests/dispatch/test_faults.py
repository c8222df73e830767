"""Every way in which a trial can end leaves an outcome, no process, and a free device."""

import os
from pathlib import Path

import pytest

from autotune.dispatch import trial_log
from autotune.dispatch.reaper import living_processes
from autotune.trials.cause import Cause
from autotune.trials.diagnosis import DiagnosisRequest
from autotune.trials.request import Deadlines
from autotune.trials.result import Outcome, Phase


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("segfault", "SIGSEGV"),
        ("abort", "SIGABRT"),
        ("exit", "status 3"),
        ("kill", "SIGKILL"),
    ],
)
def test_a_death_is_a_crash_with_its_cause(run_one, fault, words):
    """A process that ends early is a crash whose error says how and in which phase it ended."""
    result = run_one(fault)
    assert result.outcome is Outcome.CRASH
    assert words in str(result.error)
    assert result.phase is Phase.BUILD


def test_a_trial_runs_after_the_deaths(run_one):
    """The next trial is not harmed, and its durations are told apart from its overhead."""
    result = run_one("none", number=7)
    assert result.outcome is Outcome.OK
    assert result.log_tail == "trial 7 speaks\n"
    assert result.total_s is not None
    assert result.overhead_s is not None
    assert result.total_s - 0.01 < result.overhead_s < result.total_s


@pytest.mark.parametrize("fault", ["python_loop", "native_loop"])
def test_an_endless_loop_ends_at_the_deadline(run_one, fault):
    """A loop ends as a timeout with the phase and the seconds, also when it holds the GIL."""
    result = run_one(fault, deadlines=Deadlines(build_s=0.5))
    assert result.outcome is Outcome.TIMEOUT
    assert result.error == "phase build did not end within 0.5 s"
    assert fault in result.log_tail  # where it was, from its own stack
    assert result.overhead_s < result.total_s


def test_the_budget_ends_a_trial(run_one):
    """`give_up_after_s` cancels a trial in whatever phase it is."""
    result = run_one("python_loop", give_up_after_s=0.2)
    assert (result.outcome, result.cause) == (Outcome.CANCELLED, Cause.BUDGET_ENDED)
    assert result.error == "the budget ended"


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("segfault", "SIGSEGV"),
        ("python_loop", "phase diagnose did not end within 0.5 s"),
        ("none", None),
    ],
)
def test_a_diagnosis_that_fails_costs_no_measurement(run_one, fault, why):
    """What was measured stands, and the diagnosis says why there is none."""
    result = run_one(fault, diagnosis=DiagnosisRequest(), deadlines=Deadlines(diagnose_s=0.5))
    assert result.outcome is Outcome.OK
    assert result.measurement is not None
    assert result.overhead_s < result.total_s
    if why is None:
        assert result.diagnosis is None
    else:
        assert why in result.diagnosis.unknown["everything"]


def test_a_diagnosis_that_the_budget_ends_costs_no_measurement(run_one):
    """A trial that was measured before its time was over is measured."""
    result = run_one("python_loop", diagnosis=DiagnosisRequest(), give_up_after_s=2.0)
    assert result.outcome is Outcome.OK
    assert "the budget ended" in result.diagnosis.unknown["everything"]


def kill_what_starts_trials(runner):
    process = runner._cluster._server._process
    process.kill()
    process.wait()


def test_trials_start_after_what_starts_them_has_died(run_one, runner):
    """Killed between two trials, for lack of memory say, it is there for the next."""
    kill_what_starts_trials(runner)
    assert run_one("none").outcome is Outcome.OK


def test_what_starts_trials_costs_one_trial_when_it_dies(run_one, runner, make_request):
    """The trial of that moment is `infra`, for it says nothing of its plan; the next one runs."""
    runner.submit(make_request("python_loop"))
    assert runner.wait(2.0) == []
    kill_what_starts_trials(runner)
    (finished,) = runner.wait(300.0)
    assert finished.result.outcome is Outcome.INFRA
    assert "the process that starts trials is gone" in finished.result.error
    assert run_one("none").outcome is Outcome.OK


def test_cancel_brings_the_trial_back_with_its_cause(runner, make_request):
    """A cancelled trial comes back from `wait` once."""
    runner.submit(make_request("python_loop", number=3))
    runner.cancel(3, Cause.USER_STOPPED)
    (finished,) = runner.wait(300.0)
    assert finished.result.outcome is Outcome.CANCELLED
    assert finished.result.cause is Cause.USER_STOPPED
    assert finished.result.error == "the user stopped the run"
    assert runner.wait(0.0) == []


@pytest.mark.parametrize(
    ("fault", "outcome"), [("orphan", Outcome.OK), ("orphan_and_kill", Outcome.CRASH)]
)
def test_children_in_their_own_session_are_reaped(run_one, tmp_path, fault, outcome):
    """What a trial leaves behind is gone with it: started or forked, in a session of its own."""
    result = run_one(fault)
    assert result.outcome is outcome
    left = [int(pid) for pid in Path(tmp_path, "pids").read_text().split()]
    assert len(left) == 2
    assert not set(left) & set(living_processes())


def test_a_flood_of_output_keeps_its_end_only(run_one, runner):
    """200 MB of output leave a short log, whose end is kept, with what is no text replaced."""
    result = run_one("noise", number=9)
    assert result.outcome is Outcome.OK
    assert result.log_tail.endswith("the last line\n")
    assert len(result.log_tail) <= trial_log.TAIL_BYTES
    assert "\0" not in result.log_tail
    assert trial_log.log_path(runner._log_dir, 9).stat().st_size <= trial_log.MAX_BYTES


def test_a_full_runner_refuses(runner, make_request):
    """A device runs one trial at a time."""
    runner.submit(make_request("none"))
    with pytest.raises(RuntimeError, match="0 devices are free"):
        runner.submit(make_request("none", number=2))
    assert len(runner.wait(300.0)) == 1


def test_a_bug_of_ours_is_not_about_the_plan(run_one, runner, monkeypatch):
    """An exception that escapes the entry is `infra`, with its traceback."""
    monkeypatch.setattr(runner, "_entry", "faulty_entries:broken")
    result = run_one("none")
    assert result.outcome is Outcome.INFRA
    assert "a bug of ours" in str(result.error)
    assert "faulty_entries.py" in str(result.traceback)
    assert result.cause is None


def test_a_disk_that_is_full_beside_the_trial_is_its_cause(run_one, runner, monkeypatch):
    """Also where the exception escapes the code that turns exceptions into results."""
    monkeypatch.setattr(runner, "_entry", "faulty_entries:without_room")
    result = run_one("none")
    assert (result.outcome, result.cause) == (Outcome.INFRA, Cause.DISK_FULL)


def test_a_death_before_the_first_phase_is_noticed(run_one, runner, monkeypatch):
    """Whatever dies before it has entered a phase died in phase start."""
    monkeypatch.setattr(runner, "_entry", "faulty_entries:in_start")
    result = run_one("none")
    assert (result.outcome, result.phase) == (Outcome.CRASH, Phase.START)


def test_a_trial_has_the_users_threads_and_its_cores(run_one, runner, monkeypatch):
    """Ray's OMP_NUM_THREADS=1 does not reach the trial, and its cores are those of its device."""
    monkeypatch.setattr(runner, "_entry", "faulty_entries:environment")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    result = run_one("none")
    assert "OMP None\n" in result.log_tail
    assert f"CORES {len(os.sched_getaffinity(0))}\n" in result.log_tail
