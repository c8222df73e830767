"""The families of knobs, and what each offers to `apply`: its process-wide settings."""

import contextlib
from collections.abc import Iterator
from typing import Protocol

from autotune.search_space.plan import Plan
from autotune.trials.applying import (
    batch,
    compiler,
    graphs,
    host,
    layout,
    loader,
    memory,
    offload,
    optimizer,
    precision,
    ranks,
)
from autotune.trials.applying.settings import Setting


class Family(Protocol):
    """The module of a family of knobs."""

    def process_settings(self, plan: Plan) -> list[Setting]:
        """Return the settings of the process that the plan's knobs of this family ask for."""


FAMILIES: tuple[Family, ...] = (
    precision,
    compiler,
    graphs,
    batch,
    loader,
    memory,
    layout,
    optimizer,
    host,
    ranks,
    offload,
)


@contextlib.contextmanager
def process_settings(plan: Plan) -> Iterator[None]:
    """Apply the process-wide settings of the plan's knobs, and restore them at the end.

    Settings of knobs that the plan leaves out stay as the user's own code has them.
    """
    with contextlib.ExitStack() as entered:
        for family in FAMILIES:
            for setting in family.process_settings(plan):
                entered.enter_context(setting)
        yield
