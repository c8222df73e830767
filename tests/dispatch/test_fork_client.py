"""The fork server: jobs run in fresh processes, and however they or their owners end is known."""

import os
import signal
import time

import pytest

from autotune.dispatch.fork_client import (
    LATER_IMPORTS,
    TRIAL_IMPORTS,
    ForkedJob,
    ForkServerProcess,
)
from autotune.dispatch.job import Exit, Failure, Job
from autotune.dispatch.mark import new_token
from autotune.dispatch.reaper import TRIAL_VARIABLE, find_processes, living_processes
from autotune.dispatch.run_resources import RunResources
from autotune.errors import ClusterError


@pytest.fixture(scope="module")
def server(entries_importable):
    """One server for the tests that do not harm it."""
    with RunResources() as resources, ForkServerProcess(resources) as forks:
        yield forks


@pytest.fixture
def job(tmp_path):
    """Return a function that makes a job for `entry`."""

    def make(entry: str, argument: object = None) -> Job:
        log = str(tmp_path / "log")
        return Job(entry=f"forked_entries:{entry}", argument=argument, log=log, token=new_token())

    return make


def test_items_come_in_order_and_end_with_the_exit(server, job):
    """What the entry yields arrives, then how its process ended."""
    with ForkedJob(server.address, job("count", 3)) as forked:
        assert list(forked.items(60.0)) == [0, 1, 2, Exit(code=0)]


def test_each_job_is_a_process_of_its_own(server, job):
    """Nothing that one job changes is seen by the next."""
    for _ in range(2):
        with ForkedJob(server.address, job("change_the_world")) as forked:
            seen, _ = forked.items(60.0)
        assert seen == "untouched"


@pytest.mark.parametrize(("how", "code"), [("exit 7", 7), ("signal 9", -9), ("signal 11", -11)])
def test_the_exit_code_is_exact(server, job, how, code):
    """An exit's status and a signal's number are told apart and told."""
    with ForkedJob(server.address, job("die", how)) as forked:
        assert list(forked.items(60.0)) == ["dying", Exit(code=code)]


def test_an_exception_of_the_entry_is_a_failure(server, job):
    """With its text and traceback."""
    with ForkedJob(server.address, job("broken")) as forked:
        failure, end = forked.items(60.0)
    assert isinstance(failure, Failure)
    assert failure.error == "LookupError('a bug of ours')"
    assert "forked_entries.py" in failure.traceback
    assert end == Exit(code=0)


def test_a_grandchild_that_holds_the_pipe_delays_nothing(server, job):
    """The end is known when the process is gone, whoever inherited its end of the pipe."""
    with ForkedJob(server.address, job("leave_a_child")) as forked:
        *_, end = forked.items(60.0)
        assert end == Exit(code=-9)


def test_leaving_a_job_kills_it_and_its_children(server, job):
    """Also those in a session of their own."""
    task = job("start_a_child_and_wait")
    with ForkedJob(server.address, task) as forked:
        child = next(forked.items(60.0))
        assert child in living_processes()
    _wait_until(lambda: not find_processes(TRIAL_VARIABLE, task.token, forked.pid()))
    assert child not in living_processes()


def test_silence_ends_the_waiting(server, job):
    """After `timeout_s` without a word, the items end without an `Exit`."""
    with ForkedJob(server.address, job("start_a_child_and_wait")) as forked:
        child, *rest = forked.items(3.0)
    assert isinstance(child, int)
    assert rest == []


def test_modules_are_imported_once_for_all(server, job):
    """What the server has imported, its jobs have; a module that fails harms nobody."""
    server.import_modules(("no_such_module", "this"))
    with ForkedJob(server.address, job("is_imported", "this")) as forked:
        assert next(forked.items(60.0)) is True


def test_a_server_unfit_to_fork_starts_jobs_afresh(job, entries_importable):
    """After an import that started a thread, a job gets a new interpreter, and works the same."""
    with RunResources() as resources, ForkServerProcess(resources) as forks:
        forks.import_modules(("starts_a_thread", "this"))
        task = job("is_imported", "this")
        with ForkedJob(forks.address, task) as forked:
            assert forked.pid() in find_processes(TRIAL_VARIABLE, task.token, forked.pid())
            assert list(forked.items(60.0)) == [False, Exit(code=0)]


def test_guesses_that_harm_a_server_are_dropped(job, entries_importable):
    """A guessed module that starts a thread is done without; harmless guesses are shared."""

    def is_shared(module, guessed):
        with (
            RunResources() as resources,
            ForkServerProcess(resources, imports=("this",), guessed=guessed) as forks,
            ForkedJob(forks.address, job("is_imported", module)) as forked,
        ):
            return next(forked.items(60.0))

    assert is_shared("cmd", ("cmd", "no_such_module", "xml:sax"))
    assert is_shared("xml.sax", ("cmd", "no_such_module", "xml:sax"))
    assert is_shared("this", ("starts_a_thread", "cmd"))
    assert not is_shared("starts_a_thread", ("starts_a_thread", "cmd"))


def test_torch_is_shared_and_no_device_touched(job, entries_importable):
    """What trials import leaves the server fit to fork: a job has torch and its compiler."""
    with RunResources() as resources, ForkServerProcess(resources) as forks:
        forks.import_modules((*TRIAL_IMPORTS, *LATER_IMPORTS))
        with ForkedJob(forks.address, job("is_imported", "torch._inductor.compile_fx")) as forked:
            assert next(forked.items(300.0)) is True
        with ForkedJob(forks.address, job("look_only_variable")) as forked:
            assert next(forked.items(60.0)) == os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK")


def test_a_job_ends_with_its_server(job, entries_importable):
    """Also when the server had no time to end it, as on a node that Ray lost."""
    with (
        RunResources() as resources,
        ForkServerProcess(resources) as forks,
        ForkedJob(forks.address, job("loop_for_ever")) as forked,
    ):
        assert next(forked.items(60.0)) == "looping"
        os.kill(forks._process.pid, signal.SIGKILL)
        _wait_until(lambda: forked.pid() not in living_processes())


def test_a_dead_server_is_an_error_that_says_so(job, entries_importable):
    """Nobody waits for a server that is gone."""
    with RunResources() as resources, ForkServerProcess(resources) as forks:
        os.kill(forks._process.pid, signal.SIGKILL)
        forks._process.wait()
        with pytest.raises(ClusterError, match="the process that starts trials is gone"):
            ForkedJob(forks.address, job("count", 1)).pid()


def test_a_dead_server_is_started_again(job, entries_importable):
    """At the same address, with all that it had imported; one that lives is left alone."""
    with RunResources() as resources, ForkServerProcess(resources) as forks:
        forks.import_modules(("this",))
        forks.import_modules(("antigravity_no_such_module", "cmd"))
        os.kill(forks._process.pid, signal.SIGKILL)
        forks._process.wait()
        forks.restart_if_unusable()
        for module in ("this", "cmd"):
            with ForkedJob(forks.address, job("is_imported", module)) as forked:
                assert next(forked.items(60.0)) is True
        before = forks._process
        forks.restart_if_unusable()
        assert forks._process is before


def _wait_until(condition) -> None:
    until = time.monotonic() + 30.0
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)
