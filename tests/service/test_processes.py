"""The process of a job: found again, stopped, and ended as a whole. All processes are real."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from autotune.dispatch.reaper import find_processes
from autotune.service.environment import job_environment, storage_for_job
from autotune.service.processes import JobProcess, Life, Order
from autotune.service.supervisor import JOB_VARIABLE
from autotune.storage.driver import pid_of
from autotune.storage.location import locate

REPOSITORY = str(Path(__file__).parents[2])
# Prints on Ctrl-C what it has, like `autotune run`, and ends with its code.
PATIENT = """
import signal, sys, time
def stop(number, frame):
    print("kept", flush=True)
    sys.exit(130)
signal.signal(signal.SIGINT, stop)
print("begun", flush=True)
time.sleep(60)
"""


def order(code, **changes):
    values = {
        "command": [sys.executable, "-c", code],
        "working_dir": Path("/"),
        "environment": {"PATH": os.environ["PATH"], "PYTHONPATH": REPOSITORY},
        "cores": [],
    }
    return Order(**{**values, **changes})


def wait_for(is_reached, limit_s=30.0):
    until = time.monotonic() + limit_s
    while not is_reached():
        assert time.monotonic() < until
        time.sleep(0.02)


def ended(process):
    wait_for(lambda: process.look().life is Life.ENDED)
    return process.look().exit_code


@pytest.fixture
def process(tmp_path):
    made = JobProcess(tmp_path / "job")
    yield made
    made.kill()


def begun(process):
    wait_for(lambda: process.output.exists() and "begun" in process.output.read_text())


@pytest.mark.parametrize("code", [0, 3])
def test_the_exit_code_and_the_output_are_kept(process, code):
    """For whoever looks later."""
    process.start(order(f"import sys; print('said'); sys.exit({code})"))
    assert ended(process) == code
    assert process.output.read_text() == "said\n"
    assert JobProcess(process.folder).look().exit_code == code


def test_a_program_that_is_not_there_ends_like_in_a_shell(process):
    """With 127, and a line that names it."""
    process.start(order("", command=["/no/such/python"]))
    assert ended(process) == 127
    assert "cannot start /no/such/python" in process.output.read_text()


def test_it_is_found_again_by_another_server(process):
    """By its process id and start time, and can be stopped by it."""
    process.start(order(PATIENT))
    begun(process)
    other = JobProcess(process.folder)
    look = other.look()
    assert look.life is Life.RUNNING
    assert psutil.Process(pid_of(look.process)).is_running()
    other.stop()
    other.stop()  # the second is no second Ctrl-C
    assert ended(other) == 130
    assert process.output.read_text() == "begun\nkept\n"


def test_it_never_runs_twice_at_once(process):
    """A second start finds the lock taken, and a third that it has ended."""
    process.start(order(PATIENT))
    begun(process)
    second = JobProcess(process.folder)
    second.start(order("print('twice')"))
    wait_for(lambda: second._child.poll() is not None)
    assert second.look().life is Life.RUNNING
    process.stop()
    assert ended(process) == 130
    third = JobProcess(process.folder)
    third.start(order("print('again')"))
    wait_for(lambda: third._child.poll() is not None)
    assert "twice" not in process.output.read_text()
    assert "again" not in process.output.read_text()


def test_all_that_a_job_leaves_behind_is_ended(process):
    """Also what has left its session, and its parent, and the environment's mark."""
    code = (
        "import subprocess\n"
        "subprocess.Popen(['setsid', 'sh', '-c', 'env -i sleep 600 & exit'])\n"
        "subprocess.Popen(['sleep', '601'], start_new_session=True)\n"
        "print('begun', flush=True)"
    )
    process.start(order(code))
    assert ended(process) == 0
    lines = {" ".join(_command_line(other)) for other in psutil.process_iter()}
    assert not {"sleep 600", "sleep 601"} & lines


def _command_line(process):
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_a_process_that_was_killed_is_gone_and_its_rest_can_be_ended(process):
    """As after an administrator's `kill -9`; what it started is found by the mark."""
    process.start(order(PATIENT))
    begun(process)
    os.kill(pid_of(process.look().process), signal.SIGKILL)
    wait_for(lambda: process.look().life is Life.GONE)
    assert find_processes(JOB_VARIABLE, str(process.folder))
    assert process.kill()
    assert not find_processes(JOB_VARIABLE, str(process.folder))


def test_a_job_has_a_session_and_cores_of_its_own(process):
    """Ctrl-C at the server's terminal does not reach it."""
    core = min(os.sched_getaffinity(0))
    code = "import os; print(os.getsid(0), *os.sched_getaffinity(0), os.getcwd())"
    process.start(order(code, cores=[core], working_dir=Path("/tmp")))
    assert ended(process) == 0
    session, *cores, folder = process.output.read_text().split()
    assert int(session) != os.getsid(0)
    assert (cores, folder) == ([str(core)], "/tmp")


def test_what_a_job_is_told_is_for_the_server_alone(process):
    """Its environment may hold what the administrator passed."""
    process.start(order("pass"))
    ended(process)
    assert (process.folder / "order.json").stat().st_mode & 0o077 == 0
    assert json.loads((process.folder / "order.json").read_text())["working_dir"] == "/"


def test_a_job_inherits_no_secrets():
    """Only what programs need to run, and what the administrator lets through."""
    server = {
        "PATH": "/bin",
        "HOME": "/root",
        "LC_ALL": "C",
        "AUTOTUNE_TOKEN_FILE": "/secret",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "PGPASSWORD": "secret",
        "HF_TOKEN": "hf",
    }
    assert job_environment(server, ["HF_TOKEN"]) == {
        "PATH": "/bin",
        "HOME": "/root",
        "LC_ALL": "C",
        "HF_TOKEN": "hf",
    }


@pytest.mark.parametrize(
    ("password", "query", "server"),
    [
        ("s3cret%3Ax", "", {}),
        ("", "&password=s3cret%3Ax", {}),
        ("", "", {"PGPASSWORD": "s3cret:x"}),
    ],
)
def test_a_databases_password_is_on_no_command_line(tmp_path, password, query, server):
    """It goes by a file that only the server's user may read."""
    url = f"postgresql://tuner:{password}@db/autotune?sslmode=require{query}"
    storage, variables = storage_for_job(locate(url), tmp_path, server)
    assert storage == "postgresql://tuner@db/autotune?sslmode=require"
    file = Path(variables["PGPASSFILE"])
    assert file.stat().st_mode & 0o077 == 0
    assert file.read_text() == "*:*:*:*:s3cret\\:x\n"
