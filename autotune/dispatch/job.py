"""What a forked process is asked to do, and what comes back beside its own items."""

from dataclasses import dataclass
from typing import Any

from autotune.trials.cause import Cause


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A generator function to run in a fresh process.

    Attributes:
        entry: `module:function`; called with `argument`, it yields the items to send back.
        log: the file that takes its output; a bare name: among the files of whoever runs it.
        token: marks the process and its children, so that all of them can be found.
        cores: those it may run on; None: the server's.
        visible_devices: for CUDA_VISIBLE_DEVICES; None leaves the user's.
    """

    entry: str
    argument: Any
    log: str
    token: str
    cores: frozenset[int] | None = None
    visible_devices: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An exception that escaped the entry, which turns the user's errors into results."""

    error: str
    traceback: str
    cause: Cause | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """The process is gone: its exit code, or the signal's number, negative."""

    code: int
