"""Trials of several ranks: whatever happens to one ends all of them, and the next trial runs."""

import dataclasses
import json
from pathlib import Path

import pytest

from autotune.dispatch.clusters import LocalCluster
from autotune.dispatch.ray_runner import DEFAULT_ENTRY, RayRunner
from autotune.dispatch.reaper import RUN_VARIABLE, TRIAL_VARIABLE, find_processes, has_variable
from autotune.search_space.plan import Plan
from autotune.trials.cause import Cause
from autotune.trials.request import Deadlines, RankPlace
from autotune.trials.result import Outcome
from tests.trials.conftest import QUICK, TINY

TWO = RankPlace(world_size=2)


@pytest.fixture(scope="module")
def pair(cpu, entries_importable, tmp_path_factory):
    """A runner with two slots."""
    two = dataclasses.replace(cpu, num_devices=2)
    log_dir = tmp_path_factory.mktemp("logs")
    with (
        LocalCluster(two) as cluster,
        RayRunner(cluster, log_dir=log_dir, entry="faulty_entries:on_rank_one") as runner,
    ):
        yield runner


@pytest.fixture
def run_pair(pair, make_request):
    """Run one trial of two ranks to its end."""

    def run(fault: str, **more):
        pair.submit(make_request(fault, place=TWO, **more))
        (finished,) = pair.wait(300.0)
        return finished.result

    return run


def processes_of_trials(runner: RayRunner) -> set[int]:
    blank = "0" * 32
    ours = find_processes(RUN_VARIABLE, runner._cluster.resources.token)
    return {pid for pid in ours if not has_variable(pid, TRIAL_VARIABLE, blank)}


@pytest.mark.parametrize(
    ("fault", "outcome", "words"),
    [
        ("segfault", Outcome.CRASH, "rank 1: the trial's process died in phase build: SIGSEGV"),
        ("kill", Outcome.CRASH, "rank 1: the trial's process died in phase build: SIGKILL"),
        ("exit", Outcome.CRASH, "rank 1: the trial's process died in phase build: it exited"),
        ("oom", Outcome.OOM, "rank 1: out of memory"),
        ("orphan_and_kill", Outcome.CRASH, "rank 1: the trial's process died in phase build"),
    ],
)
def test_one_rank_ends_all(run_pair, pair, fault, outcome, words):
    """With its own reason, while the other would wait for ever; no process is left."""
    result = run_pair(fault)
    assert result.outcome is outcome
    assert str(result.error).startswith(words)
    assert not processes_of_trials(pair)


ABORTING = (
    TINY
    + """
import os, signal, sys
import torch.distributed as dist

calls = 0

def notice(words):
    try:
        dist.barrier()
    except RuntimeError:
        print(words, file=sys.stderr, flush=True)
        os.abort()

def compute_loss(model, batch):
    global calls
    calls += 1
    if calls > 3:
        {fault}
    x, y = batch
    return nn.functional.cross_entropy(model(x), y)
"""
)
REMOTE_EXIT = "watchdog thread terminated with exception: NCCL error: remote process exited"
KILLED_THEN = "os.kill(os.getpid(), signal.SIGKILL) if os.environ['RANK'] == '1' else notice({!r})"
ABORTS = {
    # To print what all threads were doing, which they still do, may itself end in a SIGSEGV.
    "its_own": ("os.environ['RANK'] == '1' and os.abort()", ("SIGABRT", "SIGSEGV")),
    "for_a_peer": (KILLED_THEN.format(REMOTE_EXIT), ("SIGKILL",)),
    "after_a_peer": (KILLED_THEN.format("no reason given"), ("SIGKILL",)),
}


@pytest.mark.parametrize("case", ABORTS)
def test_an_abort_is_the_reason_unless_a_peer_was_lost(case, pair, make_request, monkeypatch):
    """Rank 1 ended first; so does rank 0, by the watchdog's way or the communication's error."""
    monkeypatch.setattr(pair, "_entry", DEFAULT_ENTRY)
    fault, names = ABORTS[case]
    request = make_request("none", place=TWO, protocol=QUICK)
    Path(request.working_dir, "model.py").write_text(ABORTING.format(fault=fault))
    path = str(Path(request.working_dir, "model.py"))
    plan = Plan.of({"batch_size": 4})
    pair.submit(dataclasses.replace(request, workload_path=path, plan=plan))
    (finished,) = pair.wait(300.0)
    assert finished.result.outcome is Outcome.CRASH
    assert str(finished.result.error).startswith("rank 1: the trial's process died")
    assert any(name in str(finished.result.error) for name in names)


@pytest.mark.parametrize("fault", ["python_loop", "native_loop"])
def test_one_hung_rank_ends_all_at_the_deadline(run_pair, pair, fault):
    """As a timeout, with both ranks' stacks in the log."""
    result = run_pair(fault, deadlines=Deadlines(build_s=1.0))
    assert result.outcome is Outcome.TIMEOUT
    assert fault in result.log_tail
    assert "in on_rank_one" in result.log_tail
    assert not processes_of_trials(pair)


def test_the_next_trial_runs(run_pair):
    """After all that, two ranks end well, and both logs are kept."""
    result = run_pair("none", number=5)
    assert result.outcome is Outcome.OK
    assert result.log_tail == "[rank 0]\nrank 0 of 2\n[rank 1]\nrank 1 of 2\n"


def test_one_device_trials_run_side_by_side(pair, make_request):
    """Two one-rank trials fill two devices; a third waits."""
    alone = {"place": RankPlace(), "give_up_after_s": 60.0}
    pair.submit(make_request("python_loop", number=1, **alone))
    pair.submit(make_request("python_loop", number=2, **alone))
    with pytest.raises(RuntimeError, match="0 devices are free"):
        pair.submit(make_request("none", number=3, **alone))
    for number in (1, 2):
        pair.cancel(number, Cause.USER_STOPPED)
    ended = {f.request.number for _ in range(2) for f in pair.wait(300.0)}
    assert ended == {1, 2}


def test_ranks_know_their_place(run_pair, pair, monkeypatch):
    """As torchrun tells it: rank, local rank, world size, and where the first rank listens."""
    monkeypatch.setattr(pair, "_entry", "faulty_entries:where")
    error = str(run_pair("none").error)
    place = json.loads(error.removeprefix("rank 0: "))
    assert place["master_port"] > 0
    assert (place["world_size"], place["local_world_size"]) == (2, 2)
