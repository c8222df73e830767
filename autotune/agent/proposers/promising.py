"""The plans that promise most for their time: changes of the best plan, alone and together."""

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from autotune.agent.done import Done
from autotune.agent.forecast.durations import expected_s
from autotune.agent.forecast.loading import waits_for_data
from autotune.agent.forecast.memory import cannot_fit, chance_to_fit
from autotune.agent.forecast.prospects import Prospect, Prospects
from autotune.agent.forecast.soundness import chance_to_run
from autotune.agent.history import History
from autotune.agent.proposal import Proposal
from autotune.agent.proposers.reasons import bound_acted_on, why_better
from autotune.search_space.hardware import Hardware
from autotune.search_space.knobs import BY_NAME, CATALOGUE, compiler
from autotune.search_space.knobs.batch import FOLLOWS, FOLLOWS_BATCH
from autotune.search_space.plan import Plan, describe_diff
from autotune.trials.result import Purpose

_AT_ONCE = 16  # proposals of others that are compared with each other
_AROUND = 3  # plans whose changes are looked at, the best first
_NEAR_BEST = 0.9  # of its value, for those after it
_STEPS = 10  # of a trial, at the least: the first one, warm-up, windows
# Batches of each worker that are timed after its queue was emptied, and seconds for both at most.
_TO_TIME, _EMPTYING_S = 2, 4.0
_BURSTS = 3  # a first one from every worker, and at least two in the windows
_PRICE = 0.005  # gain in the log throughput that each time of the baseline's trial must be worth
# The same for each doubling of the batch among many changes: it alters the training, makes trials
# longer, and its gain is the least sure part of a forecast. The ladder goes on from there.
_PRICE_OF_DOUBLING = 0.005
_LEAST_PART = 0.2  # of the gain that is worth a trial, for a guarded value among many changes
_LIKELY = 0.5  # to run and to fit, for a change to be one of many at once
_COMPILER = frozenset(knob.name for knob in compiler.KNOBS)
_MAKE_ROOM = frozenset(knob.name for knob in CATALOGUE if knob.memory.makes_room)
# What makes room only costs unless a batch needs it; sharding has a proposer of its own. Both
# save memory, so they are tried for themselves where that is the aim.
_SPARING = _MAKE_ROOM | {"sharding"}
_LADDER = FOLLOWS_BATCH | _MAKE_ROOM


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A plan to consider.

    Attributes:
        base: the measured trial that it changes.
        outlook: what it may be worth.
        runs: probability that it runs and fits.
        trial_s: how long its trial will take.
        gain: expected gain of its log value, with the chance that it runs.
    """

    plan: Plan
    base: Done
    outlook: Prospect
    runs: float
    trial_s: float
    gain: float

    @property
    def worth(self) -> float:
        """Expected gain for each second of the trial."""
        return self.gain / self.trial_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Promising:
    """Changes of the best plans, the largest expected gain for its time first.

    So what is cheap comes before what is dear, a checklist all together before its parts, the
    parts that may hurt are taken back, and minutes of compiling wait until nothing else is left.

    Attributes:
        gain: relative gain below which a plan is not worth a trial.
        chance: probability of that gain below which it is not, either.
    """

    hardware: Hardware
    gain: float
    chance: float

    def candidates(self, history: History) -> Iterator[Proposal]:
        """Yield the plans that may well gain, most for their time first."""
        forecast = Prospects(history, self.hardware)
        reached = _reached(history, forecast)
        for one in self._ranked(history, forecast, reached):
            if self._may_gain(one, reached):
                yield _proposal(one, reached, history)

    def worthwhile(self, proposals: Iterable[Proposal], history: History) -> Iterator[Proposal]:
        """Yield those that have any chance, the most promising of some first.

        While nothing may win, the likeliest to are tried all the same: the user reads how far off.
        """
        forecast = Prospects(history, self.hardware)
        reached, asked = _reached(history, forecast), iter(proposals)
        while some := list(itertools.islice(asked, _AT_ONCE)):
            outlooks = forecast.of([proposal.plan for proposal in some], history.best.plan)
            found = [
                (self._candidate(one.plan, history.best, outlook, history, reached), one)
                for one, outlook in zip(some, outlooks, strict=True)
            ]
            for one, proposal in sorted(found, key=lambda pair: -pair[0].worth):
                if not reached or self._may_gain(one, reached):
                    yield replace(proposal, trial_s=one.trial_s, gain=one.gain)

    def _may_gain(self, one: Candidate, reached: float) -> bool:
        return one.runs * one.outlook.chance(reached * (1 + self.gain)) >= self.chance

    def _ranked(self, history: History, forecast: Prospects, reached: float) -> list[Candidate]:
        bases: dict[Plan, Done] = {}
        for base in _bases(history):
            together = self._together(base, history, forecast)
            bases = dict.fromkeys(itertools.chain(_changed(base, history), together), base) | bases
        plans = [p for p in bases if p not in history.tried and not cannot_fit(p, history)]
        found = [
            self._candidate(plan, bases[plan], outlook, history, reached)
            for plan, outlook in zip(plans, forecast.of(plans, history.best.plan), strict=True)
        ]
        return sorted(found, key=lambda one: -one.worth)

    def _candidate(
        self, plan: Plan, base: Done, outlook: Prospect, history: History, reached: float
    ) -> Candidate:
        runs = chance_to_run(plan, history) * chance_to_fit(plan, history)
        trial_s = self._trial_s(plan, outlook, history)
        return Candidate(
            plan=plan,
            base=base,
            outlook=outlook,
            runs=runs,
            trial_s=trial_s,
            gain=runs * outlook.gain(reached),
        )

    def _trial_s(self, plan: Plan, outlook: Prospect, history: History) -> float:
        # A large batch makes long steps, and a trial has so many of them. Workers give their
        # batches in bursts: the first of them and whole ones in the windows take their time.
        samples = int(plan["batch_size"]) * int(plan.get(FOLLOWS, 1)) * history.space.num_ranks
        step_s = samples / outlook.throughput
        workers = int(plan.get("workers", 0))
        queue = workers * (int(plan.get("prefetch", 0)) + _TO_TIME)
        steps_s = _STEPS * step_s + min(_EMPTYING_S, queue * step_s) + _BURSTS * workers * step_s
        return max(steps_s, expected_s(plan, history, self.hardware))

    def _together(self, base: Done, history: History, forecast: Prospects) -> Iterator[Plan]:
        """Yield the base with ever more changes, each the best to add.

        Without those that make a trial long among them, too.
        """
        for kept in (frozenset[str](), _COMPILER, _COMPILER | {"batch_size"}):
            plan, reached = base.plan, _log_value_of(base, history, forecast)
            while added := self._added(plan, base, kept, history, forecast):
                if added[1] <= reached:
                    break
                plan, reached = added
                yield plan

    def _added(
        self,
        plan: Plan,
        base: Done,
        kept: frozenset[str],
        history: History,
        forecast: Prospects,
    ) -> tuple[Plan, float] | None:
        """Return the plan with the best change added, and its log value less its price."""
        options = list(_additions(plan, base, kept, history))
        priced = [
            (other, outlook.log - self._price(other, outlook, history) - self._risk(other, plan))
            for other, outlook in zip(options, forecast.of(options), strict=True)
        ]
        return max(priced, key=lambda entry: entry[1], default=None)

    def _risk(self, plan: Plan, without: Plan) -> float:
        """Return what a value that needs the user's permission must promise to be taken along.

        It may as well cost something, which would be blamed on the others.
        """
        changed = (BY_NAME.get(name) for name in plan.diff(without) if name in plan)
        guarded = any(knob and plan[knob.name] in knob.guarded for knob in changed)
        return _LEAST_PART * self.gain if guarded else 0.0

    def _price(self, plan: Plan, outlook: Prospect, history: History) -> float:
        """Return the gain that the time of a trial must be worth, as a logarithm."""
        assert history.baseline is not None
        usual_s = max(history.baseline.undiagnosed_s, 1.0)
        price = _PRICE * (self._trial_s(plan, outlook, history) / usual_s - 1.0)
        growth = int(plan["batch_size"]) / int(history.best.plan["batch_size"])
        price += _PRICE_OF_DOUBLING * max(0.0, math.log2(growth))
        if not history.objective.weighs_memory:
            return price
        # What only makes a plan faster is of no use once it is fast enough.
        return price + self.gain * len(plan.diff(history.best.plan))


def _reached(history: History, forecast: Prospects) -> float:
    """Return the value of the best plans, less what the first of them owes to luck.

    What runs is taken to be as good as expected, so that nothing like it is run beside it.
    """
    plans = [*(trial.plan for trial in _bases(history)), *history.pending]
    return max(outlook.value for outlook in forecast.of(plans))


def _log_value_of(trial: Done, history: History, forecast: Prospects) -> float:
    """As measured; where nothing may win yet, as the forecast sees it."""
    value = history.value(trial)
    return math.log(value) if value else forecast.of([trial.plan])[0].log


def _bases(history: History) -> list[Done]:
    """Return the best trial, and the next ones where they are nearly as good."""
    best = history.best
    least = _NEAR_BEST * history.value(best)
    near = [trial for trial in history.ranking if history.value(trial) >= least]
    return [best, *(t for t in near if t.plan != best.plan)][:_AROUND]


def _changed(base: Done, history: History) -> Iterator[Plan]:
    """Yield the plans one change away; for a batch that cannot fit, also with room made.

    A change may bring knobs of its own, such as the compiler's scope.
    """
    for name in _tunable(base.plan, base, history):
        for plan in history.space.alternatives(base.plan, name):
            yield from _brought(plan, base, history)
            if name == "batch_size" and cannot_fit(plan, history):
                yield from _with_more_room(plan, history)
    own = history.space.baseline
    for name in (n for n in _MAKE_ROOM if base.plan.get(n, "") != own.get(n, "")):
        yield from history.space.alternatives(base.plan, name)


def _with_more_room(plan: Plan, history: History) -> Iterator[Plan]:
    for name in _MAKE_ROOM:
        yield from history.space.alternatives(plan, name)


def _brought(plan: Plan, base: Done, history: History) -> list[Plan]:
    """Return the plan with each value of each knob that the base lacks."""
    plans = [plan]
    for name in (name for name in plan if name not in base.plan):
        plans += [other for p in plans for other in history.space.alternatives(p, name)]
    return plans


def _additions(plan: Plan, base: Done, kept: frozenset[str], history: History) -> Iterator[Plan]:
    """Yield the plans one change from `plan` that will rather run than not."""
    for name in _tunable(plan, base, history):
        for other in () if name in kept else history.space.alternatives(plan, name):
            if chance_to_fit(other, history) * chance_to_run(other, history) > _LIKELY:
                yield other


def _tunable(plan: Plan, measured: Done, history: History) -> Iterator[str]:
    """Yield the knobs of the plan that may matter; the loader's while the loop waits for it.

    Workers that are there may still be too many.
    """
    waits = waits_for_data(measured)
    for name in plan:
        needs_wait = history.space.knob(name).needs_data_wait
        idle = needs_wait and not waits and not _has_workers(name, plan)
        is_sparing = name in _SPARING and not history.objective.weighs_memory
        if name != FOLLOWS and not is_sparing and not idle:
            yield name


def _has_workers(name: str, plan: Plan) -> bool:
    return name == "workers" and int(plan[name]) > 0


def _proposal(one: Candidate, reached: float, history: History) -> Proposal:
    changed = [name for name in one.plan.diff(one.base.plan) if name in one.plan]
    # Where nothing may win yet, any plan that may is a gain.
    ratio = math.exp(one.outlook.worth.log) / reached if reached else math.inf
    # What a change brings with it, as compiling does its scope, needs no reason of its own.
    before = one.base.plan.values
    changes = [(history.space.knob(n), one.plan[n], before.get(n)) for n in changed]
    words = [why_better(c, one.base, history) for c in changes if c[0].name in before]
    bound = bound_acted_on(changes, history)
    because = "; ".join(dict.fromkeys([*words, bound] if bound else words))
    reason = (
        f"{describe_diff(one.plan, one.base.plan)} on top of trial {one.base.number}: {because} "
        f"({_promise(one, ratio, history)}, for {one.trial_s:.0f} s)"
    )
    return Proposal(
        plan=one.plan,
        purpose=_purpose(changed, ratio - 1),
        reason=reason,
        trial_s=one.trial_s,
        gain=one.gain,
    )


def _promise(one: Candidate, ratio: float, history: History) -> str:
    if math.isinf(ratio):
        return f"{one.outlook.throughput:,.4g} samples/s expected"
    return history.objective.promise(ratio)


def _purpose(changed: list[str], gain: float) -> Purpose:
    if "batch_size" in changed and _LADDER.issuperset(changed):
        return Purpose.LADDER
    return Purpose.PRESET if gain > 0 or len(changed) > 1 else Purpose.NEIGHBOUR
