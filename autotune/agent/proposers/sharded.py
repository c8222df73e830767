"""Proposals for several devices: what one device showed, and what each rank may hold.

Names of knobs stand here because the module is about shardings and what goes with them: FSDP with
compiled blocks, a scout's plan with less of it compiled where ranks cannot compile all.
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

_NEAR_BEST = 0.95  # of the best scout's value; among ranks another one may be ahead


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """The best plans of the scouts, with the baseline's batch and sharding, on all ranks.

    Attributes:
        most: of them.
    """

    most: int

    def candidates(self, history: History) -> Iterator[Proposal]:
        """Yield those that differ in how a rank computes, best first.

        Where none of them ran, less of the best one is compiled.
        """
        scouts = history.scouts
        if scouts is None or scouts.baseline is None:
            return
        found = _best(scouts)[: self.most]
        plans = [_on_ranks(scout.plan, history) for scout in found]
        for place, (plan, scout) in enumerate(zip(plans, found, strict=True), start=1):
            rank = "best" if place == 1 else f"number {place}"
            reason = f"{rank} of {len(scouts.search)} one-device trials (trial {scout.number})"
            yield _adopted(plan, reason, history)
        if found and not any(_runs(plan, history) for plan in plans):
            yield from _less_compiled(found[0], history)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shardings:
    """Each sharding once, on top of the best plan, the most promising for the model first.

    Attributes:
        at_least: expected speed-up over the best plan's sharding.
    """

    at_least: float

    def candidates(self, history: History) -> Iterator[Proposal]:
        """Yield the shardings that no search trial had, those before it aside."""
        best = history.best
        speeds = _speeds(history.space)
        current = speeds.get(best.plan.get("sharding", "ddp"), 1.0)
        for value in sorted(speeds, key=lambda value: -speeds[value]):
            if speeds[value] >= self.at_least * current and value not in _seen(history):
                does = history.space.knob("sharding").reasons.why(value, None)
                reason = f"sharding={value} on top of trial {best.number}: {does}"
                plan = runnable({"sharding": value}, best.plan, history.space)
                yield Proposal(plan=plan, purpose=Purpose.PRESET, reason=reason)


def runnable(changes: dict[str, Value], base: Plan, space: Space) -> Plan:
    """Return the base with changes as they can run: what excludes them gives way.

    FSDP goes with compiled blocks: each is gathered, run and freed as one, and compiles faster
    than the model.
    """
    plan = Plan.of({**base.values, **changes})
    if is_fsdp(plan):
        plan = Plan.of({**plan.values, **_beside_fsdp(plan, space)})
    return space.possible({}, plan) or space.adopt(plan)


def _beside_fsdp(plan: Plan, space: Space) -> dict[str, Value]:
    wanted: dict[str, Value] = {}
    if is_compiled(plan):
        wanted["compile_scope"] = "block"
    if records_cuda_graphs(plan):
        wanted["compile_mode"] = "default"
    offered = space.by_name
    return {n: v for n, v in wanted.items() if n in offered and v in offered[n].values}


def _best(scouts: History) -> list[Done]:
    """The best scouts, one for each way to compute: feeding the device is the same on ranks."""
    assert scouts.baseline is not None
    own = scouts.value(scouts.baseline) if scouts.fits(scouts.baseline) else 0.0
    least = max(own, _NEAR_BEST * scouts.value(scouts.best))
    different: dict[Plan, Done] = {}
    for scout in scouts.ranking:
        if scouts.value(scout) >= least:
            inside = _inside(scout.plan, scouts.space)
            feeds = {n for n in inside if scouts.space.knob(n).feeds_device}
            computes = Plan.of({n: v for n, v in inside.items() if n not in feeds})
            different.setdefault(computes, scout)
    return list(different.values())


def _less_compiled(scout: Done, history: History) -> Iterator[Proposal]:
    offered = history.space.by_name
    for name, value, how in (
        ("compile_scope", "block", "compiling only the repeated block"),
        ("compile_mode", "off", "without compiling"),
    ):
        if name in scout.plan and value in offered[name].values:
            plan = runnable({name: value}, _on_ranks(scout.plan, history), history.space)
            yield _adopted(plan, f"best one-device trial (trial {scout.number}) {how}", history)
            if _runs(plan, history):
                return


def _adopted(plan: Plan, reason: str, history: History) -> Proposal:
    where = f"now on {history.space.num_ranks} devices"
    return Proposal(plan=plan, purpose=Purpose.PRESET, reason=f"{reason}, {where}")


def _runs(plan: Plan, history: History) -> bool:
    return plan in history.pending or history.outcome(plan) is Outcome.OK


def _inside(plan: Plan, space: Space) -> dict[str, Value]:
    """Return the settings whose worth one device shows."""
    return {name: value for name, value in plan.items if needs_one_device(space.knob(name))}


def _on_ranks(scout: Plan, history: History) -> Plan:
    assert history.baseline is not None
    assert history.scouts is not None
    changes = _inside(scout, history.scouts.space)
    # Where the whole model did not compile, its blocks may.
    if "compile_scope" in scout:
        changes["compile_scope"] = scout["compile_scope"]
    return runnable(changes, history.baseline.plan, history.space)


def _seen(history: History) -> set[Value]:
    ended = [t.plan for t in history.search if t.result.outcome.is_about_plan]
    return {plan["sharding"] for plan in (*ended, *history.pending) if "sharding" in plan}


def _speeds(space: Space) -> dict[Value, float]:
    """Return the expected speed of each sharding that the space offers, over ddp's."""
    domain = space.by_name.get("sharding")
    return {v: sharding_speed(v, space.site) for v in domain.values} if domain else {}
