"""Every error that autotune raises on purpose.

AutotuneError                exit code 1
├── UsageError               2   a command line, plan file or knob that autotune cannot follow
│   ├── PlanError            2   a plan that names unknown knobs, values or versions
│   ├── NotFoundError        2   a run, trial or job that the store does not have
│   └── NotAllowedError      2   a token that does not allow what was asked
├── WorkloadError            3   the user's model.py is wrong; it has their traceback
├── NothingRanError          4   no plan could be run on this machine
├── ResourceError            5   the store, the cluster or a disk cannot be used
│   ├── StoreError           5   the store cannot be opened, read or written
│   ├── ServerError          5   a server of the search service cannot be reached
│   ├── ClusterError         5   the Ray cluster cannot be started or reached
│   └── DiskFullError        5   a trial has no room for what it writes
├── RegressionError          6   `autotune check` found more than its limits allow
└── InterruptedRunError    130   the user stopped the run; results are kept

Messages say what happened, with which value, the rule, and what to do next.
"""

import difflib
from collections.abc import Iterable


class AutotuneError(Exception):
    """Base of all errors raised on purpose; commands print its text and exit with `exit_code`."""

    exit_code = 1


class UsageError(AutotuneError):
    """A command line, a setting or a file of the user's is not one that autotune can follow."""

    exit_code = 2


class PlanError(UsageError):
    """A plan names an unknown knob, an unknown value, or was written by another version."""


class NotFoundError(UsageError):
    """The store has no such run, trial or job."""


class NotAllowedError(UsageError):
    """A token of the search service is missing, or does not allow what was asked."""


class WorkloadError(AutotuneError):
    """The workload breaks its contract or raises; `user_traceback` starts at the user's file."""

    exit_code = 3

    def __init__(self, message: str, user_traceback: str = "") -> None:
        super().__init__(message)
        self.user_traceback = user_traceback


class NothingRanError(AutotuneError):
    """Not a single plan could be run on this machine."""

    exit_code = 4


class ResourceError(AutotuneError):
    """A run's store, its cluster or its disk cannot be used; what was measured before is kept."""

    exit_code = 5


class StoreError(ResourceError):
    """The store cannot be opened, read or written."""


class ServerError(ResourceError):
    """A server of the search service cannot be reached, or cannot do what it was asked."""


class ClusterError(ResourceError):
    """The Ray cluster cannot be started or reached."""


class DiskFullError(ResourceError):
    """The disk that a trial writes to is full."""


class RegressionError(AutotuneError):
    """A training became slower, larger or later to start than the limits of a check allow."""

    exit_code = 6


class InterruptedRunError(AutotuneError):
    """The user interrupted the run; everything measured so far is in the store."""

    exit_code = 130


def nearest(word: object, known: Iterable[object]) -> str:
    """Return `"; did you mean X?"` for the known word closest to `word`, or an empty string."""
    matches = difflib.get_close_matches(str(word), [str(k) for k in known], n=1, cutoff=0.5)
    return f"; did you mean {matches[0]!r}?" if matches else ""
