"""Makes results for ranks that ended without giving one: a dead process, a lost machine."""

import re
import signal
from pathlib import Path

from autotune.trials.peers import WATCHDOG_TEXTS
from autotune.trials.result import Outcome, Phase, TrialResult


def host_oom_kills() -> int:
    """Return how many processes the kernel has killed for lack of host memory since the boot."""
    counts = re.findall(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), re.MULTILINE)
    return int(counts[0]) if counts else 0


def explain_death(code: int, phase: Phase, *, oom_killed: bool, log_tail: str = "") -> TrialResult:
    """Return the result of a rank whose process ended before it gave one.

    Args:
        code: its exit status, or minus the number of the signal that killed it.
        phase: the last phase that it entered.
        oom_killed: whether the kernel killed any process for lack of host memory meanwhile.
        log_tail: the end of its output, where NCCL's watchdog says why it aborts the process.
    """
    where = f"in phase {phase.value}"
    if code == -signal.SIGKILL and oom_killed:
        error = f"killed for lack of host memory {where}; use fewer workers or a smaller batch"
        return TrialResult(outcome=Outcome.OOM, error=error, phase=phase)
    error = f"the trial's process died {where}: {_exit_in_words(code)}"
    peer_lost = code == -signal.SIGABRT and any(text in log_tail for text in WATCHDOG_TEXTS)
    return TrialResult(outcome=Outcome.CRASH, error=error, phase=phase, peer_lost=peer_lost)


def lost_result(phase: Phase, reason: str) -> TrialResult:
    """Return the result of a rank whose machine or Ray was lost; `reason` is Ray's message."""
    first = reason.strip().partition("\n")[0]
    error = f"the machine or Ray itself was lost in phase {phase.value}: {first}"
    return TrialResult(outcome=Outcome.INFRA, error=error, phase=phase)


def _exit_in_words(code: int) -> str:
    if code >= 0:
        return f"it exited with status {code}, by os._exit or from native code"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"{name} ({signal.strsignal(-code) or 'unknown signal'})"
