"""Turns an exception in a trial process into an outcome, a one-line error and a traceback."""

import re
import traceback
from pathlib import Path

import torch
import torch.distributed as dist

from autotune.errors import PlanError, WorkloadError
from autotune.trials.cause import Cause, cause_of, tells_of_full_disk
from autotune.trials.peers import PEER_TEXTS
from autotune.trials.result import Outcome, Phase, TrialResult

_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_ASKED_FOR = re.compile(r"[Tt]ried to allocate ([\d.]+) (bytes|KiB|MiB|GiB)")
# Allocation failures that libraries under torch report as plain runtime errors.
_OOM_TEXTS = ("out of memory", "can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED")
# The longest one-line error and last part of a traceback, in characters; some libraries print
# whole tensors.
_MAX_LINE, _MAX_END = 500, 10_000
_COMPILER_PACKAGES = ("torch._dynamo", "torch._inductor", "triton")


class DivergedError(Exception):
    """The loss became NaN or infinite."""


class InvalidPlanError(PlanError):
    """The plan cannot be applied to this workload, for a reason only seen when it is tried."""


class RendezvousError(Exception):
    """The ranks of a trial could not form a process group; its plan is not to blame."""


_OUTCOMES: dict[type[BaseException], Outcome] = {
    DivergedError: Outcome.DIVERGED,
    InvalidPlanError: Outcome.INVALID,
    RendezvousError: Outcome.INFRA,
}


def failed(error: BaseException, phase: Phase, workload_path: Path) -> TrialResult:
    """Return the result of a trial that `error` ended during `phase`."""
    outcome = classify(error)
    return TrialResult(
        outcome=outcome,
        phase=phase,
        cause=_disk_full(error) if outcome is Outcome.INFRA else None,
        error=one_line(error),
        traceback=user_traceback(error, workload_path),
        user_error=isinstance(error, WorkloadError | SystemExit | DivergedError)
        or (outcome is Outcome.CRASH and _comes_from_user_code(error, workload_path)),
        peer_lost=is_peer_lost(error),
        requested_bytes=requested_bytes(error) if outcome is Outcome.OOM else None,
    )


def is_peer_lost(error: BaseException) -> bool:
    """Whether a collective failed because another rank was gone or did not come."""
    if isinstance(error, dist.DistError):
        return not any(words in message_of(error) for words in _OOM_TEXTS)
    text = message_of(error)
    return isinstance(error, RuntimeError) and any(words in text for words in PEER_TEXTS)


def classify(error: BaseException) -> Outcome:
    """Return how a trial that raised `error` ended."""
    text = message_of(error)
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return Outcome.OOM
    if isinstance(error, RuntimeError) and any(words in text for words in _OOM_TEXTS):
        return Outcome.OOM
    if _disk_full(error) is not None:
        return Outcome.INFRA
    for kind, outcome in _OUTCOMES.items():
        if isinstance(error, kind):
            return outcome
    if type(error).__module__.startswith(_COMPILER_PACKAGES):
        return Outcome.COMPILE_ERROR
    return Outcome.CRASH


def _disk_full(error: BaseException) -> Cause | None:
    told = tells_of_full_disk(message_of(error))
    return cause_of(error) or (Cause.DISK_FULL if told else None)


def requested_bytes(error: BaseException) -> int | None:
    """Return the bytes that the failed allocation asked for, None when it does not say."""
    match = _ASKED_FOR.search(message_of(error))
    return round(float(match[1]) * _UNITS[match[2]]) if match else None


def one_line(error: BaseException) -> str:
    """Return the error in one line for a table, with its type unless autotune raised it.

    Errors of autotune's own keep their further lines.
    """
    if isinstance(error, SystemExit):
        return f"the workload called sys.exit({error.code})"
    message = message_of(error)
    lines = message.strip().splitlines() or [""]
    if isinstance(error, (WorkloadError, *_OUTCOMES)):
        return "\n".join(lines)
    # A loader's worker sends its traceback, and the cause stands in its last line.
    line = lines[-1] if tells_of_full_disk(message) else lines[0]
    kind = f"{type(error).__name__}: "
    return _shortened(f"{kind}{line.removeprefix(kind)}".removesuffix(": "), _MAX_LINE)


def message_of(error: BaseException) -> str:
    """Return `str(error)`, or a note where that itself raises, as a user's class may."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001  a user's `__str__` may raise anything
        return "its message could not be made: str() of it failed"


def _shortened(text: str, max_chars: int) -> str:
    left_out = len(text) - max_chars
    return text if left_out <= 0 else f"{text[:max_chars]}... ({left_out:,} characters more)"


def user_traceback(error: BaseException, workload_path: Path) -> str:
    """Return the traceback from the user's first frame on, without the frames of autotune above.

    Where no frame is the user's, it starts below the last frame of autotune.
    """
    if isinstance(error, WorkloadError):
        return error.user_traceback
    if isinstance(error, tuple(_OUTCOMES)):
        return ""  # the message is enough
    frames = traceback.extract_tb(error.__traceback__)
    first = next((i for i, f in enumerate(frames) if _is_users(f.filename, workload_path)), None)
    tail = [_shortened(text, _MAX_END) for text in traceback.format_exception_only(error)]
    if first is None and isinstance(error, SyntaxError):
        return "".join(tail)  # its text shows the line
    if first is None:
        first = 1 + max((i for i, f in enumerate(frames) if _is_ours(f.filename)), default=-1)
    if not frames[first:]:
        return "".join(tail)
    head = ["Traceback (most recent call last):\n"]
    return "".join(head + traceback.format_list(frames[first:]) + tail)


def _comes_from_user_code(error: BaseException, workload_path: Path) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    # A DataLoader worker's own traceback arrives as text inside the message.
    return any(_is_users(f.filename, workload_path) for f in frames) or str(
        workload_path.parent
    ) in message_of(error)


def _is_users(filename: str, workload_path: Path) -> bool:
    folder = workload_path.parent.resolve()
    return Path(filename).resolve().is_relative_to(folder) and "site-packages" not in filename


def _is_ours(filename: str) -> bool:
    return Path(filename).resolve().is_relative_to(Path(__file__).resolve().parent)
