"""The use case behind `autotune check`: measures, compares with the limits, and remembers."""

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.agent.bench import Bench
from autotune.agent.check.history import STRIKES, drops_before, reference_points
from autotune.agent.check.limits import (
    LEAST_ROUNDS,
    Answer,
    Finding,
    Limit,
    compare_in_turn,
    compare_with_earlier,
)
from autotune.agent.check.points import origin_of, point_of
from autotune.agent.check.revision import (
    checked_out,
    commit_of,
    repository_of,
)
from autotune.agent.check.sides import (
    Checked,
    Side,
    level_of,
    level_of_points,
)
from autotune.errors import AutotuneError, UsageError
from autotune.search_space.plan import Value
from autotune.search_space.target import Target
from autotune.storage.sql import open_store
from autotune.storage.trends import TrendPoint
from autotune.trials.result import Measurement

STORED = "stored"
"""What `--against` says to compare with the points that the store has of the same machine."""
NOW = "now"
"""Names the workload as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRequest:
    """What to check.

    Attributes:
        target: the workload as it is now.
        values: knobs of the plan; the rest is the baseline's.
        against: a revision of the workload's repository, the name of another plan, or `STORED`.
        other_values: knobs of the other plan; None: `against` is no plan.
        limits: the largest changes for the worse.
        budget_s: wall clock allowed, on `time.monotonic()` from `started_at`.
        storage: file or URL of the store that keeps the points.
    """

    target: Target
    values: Mapping[str, Value]
    against: str
    other_values: Mapping[str, Value] | None
    limits: Sequence[Limit]
    budget_s: float
    started_at: float
    num_ranks: int = 1
    seed: int = 0
    storage: str | None = None


def check(request: CheckRequest, on_round: Callable[[str, Measurement], None]) -> Checked:
    """Measure, compare and remember; return what was found.

    Args:
        request: what to check.
        on_round: is told the name of each side and what was measured of it.

    Raises:
        UsageError: for an unknown revision, or one without the workload.
        AutotuneError: when a side cannot be measured.
    """
    with (
        closing(open_store(request.storage)) as store,
        Bench(request.target, num_ranks=request.num_ranks, seed=request.seed) as bench,
    ):
        origin = origin_of(request.target)
        subject = bench.subject(request.target, request.values)
        now = Side(name=NOW, commit=origin.commit, subject=subject)
        turns = _Turns(bench, request, on_round)
        series = origin.series(subject.plan, bench.hardware, request.num_ranks)
        if request.against == STORED:
            checked = _against_earlier(turns, now, store.trends.points(series))
        else:
            with _reference(bench, request) as reference:
                checked = _in_turn(turns, now, reference)
            assert checked.reference is not None
            plan = reference.subject.plan
            theirs = origin.series(plan, bench.hardware, request.num_ranks)
            store.trends.keep(point_of(checked.reference, plan, theirs, bench.hardware))
        is_drop = bool(checked.drops)
        kept = point_of(checked.now, subject.plan, series, bench.hardware, is_drop=is_drop)
        store.trends.keep(kept)
        return checked


def is_failed(checked: Checked) -> bool:
    """Whether a limit is broken for certain."""
    if checked.drops is not None:
        return checked.drops >= STRIKES
    return any(found.answer is Answer.BEYOND for found in checked.findings)


class _Turns:
    """Measures sides in turn until the answers are known, or time is up."""

    def __init__(
        self, bench: Bench, request: CheckRequest, on_round: Callable[[str, Measurement], None]
    ) -> None:
        self._bench, self._on_round = bench, on_round
        self.limits, self._started_at = request.limits, request.started_at
        self._ends_at = request.started_at + request.budget_s

    def until_known(
        self,
        sides: Sequence[Side],
        compare: Callable[[Sequence[list[Measurement]]], Sequence[Finding]],
    ) -> tuple[Sequence[list[Measurement]], Sequence[Finding]]:
        """Return the measurements of each side, and what was found.

        The order changes from round to round, as the second process of a round may find the
        machine warmer than the first.
        """
        measured: list[list[Measurement]] = [[] for _ in sides]
        findings: Sequence[Finding] = ()
        for number in itertools.count():
            began_at = time.monotonic()
            order = range(len(sides)) if number % 2 == 0 else reversed(range(len(sides)))
            for position in order:
                measured[position].append(self._measure(sides[position]))
            findings = compare(measured)
            round_s = time.monotonic() - began_at
            is_known = number + 1 >= LEAST_ROUNDS and _are_known(findings)
            if is_known or time.monotonic() + round_s > self._ends_at:
                break
        return measured, findings

    @property
    def seconds(self) -> float:
        """Wall clock of the check so far."""
        return time.monotonic() - self._started_at

    def _measure(self, side: Side) -> Measurement:
        with _told_of(side.name):
            measured = self._bench.measure(side.subject).measurement
        assert measured is not None
        self._on_round(side.name, measured)
        return measured


def _are_known(findings: Sequence[Finding]) -> bool:
    return all(found.answer is not Answer.UNKNOWN for found in findings)


@contextmanager
def _told_of(name: str) -> Iterator[None]:
    """Say of errors in the block that they are the reference's, if they are.

    Raises:
        UsageError: in place of an error that is not one of the workload as it is now.
    """
    try:
        yield
    except AutotuneError as error:
        if name == NOW:
            raise
        raise UsageError(f"{name} cannot be measured: {error}") from error


def _in_turn(turns: _Turns, now: Side, reference: Side) -> Checked:
    def compare(measured: Sequence[list[Measurement]]) -> list[Finding]:
        found = (compare_in_turn(limit, *measured) for limit in turns.limits)
        return [finding for finding in found if finding is not None]

    (ours, theirs), findings = turns.until_known((now, reference), compare)
    return Checked(
        now=level_of(now.name, now.commit, ours),
        reference=level_of(reference.name, reference.commit, theirs),
        findings=tuple(findings),
        num_rounds=len(ours),
        seconds=turns.seconds,
    )


def _against_earlier(turns: _Turns, now: Side, points: Sequence[TrendPoint]) -> Checked:
    earlier = reference_points(points)

    def compare(measured: Sequence[list[Measurement]]) -> list[Finding]:
        found = (compare_with_earlier(limit, measured[0], earlier) for limit in turns.limits)
        return [finding for finding in found if finding is not None]

    (ours,), findings = turns.until_known((now,), compare)
    is_drop = any(found.answer is Answer.BEYOND for found in findings)
    return Checked(
        now=level_of(now.name, now.commit, ours),
        reference=level_of_points(earlier) if earlier else None,
        findings=tuple(findings),
        num_rounds=len(ours),
        seconds=turns.seconds,
        drops=drops_before(points) + 1 if is_drop else 0,
    )


@contextmanager
def _reference(bench: Bench, request: CheckRequest) -> Iterator[Side]:
    """Give what is compared with: another plan, or the same plan of another revision."""
    name, target = request.against, request.target
    if request.other_values is not None:
        with _told_of(name):
            subject = bench.subject(target, request.other_values)
        yield Side(name=name, commit=commit_of(target.path.parent), subject=subject)
        return
    repository = repository_of(target.path.parent)
    if repository is None:
        raise UsageError(
            f"--against {name}: {target.path.parent} is in no git repository; name a plan file to "
            f"compare with, or `{STORED}` for what this machine measured before"
        )
    with checked_out(repository, name) as (commit, folder):
        theirs = replace(target, path=_moved(target.path, repository, folder))
        _check_is_there(theirs.path, name, request)
        with _told_of(name):
            subject = bench.subject(theirs, request.values, _moved(Path.cwd(), repository, folder))
        yield Side(name=name, commit=commit, subject=subject)


def _moved(path: Path, repository: Path, folder: Path) -> Path:
    """Return the same place in another folder; the path itself where it is not in the first."""
    path = path.resolve()
    return folder / path.relative_to(repository) if path.is_relative_to(repository) else path


def _check_is_there(path: Path, name: str, request: CheckRequest) -> None:
    """Raise an error where a revision lacks the workload, or a command would run this one's.

    Raises:
        UsageError: with what to do.
    """
    if not path.is_file():
        raise UsageError(f"--against {name}: that revision has no {request.target.path.name}")
    argv = request.target.command.argv if request.target.command else ()
    if any(word == str(request.target.path) for word in argv[1:]):
        raise UsageError(
            f"{request.target.path}: write the script relative to the current folder, so that the "
            f"command runs the one of {name} there"
        )
