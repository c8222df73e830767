"""What a run's store tells about it: where its seconds went, what its trials gained, its score."""

import itertools
import statistics
from dataclasses import dataclass
from datetime import datetime

from autotune.storage.records import RunRecord, TrialRecord
from autotune.trials.result import Measurement, Outcome, Purpose

LONGER = 1.25
"""So many times its expected length is long for a trial."""

GAIN = 1.01
"""A trial gained when it is so many times as fast as the best before it."""

WHOLE = {
    Purpose.NUMERICS: "numerics check",
    Purpose.CONFIRM: "confirmation",
    Purpose.ABLATE: "ablation",
}
"""Trials whose seconds are counted as one, whatever their own phases were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """One run of the command, as seen from outside and as stored.

    Attributes:
        started_at, ended_at: of the command's process.
        trials: all of the run's.
    """

    run: RunRecord
    trials: tuple[TrialRecord, ...]
    started_at: datetime
    ended_at: datetime

    @property
    def wall_s(self) -> float:
        """Seconds that the command took."""
        return (self.ended_at - self.started_at).total_seconds()

    @property
    def num_devices(self) -> int:
        """Devices that trials could run on."""
        return int(self.run.new.hardware["num_devices"])


def seconds_by_phase(watched: Watched) -> dict[str, float]:
    """Return the budget's seconds by what they were spent on.

    A trial on one of several devices counts by its share of them, so that the phases up to
    `conclusion` add up to the command's wall clock. `idle` is when devices had no trial.
    """
    finished = [trial for trial in watched.trials if trial.finished_at is not None]
    if not finished:
        return {"start-up": watched.wall_s, "unused": unused_s(watched)}
    begin = min(trial.started_at for trial in finished)
    end = max(trial.finished_at for trial in finished)
    spent: dict[str, float] = {}
    for trial in finished:
        for phase, seconds in seconds_of(trial).items():
            share = seconds * trial.num_ranks / watched.num_devices
            spent[phase] = spent.get(phase, 0.0) + share
    return {
        "start-up": (begin - watched.started_at).total_seconds(),
        **spent,
        "idle": (end - begin).total_seconds() - sum(spent.values()),
        "conclusion": (watched.ended_at - end).total_seconds(),
        "unused": unused_s(watched),
    }


def unused_s(watched: Watched) -> float:
    """Return the seconds of the budget that the command gave back."""
    return max(0.0, watched.run.new.budget_s - watched.wall_s)


def seconds_of(trial: TrialRecord) -> dict[str, float]:
    """Return the seconds of one finished trial by phase."""
    total_s = (trial.finished_at - trial.started_at).total_seconds()
    if trial.purpose in WHOLE:
        return {WHOLE[trial.purpose]: total_s}
    measured = trial.result.measurement
    if measured is None:
        return {"failed trials": total_s}
    diagnosis = trial.result.diagnosis
    phases = {**phases_of(measured), "diagnosis": diagnosis.took_s if diagnosis else 0.0}
    return {"start of trials": total_s - sum(phases.values()), **phases}


def phases_of(measured: Measurement) -> dict[str, float]:
    """Return the seconds of a measured trial's own phases."""
    return {
        "build": measured.build_s,
        "first step": measured.first_step_s,
        "warm-up": measured.warm_up_s,
        "windows": measured.measure_s,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Gains:
    """What the trials that looked for something faster came to.

    Attributes:
        num_trials, num_ok: that looked, and that were measured.
        num_gained: of these, faster than the best before them.
        gained_s, other_s: seconds of those that gained, and of those that did not.
    """

    num_trials: int
    num_ok: int
    num_gained: int
    gained_s: float
    other_s: float


def gains(trials: tuple[TrialRecord, ...]) -> Gains:
    """Return how many trials beat the best before them, of those after the first measured."""
    looked = [trial for trial in trials if trial.result and trial.purpose not in WHOLE]
    looked.sort(key=lambda trial: trial.finished_at)
    speeds = [speed_per_device(trial) for trial in looked]
    best_before = [0.0, *itertools.accumulate(speeds, max)]
    gained_s = other_s = 0.0
    num_gained = 0
    for trial, speed, best in zip(looked, speeds, best_before, strict=False):
        took_s = (trial.finished_at - trial.started_at).total_seconds()
        if trial.purpose is Purpose.BASELINE or best == 0.0:
            continue
        if speed >= GAIN * best:
            num_gained, gained_s = num_gained + 1, gained_s + took_s
        else:
            other_s += took_s
    return Gains(
        num_trials=len(looked),
        num_ok=sum(trial.outcome is Outcome.OK for trial in looked),
        num_gained=num_gained,
        gained_s=gained_s,
        other_s=other_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """How well trials kept what the search expected of them.

    Attributes:
        num_trials: of which something was expected, and which ended by themselves.
        expected_gains, num_gained: the sum of their chances of a gain, and how many gained.
        of_throughput, of_seconds: measured over expected, the median; None without any.
        num_longer: trials that took more than a quarter longer than expected.
    """

    num_trials: int
    expected_gains: float
    num_gained: int
    of_throughput: float | None
    of_seconds: float | None
    num_longer: int


def kept(trials: tuple[TrialRecord, ...]) -> Kept:
    """Return how well trials kept what the search expected of them."""
    best, rows = 0.0, []
    ended = (trial for trial in trials if trial.result and trial.purpose not in WHOLE)
    for trial in sorted(ended, key=lambda trial: trial.finished_at):
        speed = speed_per_device(trial)
        if trial.promise is not None and trial.outcome is not Outcome.CANCELLED:
            rows.append((trial.promise, speed * trial.num_ranks, speed >= GAIN * best, trial))
        best = max(best, speed)
    lasting = [trial.result.total_s / p.seconds for p, *_, trial in rows if trial.result.total_s]
    speeds = [speed / promise.throughput for promise, speed, *_ in rows if speed]
    return Kept(
        num_trials=len(rows),
        expected_gains=sum(promise.chance for promise, *_ in rows),
        num_gained=sum(gained for *_, gained, _ in rows),
        of_throughput=statistics.median(speeds) if speeds else None,
        of_seconds=statistics.median(lasting) if lasting else None,
        num_longer=sum(ratio > LONGER for ratio in lasting),
    )


def speed_per_device(trial: TrialRecord) -> float:
    """Return the samples per second and device of a finished trial, zero where it failed."""
    measured = trial.result.measurement
    return measured.throughput / trial.num_ranks if measured else 0.0


def confirmed_throughput(watched: Watched) -> float | None:
    """Return the winner's samples per second; one that is not confirmed counts as the baseline."""
    winner = watched.run.winner
    if winner is None:
        return None
    return (winner.own if winner.confirmed else winner.baseline).throughput


def best_known(records: list[dict], workload: str, device: str) -> dict | None:
    """Return the record with the most samples per second and device, of experts and of runs.

    Args:
        records: lines of results files, with `workload`, `device`, `num_devices`, `throughput`.
        workload: the stem of its file.
        device: the name of the device; speeds of others say nothing.
    """
    known = [
        record
        for record in records
        if (record["workload"], record.get("device")) == (workload, device)
        and record["throughput"] is not None
    ]
    return max(known, key=per_device, default=None)


def per_device(record: dict) -> float:
    """Return a record's samples per second on each of its devices."""
    return record["throughput"] / record["num_devices"]
