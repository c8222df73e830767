"""Why a winner is faster than the baseline: what its settings are worth, and the way to it."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autotune.agent.objectives.objective import ObjectiveName
from autotune.report.effects import (
    SURE,
    Effects,
    SeenPlan,
    Setting,
    estimate,
    figure_of,
    seen_plans,
    settings_of,
    told_apart,
)
from autotune.search_space.plan import Plan, Value
from autotune.storage.records import NOT_SEARCHED, RunRecord, TrialRecord, Winner
from autotune.trials.result import Purpose


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one setting of the winner is worth, or several that were not measured apart.

    Attributes:
        settings: the knobs with the winner's values.
        factor: the ratio of the winner's figure to the one without these settings.
        low, high: its 95 % interval; None where it is not known: the winner was measured once, or
            the interval is wider than tenfold.
        is_noise: none of these settings is known to change anything, as the interval of each holds
            1; that of all together need not.
        trial: the number of the first trial on the path that had these settings.
    """

    settings: Mapping[str, Value]
    factor: float
    low: float | None
    high: float | None
    is_noise: bool
    trial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """A measured trial on the way from the baseline to the winner.

    Attributes:
        trial: its number.
        figure: its samples per second, or its peak in bytes.
        added: the winner's settings that it has and the stop before it had not.
    """

    trial: int
    figure: float
    added: Mapping[str, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """The way from the baseline to the winner as factors, which multiply to `factor`.

    Attributes:
        is_memory: the figures are peaks in bytes, as the objective is memory; otherwise they are
            samples per second.
        baseline: the figure of the baseline.
        winner: that of the winner.
        shares: in the order in which the path adds their settings; settings within noise are one
            share, the last one.
        path: measured trials from the baseline to the winner, each with some more of the winner's
            settings and no other change.
    """

    is_memory: bool
    baseline: float
    winner: float
    shares: tuple[Share, ...]
    path: tuple[Stop, ...]

    @property
    def factor(self) -> float:
        """The ratio of the winner's figure to the baseline's."""
        return self.winner / self.baseline


def why_of(run: RunRecord, trials: Sequence[TrialRecord]) -> Why | None:
    """Return why the run's winner is better, None where it has none or kept the baseline.

    Args:
        run: with its winner.
        trials: all of its trials.
    """
    winner = run.winner
    if winner is None or winner.kept_baseline:
        return None
    is_memory = run.new.objective["name"] == ObjectiveName.MEMORY.value
    baseline = _baseline(run, trials)
    figures = _figures(run, is_memory=is_memory)
    settings = settings_of(winner.plan, baseline)
    measured = _measured(run, trials)
    is_whole = {baseline, winner.plan} <= {trial.plan for trial in measured}
    if figures is None or not settings or not is_whole:
        return None
    path = _path(measured, baseline, settings, is_memory=is_memory)
    seen = seen_plans(measured, is_memory=is_memory)
    total = math.log(figures[1] / figures[0]), _total_std(winner, seen)
    effects = estimate(seen, baseline, settings, total)
    return Why(
        is_memory=is_memory,
        baseline=figures[0],
        winner=figures[1],
        shares=_shares(
            told_apart(effects, seen, settings), settings, path, is_confirmed=winner.confirmed
        ),
        path=path,
    )


def _figures(run: RunRecord, *, is_memory: bool) -> tuple[float, float] | None:
    """Return the figures of baseline and winner as the run concluded them."""
    assert run.winner is not None
    own, theirs = run.winner.own, run.winner.baseline
    before = theirs.memory_bytes if is_memory else theirs.throughput
    after = own.memory_bytes if is_memory else own.throughput
    if not is_memory and run.winner.speedup and after:
        before = after / run.winner.speedup.ratio
    return (before, after) if before and after else None


def _total_std(winner: Winner, seen: Sequence[SeenPlan]) -> float:
    """Return the standard deviation of the logarithm of the winner's speed-up."""
    known = winner.speedup
    if known and known.low and known.high:
        return math.log(known.high / known.low) / 2 / SURE
    return math.sqrt(2 * max(one.variance for one in seen))


def _baseline(run: RunRecord, trials: Iterable[TrialRecord]) -> Plan:
    """Return the baseline that was measured; its batch is smaller if the user's did not fit."""
    plans = (t.plan for t in _measured(run, trials) if t.purpose is Purpose.BASELINE)
    return next(plans, run.new.baseline)


def _measured(run: RunRecord, trials: Iterable[TrialRecord]) -> list[TrialRecord]:
    """Return the measured trials on as many ranks as the winner has."""
    return [
        trial
        for trial in trials
        if trial.result is not None
        and trial.result.measurement is not None
        and trial.num_ranks == run.new.num_ranks
        and trial.purpose not in NOT_SEARCHED
    ]


def _shares(
    effects: Effects, settings: Sequence[Setting], path: Sequence[Stop], *, is_confirmed: bool
) -> tuple[Share, ...]:
    numbers = range(len(effects.members))
    sure = [[number] for number in numbers if effects.is_sure(number)]
    noise = [number for number in numbers if not effects.is_sure(number)]
    folded = effects.merged([*sure, *([noise] if noise else [])])
    found = [
        _share(
            folded, number, settings, path, is_confirmed=is_confirmed, is_noise=number >= len(sure)
        )
        for number in range(len(folded.members))
    ]
    return tuple(sorted(found, key=lambda s: (s.is_noise, s.trial, -abs(math.log(s.factor)))))


def _share(
    effects: Effects,
    number: int,
    settings: Sequence[Setting],
    path: Sequence[Stop],
    *,
    is_confirmed: bool,
    is_noise: bool,
) -> Share:
    own = dict(settings[member] for member in sorted(effects.members[number]))
    mean, half = float(effects.mean[number]), effects.half_width(number)
    is_known = is_confirmed and effects.is_known(number)
    return Share(
        settings=own,
        factor=math.exp(mean),
        low=math.exp(mean - half) if is_known else None,
        high=math.exp(mean + half) if is_known else None,
        is_noise=is_noise,
        trial=next(s.trial for at, s in enumerate(path) if own.keys() <= _until(path, at)),
    )


def _until(path: Sequence[Stop], position: int) -> set[str]:
    """Return the knobs that the path has set at a stop."""
    return {name for stop in path[: position + 1] for name in stop.added}


def _path(
    trials: Sequence[TrialRecord],
    baseline: Plan,
    settings: Sequence[Setting],
    *,
    is_memory: bool,
) -> tuple[Stop, ...]:
    """Return the longest chain of trials that adds the winner's settings and changes no other."""
    first: dict[frozenset[Setting], TrialRecord] = {}
    for trial in trials:
        own = frozenset(settings_of(trial.plan, baseline))
        if own <= set(settings) and figure_of(trial, is_memory=is_memory):
            first.setdefault(own, trial)
    best: dict[frozenset[Setting], list[frozenset[Setting]]] = {}
    for own in sorted(first, key=len):
        before = max((best[less] for less in best if less < own), key=len, default=[])
        best[own] = [*before, own]
    chain = best.get(frozenset(settings), [])
    stops: list[Stop] = []
    had: frozenset[Setting] = frozenset()
    for own in chain:
        figure = figure_of(first[own], is_memory=is_memory)
        assert figure is not None
        added = dict(sorted(own - had))
        stops.append(Stop(trial=first[own].number, figure=figure, added=added))
        had = own
    return tuple(stops)
