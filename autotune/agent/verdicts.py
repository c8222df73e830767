"""What the numerics checks of a run say about its plans, checked or not."""

from collections.abc import Collection, Sequence

from autotune.agent.done import Done
from autotune.search_space.knobs import BY_NAME, Numerics
from autotune.search_space.knobs.ranks import casts_blocks
from autotune.search_space.plan import Plan, Value
from autotune.trials.result import Outcome

# Classes of knobs that change the computed numbers but not what is trained.
_INEXACT = (Numerics.ROUNDING, Numerics.PRECISION)

Signature = frozenset[tuple[str, Value]]
"""The settings that decide which numbers a plan computes."""


class Verdicts:
    """The numerics checks of a run.

    Args:
        ran: the trials with the purpose `numerics`.
        baseline: the user's own configuration.
        own_knobs: the names of the workload's own knobs.
    """

    def __init__(self, ran: Sequence[Done], baseline: Plan, own_knobs: Collection[str]) -> None:
        self._ran, self._baseline, self._own_knobs = ran, baseline, own_knobs
        self._failed = [trial.plan for trial in ran if _failure(trial)]

    @property
    def num_failed(self) -> int:
        """The number of failed checks."""
        return len(self._failed)

    def checks(self, plan: Plan) -> list[Done]:
        """Return the checks of plans that compute the same numbers as `plan`."""
        own = self._computed(plan) if self._ran else None
        return [trial for trial in self._ran if self._computed(trial.plan) == own]

    def failure(self, plan: Plan) -> str | None:
        """Return how the plan failed its check, in words; None when it passed or had none."""
        return next(filter(None, map(_failure, self.checks(plan))), None)

    def has_report(self, plan: Plan) -> bool:
        """Whether a check of the plan's numerics compared any step."""
        reports = (trial.result.numerics for trial in self.checks(plan))
        return any(report and not report.unchecked for report in reports)

    def is_suspect(self, plan: Plan) -> bool:
        """Whether the plan had no check and has the precision of a plan that failed its check.

        The baseline's precision is never suspect.
        """
        if not self._failed or self.has_report(plan):
            return False
        own, precision = self._baseline.get("precision", ""), plan.get("precision", "")
        return any(precision == other.get("precision", "") != own for other in self._failed)

    def rule_out(self, plan: Plan) -> bool:
        """Whether the plan failed its check or is suspect, see `is_suspect`."""
        return bool(self._failed) and (bool(self.failure(plan)) or self.is_suspect(plan))

    def signature(self, plan: Plan) -> Signature:
        """Return the settings that the computed numbers depend on, without batch and loader."""
        return frozenset(
            (name, value)
            for name, value in plan.items
            if name in self._own_knobs or BY_NAME[name].numerics in _INEXACT
        )

    def _computed(self, plan: Plan) -> tuple[Signature, bool]:
        return self.signature(plan), casts_blocks(plan)


def _failure(trial: Done) -> str | None:
    report = trial.result.numerics
    if report is not None and not report.passed:
        return f"numerics: {report.summary}"
    if trial.result.outcome is Outcome.DIVERGED:
        return "its loss does not stay finite where eager fp32 was to be compared"
    return None
