"""A job for a forked process, and the messages that report how it ended."""

from dataclasses import dataclass
from typing import Any

from autotune.trials.cause import Cause


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A generator function to run in a fresh process, with its argument and surroundings.

    Attributes:
        entry: `module:function`; called with `argument`, it yields the items to send back.
        log: the file for its stdout and stderr; a bare name: in the fork server's own folder.
        token: put into the environment of the process and its children, to find them by.
        cores: the CPU cores it may use; None: those of the fork server.
        visible_devices: the value of CUDA_VISIBLE_DEVICES; None: the user's own.
    """

    entry: str
    argument: Any
    log: str
    token: str
    cores: frozenset[int] | None = None
    visible_devices: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An exception that the entry function raised: a bug of autotune.

    The entry reports errors of the user's code as results.
    """

    error: str
    traceback: str
    cause: Cause | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """The end of the process: `code` is its exit status, or minus the number of its signal."""

    code: int
