"""The loop that starts jobs: none is lost and none runs twice, whatever dies."""

import os
import signal
import subprocess
import sys
import time

from autotune.service.processes import JobProcess
from autotune.service.server import MAX_STARTS, last_message
from autotune.storage.access import Role
from autotune.storage.driver import pid_of
from autotune.storage.job_records import JobState, NewJob
from tests.service.conftest import all_ended, python_command, run_until
from tests.service.test_processes import PATIENT


def add(loop, number=1, **changes):
    values = {
        "key": f"k{number}",
        "name": None,
        "owner": "ann",
        "priority": 0,
        "num_devices": 1,
        "budget_s": 60.0,
        "request": {"model": "model.py", "folder": "/"},
    }
    return loop.store.jobs.add(NewJob(**{**values, **changes}))


def state(loop, job):
    return loop.store.jobs.job(str(job.id)).state


def is_running(loop, job):
    record = loop.store.jobs.job(str(job.id))
    return record.state is JobState.RUNNING and record.process is not None


def output(loop, job):
    return JobProcess(loop._settings.job_folder(job.id)).output


def test_jobs_run_by_priority_and_age(make_loop, tmp_path):
    """One after the other on one device; each exactly once."""
    started = tmp_path / "started"
    loop = make_loop(
        num_devices=1, stand_in=lambda job, folder: ["sh", "-c", f"echo {job.id} >> {started}"]
    )
    jobs = [add(loop, number, priority=number % 3) for number in range(6)]
    run_until(loop, all_ended(loop))
    wanted = sorted(jobs, key=lambda job: (-job.new.priority, job.id))
    assert started.read_text().split() == [str(job.id) for job in wanted]
    assert {job.state for job in loop.ended} == {JobState.DONE}
    assert len(loop.ended) == 6


def test_a_failed_job_says_why(make_loop):
    """With the last message of the run, or with its exit code."""
    codes = [
        "print('autotune: no such knob'); exit(2)",
        "exit(7)",
        "import os; os.kill(os.getpid(), 9)",
    ]
    loop = make_loop(stand_in=lambda job, folder: python_command(codes[job.id - 1])(job, folder))
    for number in range(3):
        add(loop, number)
    run_until(loop, all_ended(loop))
    jobs = loop.store.jobs.jobs()[::-1]
    assert {job.state for job in jobs} == {JobState.FAILED}
    assert [job.exit_code for job in jobs] == [2, 7, -9]
    assert jobs[0].message == "no such knob"
    assert "exit code 7" in jobs[1].message
    assert "signal 9" in jobs[2].message


def test_a_cancelled_job_gets_one_ctrl_c(make_loop):
    """What it has found is kept; its device is free for the next."""
    loop = make_loop(num_devices=1, stand_in=python_command(PATIENT))
    job = add(loop)
    run_until(
        loop, lambda: output(loop, job).exists() and "begun" in output(loop, job).read_text()
    )
    loop.store.jobs.cancel(job.id, "eve")
    run_until(loop, all_ended(loop))
    ended = loop.store.jobs.job("last")
    assert (ended.state, ended.exit_code) == (JobState.CANCELLED, 130)
    assert "stopped by eve" in ended.message
    assert output(loop, job).read_text() == "begun\nkept\n"


def test_a_running_job_is_adopted_by_the_next_server(make_loop):
    """It goes on as if nothing had been, and is started once."""
    loop = make_loop(stand_in=python_command(PATIENT))
    job = add(loop)
    run_until(loop, lambda: is_running(loop, job))
    process = loop.store.jobs.job("last").process
    later = make_loop(stand_in=python_command(PATIENT))
    later.tick()
    assert (later.store.jobs.job("last").process, state(later, job)) == (
        process,
        JobState.RUNNING,
    )
    later.store.jobs.cancel(job.id, "eve")
    run_until(later, all_ended(later))
    assert later.store.jobs.job("last").num_starts == 1


def test_a_job_that_ended_without_a_server_is_found_ended(make_loop):
    """Its exit code was kept for the next server."""
    loop = make_loop()
    job = add(loop)
    loop.tick()
    process = JobProcess(loop._settings.job_folder(job.id))
    until = time.monotonic() + 30
    while not (process.folder / "exit.json").exists() and time.monotonic() < until:
        time.sleep(0.02)
    later = make_loop()
    run_until(later, all_ended(later))
    assert later.ended[0].state is JobState.DONE


def test_a_job_whose_processes_died_goes_on(make_loop, tmp_path):
    """It is queued again with its age, and what was left of it is ended before."""
    marker = tmp_path / "second"
    code = (
        f"import os, time\nif os.path.exists({str(marker)!r}): exit(0)\n"
        f"open({str(marker)!r}, 'w').close()\nprint('begun', flush=True)\ntime.sleep(60)"
    )
    loop = make_loop(stand_in=python_command(code))
    job = add(loop)
    run_until(loop, lambda: is_running(loop, job) and marker.exists())
    os.kill(pid_of(loop.store.jobs.job("last").process), signal.SIGKILL)
    run_until(loop, all_ended(loop))
    ended = loop.store.jobs.job("last")
    assert (ended.state, ended.num_starts) == (JobState.DONE, 2)
    assert [e.kind for e in loop.store.jobs.events(job.id)] == [
        "queued",
        "running",
        "queued",
        "running",
        "done",
    ]


def test_a_job_that_always_dies_fails_in_the_end(make_loop):
    """It does not keep a device for ever."""
    code = "import os, signal; os.kill(os.getppid(), signal.SIGKILL)"
    loop = make_loop(stand_in=python_command(code))
    add(loop)
    run_until(loop, all_ended(loop))
    ended = loop.store.jobs.job("last")
    assert (ended.state, ended.num_starts) == (JobState.FAILED, MAX_STARTS)
    assert "died 5 times" in ended.message


def test_a_job_of_another_machine_is_left_alone(make_loop):
    """Its processes cannot be seen from here; it does not hold devices of this machine."""
    loop = make_loop(num_devices=1)
    away = add(loop, 1)
    loop.store.jobs.claim(away.id, ["cpu0"], "elsewhere:1:1.0")
    job = add(loop, 2)
    run_until(loop, lambda: state(loop, job) is JobState.DONE)
    assert state(loop, away) is JobState.RUNNING


def test_a_job_that_goes_on_long_after_its_budget_is_stopped(make_loop, monkeypatch):
    """A run that hangs does not keep its devices."""
    monkeypatch.setattr("autotune.service.server.LATE_S", 0.0)
    monkeypatch.setattr("autotune.service.server.LATE_SHARE", 0.0)
    loop = make_loop(stand_in=python_command(PATIENT))
    add(loop, budget_s=2.0)
    run_until(loop, all_ended(loop))
    ended = loop.store.jobs.job("last")
    assert ended.state is JobState.FAILED
    assert "long after its budget" in ended.message


def test_an_owners_limit_holds(make_loop):
    """A token's jobs never hold more devices than it allows."""
    loop = make_loop(num_devices=3, stand_in=python_command("import time; time.sleep(0.3)"))
    loop.store.tokens.add("ann", "d", Role.SUBMIT, max_devices=1)
    for number in range(3):
        add(loop, number)
    most = 0

    def is_done():
        nonlocal most
        counts = loop.store.jobs.counts()
        most = max(most, counts[JobState.RUNNING])
        return counts[JobState.DONE] == 3

    run_until(loop, is_done)
    assert most == 1


def test_the_last_message_is_the_runs_own(tmp_path):
    """What a training prints is not taken for it."""
    file = tmp_path / "output.log"
    file.write_text("autotune: first\nautotune: the reason\nloss 3.0\n")
    assert last_message(file) == "the reason"
    assert last_message(tmp_path / "none") is None


# Starts jobs until it is killed: a server of which only the loop is left.
A_SERVER = """
import sys, time
from pathlib import Path
from autotune.service.devices import Devices
from autotune.service.server import JobLoop
from autotune.service.settings import ServiceSettings
from autotune.storage.sql import open_store
url, folder, started = sys.argv[1:]
settings = ServiceSettings(
    storage=url,
    folder=Path(folder),
    devices=Devices(kind="cpu", ids=("a", "b", "c", "d"), cores={}),
    stand_in=lambda job, _: ["sh", "-c", f"echo {job.id} >> {started}; sleep 0.2"],
)
loop = JobLoop(open_store(url), settings, lambda job: None)
while True:
    loop.tick()
    time.sleep(0.02)
"""


def test_a_killed_server_loses_no_job_and_repeats_none(make_loop, tmp_path, url):
    """It is killed after every few jobs that it has started, while they run."""
    loop = make_loop(num_devices=4)
    jobs = [add(loop, number) for number in range(20)]
    started = tmp_path / "started"
    started.touch()
    command = [sys.executable, "-c", A_SERVER, url, str(tmp_path / "service"), str(started)]
    wanted = 0
    while wanted < len(jobs):
        wanted += 4
        server = subprocess.Popen(command)
        while len(started.read_text().split()) < wanted:
            assert server.poll() is None
            time.sleep(0.01)
        server.kill()
        server.wait()
    run_until(loop, all_ended(loop))
    assert sorted(map(int, started.read_text().split())) == [job.id for job in jobs]
