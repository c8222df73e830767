"""A finished trial, as the decisions of a run use it."""

from collections.abc import Iterable
from dataclasses import dataclass

from autotune.search_space.plan import Plan
from autotune.storage.records import TrialRecord
from autotune.trials.cause import Cause
from autotune.trials.result import Outcome, Purpose, TrialResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A finished trial, on `num_ranks` devices."""

    number: int
    plan: Plan
    purpose: Purpose
    reason: str
    result: TrialResult
    num_ranks: int = 1

    @property
    def is_measured(self) -> bool:
        """Whether the trial has a throughput; failures and numerics checks have none."""
        return self.result.measurement is not None

    @property
    def throughput(self) -> float:
        """Samples per second over all ranks.

        Raises:
            LookupError: when nothing was measured; `is_measured` tells.
        """
        if self.result.measurement is None:
            raise LookupError(f"trial {self.number} has no throughput: nothing was measured")
        return self.result.measurement.throughput

    @property
    def total_s(self) -> float | None:
        """Seconds from submission until the device is free again, None where unknown."""
        return self.result.total_s

    @property
    def undiagnosed_s(self) -> float:
        """The trial's seconds without its diagnosis, as another trial of the plan has none.

        Raises:
            LookupError: when it is unknown.
        """
        if self.total_s is None:
            raise LookupError(f"trial {self.number} does not say how long it took")
        diagnosis = self.result.diagnosis
        return self.total_s - (diagnosis.took_s if diagnosis else 0.0)

    @property
    def was_too_slow(self) -> bool:
        """Whether the trial was ended for taking too long, and not by the end of the budget."""
        return self.result.outcome is Outcome.TIMEOUT or self.result.cause is Cause.TOO_SLOW


def lengths_s(trials: Iterable[Done]) -> list[float]:
    """Return the seconds that each trial took, without those where it is unknown."""
    return [trial.total_s for trial in trials if trial.total_s is not None]


def done_from_records(records: list[TrialRecord]) -> tuple[Done, ...]:
    """Return the finished trials among those of a stored run."""
    return tuple(
        Done(
            number=record.number,
            plan=record.plan,
            purpose=record.purpose,
            reason=record.reason,
            result=record.result,
            num_ranks=record.num_ranks,
        )
        for record in records
        if record.result is not None
    )
