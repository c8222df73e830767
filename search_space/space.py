"""The space: the knobs that apply to a workload on a machine, their values, and why others do not.

Every plan that runs is made by a `Space`, so it is complete and its values can run together.
"""

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from autotune.errors import PlanError, UsageError, nearest
from autotune.search_space.facts import WorkloadFacts
from autotune.search_space.hardware import Hardware
from autotune.search_space.knobs import (
    BY_NAME,
    CATALOGUE,
    GUARDED,
    Knob,
    Numerics,
    conflict,
    user_knobs,
)
from autotune.search_space.knobs.batch import FOLLOWS
from autotune.search_space.knobs.knob import Out
from autotune.search_space.plan import Plan, Value, spell
from autotune.search_space.site import Site, on_ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrowing:
    """The user's limits on a space: `--knobs`, `--fix`, `--allow`, `--numerics`.

    Attributes:
        knobs: only these vary; None for all.
        fix: knobs held at one value.
        allow: guarded values to allow, and knobs of a wider class than `numerics`.
        numerics: the widest class of change to the computed numbers that knobs may have.
    """

    knobs: tuple[str, ...] | None = None
    fix: tuple[tuple[str, str], ...] = ()
    allow: tuple[str, ...] = ()
    numerics: Numerics = Numerics.PRECISION


NAMED_IN_FULL = Narrowing(allow=tuple(map(str, GUARDED)), numerics=Numerics.TRAINING)
"""The narrowing for a plan that the user spelled out: naming a setting allows it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """A knob with its values in a space, baseline first, and a note on why others are missing."""

    knob: Knob
    values: tuple[Value, ...]
    note: str = ""

    @property
    def varies(self) -> bool:
        """Whether the knob has several values."""
        return len(self.values) > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """All plans that may run.

    Attributes:
        domains: the knobs that apply, with their values.
        out: for each knob that does not vary, the reason in words.
        site: the workload, the machine and the number of ranks.
        plans: the only plans of the space, as in a recorded table; None: all of the domains.
        by_name: the domains by their knob's name.
    """

    domains: tuple[Domain, ...]
    out: Mapping[str, str]
    site: Site
    plans: frozenset[Plan] | None = None
    by_name: Mapping[str, Domain] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Index the domains by their knob's name."""
        object.__setattr__(self, "by_name", {d.knob.name: d for d in self.domains})

    @property
    def facts(self) -> WorkloadFacts:
        """The facts about the workload."""
        return self.site.facts

    @property
    def num_ranks(self) -> int:
        """Ranks of each trial."""
        return self.site.num_ranks

    @property
    def baseline(self) -> Plan:
        """The user's own configuration, with the values of `--fix`."""
        return self.plan({})

    def knob(self, name: str) -> Knob:
        """Return the entry of a knob of the catalogue or of the workload's own."""
        return BY_NAME.get(name) or self.by_name[name].knob

    def plan(self, values: Mapping[str, Value], base: Plan | None = None) -> Plan:
        """Complete `values` from `base` (default: the baseline) into a canonical plan.

        Raises:
            PlanError: for a knob or value that is not in the space, for values that exclude each
                other, and for a plan that is not among `plans`. For the last two, `possible`
                returns None instead.
        """
        plan = self._completed(values, base)
        problem = conflict(plan, self.facts)
        if problem is not None:
            shown = " and ".join(f"{name}={spell(plan[name])}" for name in problem.knobs)
            raise PlanError(f"{shown} cannot run together: {problem.reason}")
        if self.plans is not None and plan not in self.plans:
            raise PlanError(f"no such plan among the {len(self.plans)} there are: {plan.values}")
        return plan

    def possible(self, values: Mapping[str, Value], base: Plan | None = None) -> Plan | None:
        """Return what `plan` does, or None if the values cannot run together.

        Where the space has only certain `plans`, None is returned for every other plan, too.

        Raises:
            PlanError: for a knob or value that is not in the space.
        """
        plan = self._completed(values, base)
        is_there = self.plans is None or plan in self.plans
        return plan if is_there and conflict(plan, self.facts) is None else None

    def adopt(self, plan: Plan) -> Plan:
        """Return the plan of this space that is closest to a plan of another space.

        That plan may be for another number of ranks or have values that exclude each other here.
        Knobs that this space lacks are left out, and knobs that only it has take their baseline.
        Counts become the next smaller one here; accumulation follows from the batch. The result
        need not be among `plans`, as a numerics check needs no measurement.
        """
        chosen = {
            name: _near(self.by_name[name], value)
            for name, value in plan.items
            if name in self.by_name and name != FOLLOWS
        }
        while (problem := conflict(self._completed(chosen), self.facts)) is not None:
            # Accumulation is not chosen: it follows from the batch, and gives way with it.
            del chosen[next(n for n in (*problem.knobs, "batch_size") if n in chosen)]
        return self._completed(chosen)

    def _completed(self, values: Mapping[str, Value], base: Plan | None = None) -> Plan:
        self._check_names(values)
        merged = {d.knob.name: d.values[0] for d in self.domains}
        merged |= {k: v for k, v in (base.values if base else {}).items() if k in merged}
        merged |= {name: self.parse(name, value) for name, value in values.items()}
        if self.facts.global_batch_size is not None and FOLLOWS in merged:
            merged[FOLLOWS] = self._accumulation(merged, explicit=FOLLOWS in values)
        plan = Plan.of(merged)
        active = {n: v for n, v in merged.items() if self.by_name[n].knob.active(plan)}
        return Plan.of(active)

    def alternatives(self, plan: Plan, knob: str) -> tuple[Plan, ...]:
        """Return the plans that differ from `plan` by another value of `knob`, in value order."""
        domain = self.by_name.get(knob)
        if domain is None or knob not in plan:
            return ()
        others = (self.possible({knob: v}, plan) for v in domain.values if v != plan[knob])
        return tuple(other for other in others if other is not None)

    def enumerate(self) -> Iterator[Plan]:
        """Yield every plan once, baseline first."""
        if self.plans is not None:
            yield from sorted(self.plans, key=lambda plan: (plan != self.baseline, plan.items))
            return
        free = [d for d in self.domains if d.knob.name != FOLLOWS]
        seen: set[Plan] = set()
        for values in itertools.product(*(d.values for d in free)):
            chosen = {d.knob.name: v for d, v in zip(free, values, strict=True)}
            plan = self.possible(chosen)
            if plan is not None and plan not in seen:
                seen.add(plan)
                yield plan

    def only(self, plans: Collection[Plan]) -> "Space":
        """Return the space that has only these plans, with the values that occur in them.

        A knob that applies to one of the plans without being in it is left out: the plan was
        recorded before the knob was added.
        """
        named = [d for d in self.domains if not _is_missing_in(plans, d.knob)]
        return replace(
            self,
            domains=tuple(_seen_in(plans, domain) for domain in named),
            plans=frozenset(plans),
        )

    def size_bound(self) -> int:
        """Return an upper bound of the number of plans, as if all knobs always applied."""
        if self.plans is not None:
            return len(self.plans)
        return math.prod(len(d.values) for d in self.domains if d.knob.name != FOLLOWS)

    def _accumulation(self, merged: Mapping[str, Value], *, explicit: bool) -> int:
        total, batch = self.facts.global_batch_size or 0, int(merged["batch_size"])
        implied = total // (batch * self.num_ranks)
        if explicit and int(merged[FOLLOWS]) != implied:
            where = f"batch_size={batch}{on_ranks(self.num_ranks)}"
            raise PlanError(
                f"accumulation={merged[FOLLOWS]} with {where} does not make "
                f"GLOBAL_BATCH_SIZE={total}; leave accumulation out, it becomes {implied}"
            )
        return implied

    def _check_names(self, values: Mapping[str, Value]) -> None:
        for name in values:
            if name in self.by_name:
                continue
            if name in self.out:
                raise PlanError(f"{name} does not apply here: {self.out[name]}")
            raise PlanError(f"unknown knob {name!r}{nearest(name, (*self.by_name, *self.out))}")

    def parse(self, name: str, value: Value) -> Value:
        """Return the knob's value that `value` spells.

        Raises:
            PlanError: when it is not in the knob's domain.
        """
        allowed = self.by_name[name].values
        value = self.by_name[name].knob.same_as(value, self.site)
        for candidate in allowed:
            if spell(candidate) == spell(value):
                return candidate
        if self.by_name[name].knob.any_count and _is_count(value):
            self.by_name[name].knob.check_count(int(value), self.site)
            return int(value)
        shown = ", ".join(spell(v) for v in allowed)
        is_spelled = spell(value) in map(spell, self.by_name[name].knob.known)
        hint = "" if is_spelled else nearest(value, map(spell, allowed))
        why = f"; {note}" if (note := self.by_name[name].note) else ""
        raise PlanError(f"{name}={spell(value)} is not possible here{hint} (values: {shown}{why})")


def _near(domain: Domain, value: Value) -> Value:
    """Return the value if the domain has it, else the next smaller count or the baseline's."""
    if value in domain.values:
        return value
    if not domain.knob.any_count:
        return domain.values[0]
    counts = sorted(map(int, domain.values))
    return max((count for count in counts if count <= int(value)), default=counts[0])


def _is_missing_in(plans: Collection[Plan], knob: Knob) -> bool:
    return any(knob.active(plan) and knob.name not in plan for plan in plans)


def _seen_in(plans: Collection[Plan], domain: Domain) -> Domain:
    name = domain.knob.name
    seen = {plan[name] for plan in plans if name in plan}
    # A knob that depends on another may be in none of the plans; it keeps its baseline value.
    values = tuple(value for value in domain.values if value in seen) or domain.values[:1]
    return replace(domain, values=values)


def build_space(
    facts: WorkloadFacts,
    hardware: Hardware,
    narrowing: Narrowing | None = None,
    num_ranks: int = 1,
) -> Space:
    """Compute the space of a workload on a machine as the user narrowed it.

    Raises:
        UsageError: for an unknown knob or value in the narrowing, with the nearest valid one; for
            fixed values that exclude each other; for a global batch that the ranks cannot share.
    """
    narrowing = narrowing or Narrowing()
    site = Site(facts=facts, hardware=hardware, num_ranks=num_ranks)
    _check_shares(site)
    knobs = (*CATALOGUE, *user_knobs(facts))
    _check_narrowing(narrowing, knobs)
    domains, out = [], {}
    for knob in knobs:
        values = knob.values(site)
        if isinstance(values, Out):
            out[knob.name] = dict(facts.held).get(knob.name, values.reason)
            continue
        domain = _allowed(knob, _own_first(knob, values, facts), narrowing, site)
        domains.append(domain)
        if not domain.varies:
            out[knob.name] = domain.note or "it has only one value here"
    space = Space(domains=tuple(domains), out=out, site=site)
    return _fix(space, dict(narrowing.fix))


def _check_shares(site: Site) -> None:
    total = site.facts.global_batch_size
    if total is not None and total % site.num_ranks:
        fitting = [n for n in range(1, total + 1) if total % n == 0]
        near = [max(n for n in fitting if n < site.num_ranks)]
        near += [n for n in fitting if n > site.num_ranks][:1]
        raise UsageError(
            f"GLOBAL_BATCH_SIZE={total} cannot be shared evenly by {site.num_ranks} ranks; use "
            + " or ".join(map(str, near))
        )


def _own_first(knob: Knob, values: tuple[Value, ...], facts: WorkloadFacts) -> tuple[Value, ...]:
    """Return the values with the one first that a command sets by itself: its baseline."""
    own = dict(facts.own_settings).get(knob.name)
    return values if own is None else (own, *(value for value in values if value != own))


def _allowed(knob: Knob, values: tuple[Value, ...], narrowing: Narrowing, site: Site) -> Domain:
    base, fixed = values[:1], {text for name, text in narrowing.fix if name == knob.name}
    if held := dict(site.facts.held).get(knob.name):
        return Domain(knob=knob, values=base, note=held)
    if narrowing.knobs is not None and knob.name not in narrowing.knobs and not fixed:
        return Domain(knob=knob, values=base, note="not among --knobs")
    widest = narrowing.numerics
    if (knob.allowed_from or knob.numerics).rank > widest.rank:
        if knob.name not in narrowing.allow:
            note = f"its numerics class {knob.numerics.value!r} is wider than --numerics"
            how = f"--allow {knob.name} lets it vary"
            return Domain(knob=knob, values=base, note=f"{note} {widest.value}; {how}")
    asked_for = fixed.union(narrowing.allow)
    guarded = [spell(v) for v in values if v in knob.guarded and spell(v) not in asked_for]
    kept = tuple(v for v in values if spell(v) not in guarded)
    note = f"--allow {','.join(guarded)} lets more of it in" if guarded else knob.missing(site)
    return Domain(knob=knob, values=kept, note=note)


def _fix(space: Space, fixed: Mapping[str, str]) -> Space:
    """Return the space with one value for each fixed knob, which is the baseline's value then."""
    for name, text in fixed.items():
        if name not in space.by_name:
            raise PlanError(f"--fix {name}={text}: {name} does not apply here: {space.out[name]}")
        value = space.parse(name, text)
        domain = replace(
            space.by_name[name], values=(value,), note=f"fixed by --fix {name}={text}"
        )
        domains = tuple(domain if d.knob.name == name else d for d in space.domains)
        space = replace(space, domains=domains, out={**space.out, name: domain.note})
    space.plan({})  # the fixed values may exclude each other
    return space


def _check_narrowing(narrowing: Narrowing, knobs: Sequence[Knob]) -> None:
    names = [knob.name for knob in knobs]
    guarded = [spell(value) for knob in knobs for value in knob.guarded]
    asked = [("--knobs", name, names) for name in narrowing.knobs or ()]
    asked += [("--fix", name, names) for name, _ in narrowing.fix]
    asked += [("--allow", name, names + guarded) for name in narrowing.allow]
    for option, name, known in asked:
        if name not in known:
            listed = ", ".join(known)
            raise UsageError(f"{option}: unknown knob {name!r}{nearest(name, known)} ({listed})")


def _is_count(value: Value) -> bool:
    return not isinstance(value, bool) and str(value).isdigit() and int(value) > 0
