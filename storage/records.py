"""Runs, trials and winners as plain values, which go into a store and come out of it."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from autotune.search_space.plan import Plan
from autotune.storage.figures import (
    Interval,
    PlanFigures,
    speedup_from_dict,
    speedup_to_dict,
)
from autotune.trials.result import Outcome, Purpose, TrialResult

NOT_SEARCHED = (Purpose.NUMERICS, Purpose.MEASURE, Purpose.QUALITY)
"""Purposes of trials that compare numerics, measure one plan alone or train to a target."""


class RunState(enum.Enum):
    """Where a run is.

    `running` -> `done` (a conclusion was reached), `interrupted` (Ctrl-C) or `failed` (an error
    ended it). A run whose driver was killed stays `running` in the database, and is read as
    `killed` where it can be seen that its `driver` is gone. Such runs, running and interrupted
    ones of the same key go on when the same command is typed again.
    """

    RUNNING = "running"
    KILLED = "killed"
    DONE = "done"
    INTERRUPTED = "interrupted"
    FAILED = "failed"


UNFINISHED = (RunState.RUNNING, RunState.INTERRUPTED)
"""The stored states of runs that go on when the same command is typed again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    """A run about to start.

    Attributes:
        key: equal for runs that may continue each other: workload, machine, space, seed and
            objective.
        name: the user's `--name`, unique; None lets the store choose `run-<id>`.
        workload_path, workload_hash: the file, and the hash of its contents.
        hardware, facts, options: plain JSON values; `num_ranks` of a trial and the run's
            `objective` among the options.
        baseline: the user's own configuration.
        budget_s: wall clock allowed.
        driver: the driving process as `this_driver` names it, to see whether it still lives.
    """

    key: str
    name: str | None
    workload_path: str
    workload_hash: str
    hardware: dict[str, Any]
    facts: dict[str, Any]
    options: dict[str, Any]
    baseline: Plan
    budget_s: float
    driver: str

    @property
    def num_ranks(self) -> int:
        """Ranks of a trial whose plan can win; 1 for runs of versions that knew one rank only."""
        return int(self.options.get("num_ranks", 1))

    @property
    def objective(self) -> dict[str, Any]:
        """What makes a plan the winner; throughput for runs of versions that knew no other."""
        return dict(self.options.get("objective", {"name": "throughput"}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Winner:
    """What a run concluded.

    Attributes:
        plan: the winner, which is the baseline when `kept_baseline`.
        confirmed: winner and baseline were measured again in fresh processes.
        speedup: over the baseline; None when nothing could be confirmed.
        own: what the winner gave, means over the processes that confirmed it.
        baseline: the same of the baseline.
        how: how the numbers were obtained, in words.
        changes: for each changed knob why it may be better, in words.
        remarks: lines the user must read, for example that the batch size changed.
    """

    plan: Plan
    kept_baseline: bool
    confirmed: bool
    speedup: Interval | None
    own: PlanFigures
    baseline: PlanFigures
    how: str
    changes: dict[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return all fields in one flat dict of JSON values, figures and speed-up included."""
        return {
            "plan": self.plan.values,
            "kept_baseline": self.kept_baseline,
            "confirmed": self.confirmed,
            **speedup_to_dict(self.speedup),
            **self.own.to_dict(),
            **self.baseline.to_dict("baseline_"),
            "how": self.how,
            "changes": self.changes,
            "remarks": list(self.remarks),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Winner":
        """Build from what `to_dict` gave; other values are ignored."""
        return cls(
            plan=Plan.of(values["plan"]),
            kept_baseline=values["kept_baseline"],
            confirmed=values["confirmed"],
            speedup=speedup_from_dict(values),
            own=PlanFigures.from_dict(values),
            baseline=PlanFigures.from_dict(values, "baseline_"),
            how=values["how"],
            changes=values["changes"],
            remarks=tuple(values["remarks"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A run as stored; times are aware and in UTC."""

    id: int
    name: str
    new: NewRun
    state: RunState
    used_s: float
    created_at: datetime
    finished_at: datetime | None
    stop_reason: str | None
    num_trials: int
    winner: Winner | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What the search expected of a trial before it ran.

    Attributes:
        throughput: the median of the samples per second.
        chance: probability that the trial is better than the best one before, by 1 % or more.
        seconds: wall clock of the trial.
    """

    throughput: float
    chance: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """A trial as stored, with its number of ranks; `result` is None while it is in flight.

    `promise` is None where nothing was expected, as of the baseline and of confirmations.
    """

    run_id: int
    number: int
    plan: Plan
    purpose: Purpose
    reason: str
    started_at: datetime
    finished_at: datetime | None
    log_path: str | None
    result: TrialResult | None
    num_ranks: int = 1
    promise: Promise | None = None

    @property
    def outcome(self) -> Outcome | None:
        """How the trial ended, None while it is in flight."""
        return None if self.result is None else self.result.outcome
