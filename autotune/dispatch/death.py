"""How a process ended that gave no result, as an outcome."""

import re
import signal
from pathlib import Path

from autotune.trials.peers import WATCHDOG_TEXTS
from autotune.trials.result import Outcome, Phase, TrialResult


def host_oom_kills() -> int:
    """Return how many processes the kernel has killed for lack of host memory since boot."""
    counts = re.findall(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), re.MULTILINE)
    return int(counts[0]) if counts else 0


def explain_death(code: int, phase: Phase, *, oom_killed: bool, log_tail: str = "") -> TrialResult:
    """Return the result of a process that ended with `code` (negative: a signal) during `phase`.

    Args:
        code: as `os.waitstatus_to_exitcode` gives it.
        phase: the last one that it entered.
        oom_killed: the kernel killed something for lack of host memory meanwhile.
        log_tail: the end of its output, where NCCL's watchdog says why it aborts.
    """
    where = f"in phase {phase.value}"
    if code == -signal.SIGKILL and oom_killed:
        error = f"killed for lack of host memory {where}; use fewer workers or a smaller batch"
        return TrialResult(outcome=Outcome.OOM, error=error, phase=phase)
    error = f"the trial's process died {where}: {_how(code)}"
    told = code == -signal.SIGABRT and any(words in log_tail for words in WATCHDOG_TEXTS)
    return TrialResult(outcome=Outcome.CRASH, error=error, phase=phase, peer_lost=told)


def lost(phase: Phase, reason: str) -> TrialResult:
    """Return the result of a trial whose machine or Ray went away."""
    first = reason.strip().partition("\n")[0]
    error = f"the machine or Ray itself was lost in phase {phase.value}: {first}"
    return TrialResult(outcome=Outcome.INFRA, error=error, phase=phase)


def _how(code: int) -> str:
    if code >= 0:
        return f"it exited with status {code}, by os._exit or from native code"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"{name} ({signal.strsignal(-code) or 'unknown signal'})"
