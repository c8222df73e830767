"""Why a trial ended, where its outcome alone does not say it. What follows is decided by this."""

import enum
import errno
import os


class Cause(enum.Enum):
    """Why a trial was ended from outside, or why the machine could not run it.

    Most outcomes say all, and their trials have no cause. These two do not:

    cancelled ─┬─ user_stopped   Ctrl-C. The plan runs again when the run goes on
               ├─ search_ended   the time for searching was over. The plan is not run again
               ├─ budget_ended   the whole budget was over. A longer one may run the plan again
               └─ too_slow       it took much longer than expected. The plan is tried once more
    infra ───────  disk_full     no room for what it wrote. The run ends, and may go on with room
    """

    USER_STOPPED = "user_stopped"
    SEARCH_ENDED = "search_ended"
    BUDGET_ENDED = "budget_ended"
    TOO_SLOW = "too_slow"
    DISK_FULL = "disk_full"

    @property
    def words(self) -> str:
        """The cause as the error of a trial tells it."""
        return _WORDS[self]


_WORDS = {
    Cause.USER_STOPPED: "the user stopped the run",
    Cause.SEARCH_ENDED: "the time for searching ended",
    Cause.BUDGET_ENDED: "the budget ended",
    Cause.TOO_SLOW: "given up: it took much longer than expected",
    Cause.DISK_FULL: "the disk is full",
}


def cause_of(error: BaseException) -> Cause | None:
    """Return the cause of a trial that an exception ended, None where there is no such cause.

    A disk is full where an exception, or one that led to it, has the number ENOSPC.
    """
    return Cause.DISK_FULL if any(_has_no_space(each) for each in _with_origins(error)) else None


def tells_of_full_disk(text: str) -> bool:
    """Return whether the text of another process's exception says that a disk is full.

    Loader workers and compilers send their exceptions as text, without a number. A full shared
    memory is no full disk: workers and batches fill it, so their plan is to blame.
    """
    return os.strerror(errno.ENOSPC) in text and "shared memory" not in text


def _has_no_space(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno == errno.ENOSPC


def _with_origins(error: BaseException) -> list[BaseException]:
    chain: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and all(following is not each for each in chain):
        chain.append(following)
        following = following.__cause__ or following.__context__
    return chain
