"""How runs are named: by the user, by the store, and in the commands that ask for one."""

import re
from collections.abc import Sequence

from autotune.errors import NotFoundError, UsageError, nearest
from autotune.storage.records import NewRun, RunState

RESERVED = re.compile(r"last|\d+|run-\d+|\s*")
"""Names that stand for runs by themselves."""


def default_name(run_id: int) -> str:
    """Return the name of a run whose user gave none."""
    return f"run-{run_id}"


def check_name(name: str | None) -> None:
    """Check the name that a user gives to a run; None leaves the choice to the store.

    Raises:
        UsageError: when it stands for a run by itself.
    """
    if name is not None and RESERVED.fullmatch(name):
        raise UsageError(
            f"--name {name!r} is not possible: 'last', numbers and 'run-<number>' stand for runs "
            "by themselves; choose another name"
        )


def name_taken(new: NewRun, *, run_id: int, key: str, state: RunState) -> UsageError:
    """Return the error for a new run whose name the run `run_id` has already."""
    same = "is already there" if key == new.key else "is another workload, machine or space"
    return UsageError(
        f"--name {new.name!r} is taken: run {run_id} of that name {same} ({state.value}); "
        "choose another name"
    )


def no_such_run(ref: str, names: Sequence[str], store: str) -> NotFoundError:
    """Return the error for a run that `store` does not have; `names` are those of its runs."""
    if not names:
        return NotFoundError(f"{store} has no run yet; `autotune run MODEL` makes one")
    near = nearest(ref, names)
    return NotFoundError(f"no run {ref!r} in {store}{near}; `autotune runs` lists all")
