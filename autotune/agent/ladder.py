"""The batch ladder: double the batch while throughput grows and memory lasts."""

from collections.abc import Iterator
from dataclasses import dataclass

from autotune.agent.history import Done, History
from autotune.agent.memory import cannot_fit, same_but_batch
from autotune.agent.proposal import Proposal
from autotune.search_space.plan import Plan
from autotune.trials.result import Measurement, Outcome, Purpose

_LIGHTEST_FIRST = ("selective", "every-4", "every-2", "full")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLadder:
    """Climbs from the best plan; where memory ends the climb, checkpointing makes room.

    Attributes:
        gain: relative growth of throughput below which the climb ends.
    """

    gain: float

    def candidates(self, history: History) -> Iterator[Proposal]:
        """Yield the next rung, and the ways to make room for it."""
        top = _top(history)
        following = next_batch(top.plan, history)
        if following is None or not self._still_grows(top, history):
            return
        plan = history.space.plan({"batch_size": following}, top.plan)
        reason = f"batch {following} after {top.plan['batch_size']}: throughput still grows"
        yield Proposal(plan=plan, purpose=Purpose.LADDER, reason=reason)
        if plan not in history.pending and (
            history.outcome(plan) is Outcome.OOM or cannot_fit(plan, history)
        ):
            yield from _with_checkpointing(plan, history)

    def _still_grows(self, top: Done, history: History) -> bool:
        """Whether the last step up to this batch gained, with these settings or with others."""
        below = [size for size in _sizes(history) if size < _batch(top)]
        steps = list(history.effects("batch_size", below[-1], _batch(top))) if below else []
        return not steps or steps[-1] > 1 + self.gain


def next_batch(plan: Plan, history: History) -> int | None:
    """Return the smallest batch of the space of at least twice the plan's, or None."""
    current = int(plan["batch_size"])
    return next((size for size in _sizes(history) if size >= 2 * current), None)


def _sizes(history: History) -> list[int]:
    return sorted(int(value) for value in history.space.by_name["batch_size"].values)


def _top(history: History) -> Done:
    """The largest measured batch of the best plan; smaller ones were rungs below it."""
    return _rungs(history.best.plan, history)[-1]


def _rungs(plan: Plan, history: History) -> list[Done]:
    """The plan's measured batches by size. The best is there, also when it was raced."""
    rungs = [t for t in history.search if t.throughput and same_but_batch(t.plan, plan)]
    return sorted(rungs, key=_batch)


def _with_checkpointing(plan: Plan, history: History) -> Iterator[Proposal]:
    domain = history.space.by_name.get("activation_checkpointing")
    if domain is None or plan["activation_checkpointing"] != "none":
        return
    for value in (v for v in _LIGHTEST_FIRST if v in domain.values):
        larger = history.space.plan({"activation_checkpointing": value}, plan)
        if not cannot_fit(larger, history) and not _has_lost(larger, history):
            reason = (
                f"{value} checkpointing frees the memory that batch {plan['batch_size']} lacks"
            )
            yield Proposal(plan=larger, purpose=Purpose.LADDER, reason=reason)
        if history.outcome(larger) is Outcome.OK or larger in history.pending:
            return


def _has_lost(larger: Plan, history: History) -> bool:
    """Whether the same room for the same batch cost more than it gave, with other settings."""
    room = {name: larger[name] for name in ("batch_size", "activation_checkpointing")}
    return any(
        trial.throughput < without.throughput
        for trial in history.search
        if trial.throughput and room.items() <= trial.plan.values.items()
        for without in _without_room(trial.plan, history)
    )


def _without_room(plan: Plan, history: History) -> list[Measurement]:
    """The smaller batches of the plan that needed no checkpointing."""
    bare = {**plan.values, "activation_checkpointing": "none"}
    return [
        measured
        for other, measured in history.measured.items()
        if same_but_batch(other, Plan.of(bare))
        and int(other["batch_size"]) < int(plan["batch_size"])
    ]


def _batch(trial: Done) -> int:
    return int(trial.plan["batch_size"])
