"""Which earlier trial a trial is a change of, and what it changes."""

from collections.abc import Iterable
from dataclasses import dataclass

from autotune.search_space.changes import changes
from autotune.search_space.knobs.batch import FOLLOWS
from autotune.search_space.plan import Plan, Value, spell
from autotune.storage.records import TrialRecord
from autotune.trials.result import Purpose

# Plans that a new one is compared with: the first, which is the baseline, and the latest.
_MAX_KNOWN = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The measured trial that a plan differs least from, and the differences.

    Attributes:
        trial: its number; None: nothing was measured before.
        is_again: it ran the same plan.
        changes: by knob the new value; None where the knob no longer applies.
    """

    trial: int | None = None
    is_again: bool = False
    changes: tuple[tuple[str, Value | None], ...] = ()


@dataclass(slots=True)
class _Known:
    """A measured plan.

    Attributes:
        number: of its first trial.
        seen: how many trials had been measured at its last one.
    """

    number: int
    plan: Plan
    num_ranks: int
    throughput: float
    seen: int


class Lineage:
    """The measured plans of a run so far, to find what a new plan is a change of.

    Args:
        baseline: the user's own configuration, which the first trials are a change of.
    """

    def __init__(self, baseline: Plan) -> None:
        self._baseline = baseline
        self._known: list[_Known] = []
        self._num_measured = 0

    def add(self, number: int, plan: Plan, num_ranks: int, throughput: float) -> None:
        """Add a measured trial; a plan is known by its first one."""
        self._num_measured += 1
        for known in self._known:
            if known.plan == plan and known.num_ranks == num_ranks:
                known.seen = self._num_measured
                return
        seen = self._num_measured
        self._known.append(_Known(number, plan, num_ranks, throughput, seen))
        del self._known[1:-_MAX_KNOWN]

    def origin(self, plan: Plan, purpose: Purpose, num_ranks: int) -> Origin:
        """Return the measured trial that the plan differs least from.

        Of several it is the fastest, or where the worth of a setting is asked for, the one that
        was measured last: that of the winner. Trials on another number of ranks count where there
        are none on this one.
        """
        same = [known for known in self._known if known.num_ranks == num_ranks] or self._known
        if not same or (purpose is Purpose.BASELINE and not self._has(plan, num_ranks)):
            return Origin(changes=tuple(_changes(plan, self._baseline).items()))

        def distance(known: _Known) -> tuple[int, float]:
            # A knob that no longer applies, such as the compiler's scope, follows from another.
            changed = [v for v in _changes(plan, known.plan).values() if v is not None]
            preferred = known.seen if purpose is Purpose.ABLATE else known.throughput
            return len(changed), -preferred

        nearest = min(same, key=distance)
        changed = _changes(plan, nearest.plan)
        is_again = not changed and nearest.num_ranks == num_ranks
        return Origin(trial=nearest.number, is_again=is_again, changes=tuple(changed.items()))

    def _has(self, plan: Plan, num_ranks: int) -> bool:
        return any(known.plan == plan and known.num_ranks == num_ranks for known in self._known)


def origins(baseline: Plan, trials: Iterable[TrialRecord]) -> dict[int, Origin]:
    """Return the origin of each trial of a run, given in their order."""
    lineage, found = Lineage(baseline), {}
    for trial in trials:
        found[trial.number] = lineage.origin(trial.plan, trial.purpose, trial.num_ranks)
        measured = trial.result and trial.result.measurement
        if measured:
            lineage.add(trial.number, trial.plan, trial.num_ranks, measured.throughput)
    return found


def change_words(origin: Origin, purpose: Purpose, num_ranks: int = 1) -> list[str]:
    """Return what a trial changes as whole words, which are shown as far as they fit."""
    on = [f"on {num_ranks} devices:"] if num_ranks > 1 else []
    if purpose is Purpose.NUMERICS:
        return [*on, "check of its numerics"]
    if purpose is Purpose.QUALITY:
        return [*on, "trained to the target"]
    if origin.is_again:
        return [*on, "measured again"]
    words = [f"{knob}={spell(value)}" for knob, value in origin.changes if value is not None]
    if purpose is Purpose.BASELINE:
        return [*on, "your own configuration", *(["with", *words] if words else [])]
    words = words or [f"without {knob}" for knob, _ in origin.changes]
    words = words or ["the same plan"]
    return [*on, *(["back to"] if purpose is Purpose.ABLATE else []), *words]


def fitted(words: list[str], width: int | None) -> str:
    """Return as many of the words as fit into a width, and how many are left out.

    Args:
        words: whole words, such as settings.
        width: in characters; None: any.
    """
    whole = " ".join(words)
    if width is None or len(whole) <= width:
        return whole
    for shown in range(len(words) - 1, 0, -1):
        text = f"{' '.join(words[:shown])} +{len(words) - shown}"
        if len(text) <= width:
            return text
    return f"{len(words)} changes" if len(words) > 1 else "1 change"


def _changes(plan: Plan, other: Plan) -> dict[str, Value | None]:
    differing = changes(plan, other)
    if len(differing) > 1:
        differing.pop(FOLLOWS, None)
    return differing
