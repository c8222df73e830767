"""Proposals for several devices: the best plans of one-device trials, and shardings.

Knobs are named here, unlike in other proposers, because some go with a sharding: FSDP is compiled
by block, and a plan that several ranks cannot compile as a whole is tried with less compiled.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from autotune.agent.done import Done
from autotune.agent.focus import needs_one_device
from autotune.agent.history import History
from autotune.agent.proposal import Proposal
from autotune.search_space.knobs.compiler import is_compiled, records_cuda_graphs
from autotune.search_space.knobs.ranks import is_fsdp, sharding_speed
from autotune.search_space.plan import Plan, Value
from autotune.search_space.space import Space
from autotune.trials.result import Outcome, Purpose

# Part of the best value on one device from which a plan is tried on several; another order of the
# plans is likely there.
_NEAR_BEST = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class BestOfScouts:
    """Proposes the best plans of one-device trials, with the baseline's batch and sharding.

    Attributes:
        max_plans: most plans to propose.
    """

    max_plans: int

    def candidates(self, history: History) -> Iterator[Proposal]:
        """Yield plans that differ in more than how batches are loaded, best first.

        If none of them ran, the best one is proposed with less of it compiled.
        """
        scouts = history.scouts
        if scouts is None or scouts.baseline is None:
            return
        found = _best_scouts(scouts)[: self.max_plans]
        plans = [_on_all_ranks(scout.plan, history) for scout in found]
        for place, (plan, scout) in enumerate(zip(plans, found, strict=True), start=1):
            rank = "best" if place == 1 else f"number {place}"
            reason = f"{rank} of {len(scouts.search)} one-device trials (trial {scout.number})"
            yield _proposal(plan, reason, history)
        if found and not any(_runs_or_ran(plan, history) for plan in plans):
            yield from _less_compiled(found[0], history)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shardings:
    """Proposes the best plan with each other sharding, largest expected speed first.

    Attributes:
        at_least: least expected speed-up over the best plan's sharding.
    """

    at_least: float

    def candidates(self, history: History) -> Iterator[Proposal]:
        """Yield the best plan with each sharding that no search trial of this history had."""
        best = history.best
        speeds = _sharding_speeds(history.space)
        current = speeds.get(best.plan.get("sharding", "ddp"), 1.0)
        for value in sorted(speeds, key=lambda value: -speeds[value]):
            if speeds[value] >= self.at_least * current and value not in _tried_shardings(history):
                does = history.space.knob("sharding").reasons.why(value, None)
                reason = f"sharding={value} on top of trial {best.number}: {does}"
                plan = runnable({"sharding": value}, best.plan, history.space)
                yield Proposal(plan=plan, purpose=Purpose.PRESET, reason=reason)


def runnable(changes: dict[str, Value], base: Plan, space: Space) -> Plan:
    """Return the base with the changes; settings of the base that exclude them are changed, too.

    With FSDP, a plan that compiles does so by block: each block is gathered, run and freed as one,
    and compiles faster than the model.
    """
    plan = Plan.of({**base.values, **changes})
    if is_fsdp(plan):
        plan = Plan.of({**plan.values, **_compiler_settings_for_fsdp(plan, space)})
    return space.possible({}, plan) or space.adopt(plan)


def _compiler_settings_for_fsdp(plan: Plan, space: Space) -> dict[str, Value]:
    """Return the compiler settings to use with FSDP instead of the plan's."""
    wanted: dict[str, Value] = {}
    if is_compiled(plan):
        wanted["compile_scope"] = "block"
    if records_cuda_graphs(plan):
        wanted["compile_mode"] = "default"
    offered = space.by_name
    return {n: v for n, v in wanted.items() if n in offered and v in offered[n].values}


def _best_scouts(scouts: History) -> list[Done]:
    """Return the best one-device trials, one for each group that differs only in loading batches.

    Loading on several ranks is as on one device, so it needs no second comparison.
    """
    assert scouts.baseline is not None
    own = scouts.value(scouts.baseline) if scouts.fits(scouts.baseline) else 0.0
    least = max(own, _NEAR_BEST * scouts.value(scouts.best))
    different: dict[Plan, Done] = {}
    for scout in scouts.ranking:
        if scouts.value(scout) >= least:
            tuned = _settings_tuned_on_one_device(scout.plan, scouts.space)
            feeds = {n for n in tuned if scouts.space.knob(n).feeds_device}
            computes = Plan.of({n: v for n, v in tuned.items() if n not in feeds})
            different.setdefault(computes, scout)
    return list(different.values())


def _less_compiled(scout: Done, history: History) -> Iterator[Proposal]:
    """Yield the one-device trial's plan with only blocks compiled, then without compiling."""
    offered = history.space.by_name
    for name, value, how in (
        ("compile_scope", "block", "compiling only the repeated block"),
        ("compile_mode", "off", "without compiling"),
    ):
        if name in scout.plan and value in offered[name].values:
            plan = runnable({name: value}, _on_all_ranks(scout.plan, history), history.space)
            yield _proposal(plan, f"best one-device trial (trial {scout.number}) {how}", history)
            if _runs_or_ran(plan, history):
                return


def _proposal(plan: Plan, reason: str, history: History) -> Proposal:
    where = f"now on {history.space.num_ranks} devices"
    return Proposal(plan=plan, purpose=Purpose.PRESET, reason=f"{reason}, {where}")


def _runs_or_ran(plan: Plan, history: History) -> bool:
    """Whether the plan is running or ran without an error."""
    return plan in history.pending or history.outcome(plan) is Outcome.OK


def _settings_tuned_on_one_device(plan: Plan, space: Space) -> dict[str, Value]:
    """Return the plan's settings that trials on one device can compare."""
    return {name: value for name, value in plan.items if needs_one_device(space.knob(name))}


def _on_all_ranks(scout: Plan, history: History) -> Plan:
    """Return the baseline of all ranks with the settings that the one-device plan tuned."""
    assert history.baseline is not None
    assert history.scouts is not None
    changes = _settings_tuned_on_one_device(scout, history.scouts.space)
    # The scope may be the blocks because the whole model does not compile.
    if "compile_scope" in scout:
        changes["compile_scope"] = scout["compile_scope"]
    return runnable(changes, history.baseline.plan, history.space)


def _tried_shardings(history: History) -> set[Value]:
    """Return the shardings of finished and running search trials."""
    ended = [t.plan for t in history.search if t.result.outcome.is_about_plan]
    return {plan["sharding"] for plan in (*ended, *history.pending) if "sharding" in plan}


def _sharding_speeds(space: Space) -> dict[Value, float]:
    """Return the expected speed relative to ddp of each sharding in the space."""
    domain = space.by_name.get("sharding")
    return {v: sharding_speed(v, space.site) for v in domain.values} if domain else {}
