"""How a process ended is turned into an outcome."""

import signal

import pytest

from autotune.dispatch.death import explain_death, host_oom_kills, lost_result
from autotune.trials.result import Outcome, Phase


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (-11, "SIGSEGV"),
        (-9, "SIGKILL"),
        (-64, "SIGRTMAX"),
        (0, "status 0"),
        (7, "status 7"),
    ],
)
def test_a_death_is_a_crash_that_says_how(code, words):
    """The signal's name or the exit status is in the error, with the phase."""
    result = explain_death(code, Phase.MEASURE, oom_killed=False)
    assert (result.outcome, result.phase) == (Outcome.CRASH, Phase.MEASURE)
    assert words in str(result.error)
    assert "in phase measure" in str(result.error)


def test_a_kill_by_the_kernel_for_memory_is_oom():
    """SIGKILL while the kernel killed for memory is out of memory; another death is not."""
    assert explain_death(-9, Phase.BUILD, oom_killed=True).outcome is Outcome.OOM
    assert explain_death(-11, Phase.BUILD, oom_killed=True).outcome is Outcome.CRASH


WATCHDOG = "ProcessGroupNCCL.cpp:2057] Process group watchdog thread terminated with exception: "
ABORTS = {
    "peer_gone": (
        f"{WATCHDOG}NCCL error: remote process exited or there was a network error",
        True,
    ),
    "peer_late": (f"{WATCHDOG}Watchdog caught collective operation timeout: WorkNCCL(", True),
    "own_device": (f"{WATCHDOG}CUDA error: device-side assert triggered", False),
    "own_code": ("Assertion `n > 0' failed.", False),
}


@pytest.mark.parametrize("case", ABORTS)
def test_the_watchdog_says_whose_fault_an_abort_is(case):
    """It aborts for a peer that is gone or hangs, and for an error of the process's own device."""
    log, peer_lost = ABORTS[case]
    result = explain_death(-signal.SIGABRT, Phase.MEASURE, oom_killed=False, log_tail=log)
    assert result.outcome is Outcome.CRASH
    assert result.peer_lost is peer_lost
    segfault = explain_death(-signal.SIGSEGV, Phase.MEASURE, oom_killed=False, log_tail=log)
    assert not segfault.peer_lost


def test_a_lost_node_is_infra():
    """A lost machine says nothing about the plan."""
    result = lost_result(Phase.MEASURE, "node gone\ndetails")
    assert result.outcome is Outcome.INFRA
    assert result.error == "the machine or Ray itself was lost in phase measure: node gone"


def test_the_kernel_counts_its_kills():
    """The counter is there on this kernel."""
    assert host_oom_kills() >= 0
