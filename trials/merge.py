"""Merges the results of all ranks: the measurement, or the failure that caused the others."""

from collections.abc import Sequence
from dataclasses import replace

from autotune.trials.result import Outcome, TrialResult

# From the likeliest cause to the likeliest consequence: a rank that waited for another one ends as
# a timeout, and ranks that were stopped when the trial was over end as cancelled.
_CAUSES_FIRST = (
    Outcome.OOM,
    Outcome.INVALID,
    Outcome.COMPILE_ERROR,
    Outcome.DIVERGED,
    Outcome.CRASH,
    Outcome.TIMEOUT,
    Outcome.INFRA,
    Outcome.CANCELLED,
)


def merge(results: Sequence[TrialResult]) -> TrialResult:
    """Return the trial's result; `results` are by rank, and rank 0's measurement is global.

    The error of a failure names its rank, unless there is only one.
    """
    failed = [rank for rank, result in enumerate(results) if result.outcome is not Outcome.OK]
    if not failed or len(results) == 1:
        return results[0]
    rank = min(failed, key=lambda rank: (results[rank].peer_lost, _order(results[rank]), rank))
    cause = results[rank]
    if cause.outcome is Outcome.DIVERGED:
        return cause  # the loss is the mean over all ranks
    return replace(cause, error=f"rank {rank}: {cause.error or cause.outcome.value}")


def _order(result: TrialResult) -> int:
    return _CAUSES_FIRST.index(result.outcome)
