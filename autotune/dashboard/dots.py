"""Sorts a run's trials by what charts say of them, and writes what a pointer on a dot shows."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

from autotune.dashboard import colours
from autotune.report.words import gib, samples
from autotune.search_space.changes import changes
from autotune.search_space.plan import Plan, spell
from autotune.storage.dots import Dot
from autotune.storage.records import NOT_SEARCHED, RunRecord
from autotune.trials.result import Outcome

CHANGES_IN_LINE = 3
"""Changed knobs on a line of what a pointer shows, as it must fit a phone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """What a dot stands for, with its mark."""

    name: str
    colour: str
    symbol: str
    size: int = 9


BASELINE = Role(name="baseline", colour=colours.BASELINE, symbol="diamond", size=12)
WINNER = Role(name="winner", colour=colours.WINNER, symbol="star", size=15)
TRIAL = Role(name="trial", colour=colours.TRIAL, symbol="circle")
DISQUALIFIED = Role(name="may not win", colour=colours.FAILED, symbol="circle-open")
OUT_OF_MEMORY = Role(name="out of memory", colour=colours.FAILED, symbol="x", size=10)
FAILED = Role(name="failed", colour=colours.FAILED, symbol="cross-open", size=10)
ROLES = (TRIAL, BASELINE, WINNER, DISQUALIFIED, OUT_OF_MEMORY, FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDots:
    """The dots of a run that may win, and what is known of their plans.

    Attributes:
        run: whose trials they are.
        dots: all, or every k-th.
        disqualified: plans that may not win: their numerics differ, or they need too much memory.
    """

    run: RunRecord
    dots: Sequence[Dot]
    disqualified: frozenset[Plan] = field(default_factory=frozenset)

    @property
    def compared(self) -> list[Dot]:
        """The trials that are compared with each other: no scouts, no checks of numerics."""
        return [
            dot
            for dot in self.dots
            if dot.num_ranks == self.run.new.num_ranks and dot.purpose not in NOT_SEARCHED
        ]

    @property
    def measured(self) -> list[Dot]:
        """Those that have a throughput."""
        return [
            dot
            for dot in self.compared
            if dot.outcome is Outcome.OK and dot.throughput is not None
        ]

    @property
    def failed(self) -> list[Dot]:
        """Those that failed; a cancelled trial is no failure."""
        return [dot for dot in self.compared if self.role(dot) in {OUT_OF_MEMORY, FAILED}]

    def role(self, dot: Dot) -> Role:
        """Return what a dot stands for."""
        if dot.outcome is Outcome.OOM:
            return OUT_OF_MEMORY
        if dot.outcome not in {Outcome.OK, Outcome.CANCELLED, None}:
            return FAILED
        if dot.plan == self.run.new.baseline:
            return BASELINE
        if self.run.winner is not None and dot.plan == self.run.winner.plan:
            return WINNER
        return DISQUALIFIED if dot.plan in self.disqualified else TRIAL

    def pointed(self, dot: Dot) -> str:
        """Return what a pointer on a dot shows: the trial, its changes, and what it gave."""
        lines = [f"<b>trial {dot.number}</b>, {self.role(dot).name}", *self._changes(dot)]
        if dot.throughput is not None and dot.low is not None:
            span = f"{samples(dot.low)} to {samples(dot.high)}"
            lines.append(f"{samples(dot.throughput)} samples/s ({span}, 95 %)")
        if dot.memory_bytes is not None:
            lines.append(f"{gib(dot.memory_bytes)} GiB")
        return "<br>".join(lines)

    def _changes(self, dot: Dot) -> Iterable[str]:
        changed = changes(dot.plan, self.run.new.baseline).items()
        known = [escape(f"{knob}={spell(value)}") for knob, value in changed if value is not None]
        for first in range(0, len(known), CHANGES_IN_LINE):
            yield " ".join(known[first : first + CHANGES_IN_LINE])
