"""The plans with the largest expected gain per second: changes of the best plans."""

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from autotune.agent.done import Done
from autotune.agent.forecast.durations import expected_first_step_s, expected_s
from autotune.agent.forecast.loading import waits_for_data
from autotune.agent.forecast.memory import cannot_fit, chance_to_fit
from autotune.agent.forecast.prospects import Prospect, Prospects
from autotune.agent.forecast.soundness import chance_to_run
from autotune.agent.history import History
from autotune.agent.proposal import Proposal
from autotune.agent.proposers.reasons import bound_acted_on, why_better
from autotune.search_space.changes import changes, describe_changes
from autotune.search_space.hardware import Hardware
from autotune.search_space.knobs import BY_NAME, CATALOGUE
from autotune.search_space.knobs.batch import FOLLOWS, FOLLOWS_BATCH
from autotune.search_space.plan import Plan
from autotune.storage.records import Promise
from autotune.trials.result import Purpose

_PROPOSALS_RANKED_TOGETHER = 16  # proposals of another proposer that are ranked together
_MAX_BASES = 3  # best trials whose plans are changed
_NEAR_BEST = 0.9  # part of the best value that the second and third of them must have
_LEAST_STEPS = 10  # fewest training steps of a trial: the first one, warm-up, windows
# A trial empties the workers' queues and then times so many batches of each worker; both together
# take at most so many seconds.
_TIMED_BATCHES, _MAX_QUEUE_S = 2, 4.0
# Batches that a trial takes of every worker: a first one, and at least two in the windows.
_LEAST_BURSTS = 3
# Least gain in the log value for each further trial length; one length is that of the baseline's
# trial.
_LEAST_GAIN_PER_TRIAL_LENGTH = 0.005
# Least gain in the log value for each doubling of the batch: it alters the training, makes all
# later trials of it longer, and its gain is the least certain part of a forecast.
_LEAST_GAIN_PER_DOUBLING = 0.01
# Least gain in the log value of a change beside others: what is worth less only blurs what the
# others do.
_LEAST_GAIN_BESIDE_OTHERS = 0.002
# Least gain of a guarded value in a plan of several changes, as a part of `Promising.gain`.
_GUARDED_GAIN_PART = 0.2
# Least probability that a plan runs and fits in memory for it to be combined with other changes.
_LEAST_CHANCE_TO_RUN = 0.5
_LENGTHEN_START = frozenset(knob.name for knob in CATALOGUE if knob.lengthens_start)
_MAKE_ROOM = frozenset(knob.name for knob in CATALOGUE if knob.memory.makes_room)
# Knobs that save memory. When speed is the objective they are not changed alone: making room costs
# speed unless a larger batch needs it, and sharding has its own proposer.
_MEMORY_KNOBS = _MAKE_ROOM | {"sharding"}
# A plan that changes only these is a step of the batch ladder.
_BATCH_AND_ROOM = FOLLOWS_BATCH | _MAKE_ROOM


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A plan with its forecast.

    Attributes:
        plan: the plan that may be tried.
        base: the measured trial whose plan it changes.
        outlook: forecast of its value by the objective.
        runs: probability that it runs and fits in memory.
        trial_s: expected wall clock of its trial.
        gain: expected improvement of the log value, times `runs`.
        price: least gain that pays for a larger batch.
    """

    plan: Plan
    base: Done
    outlook: Prospect
    runs: float
    trial_s: float
    gain: float
    price: float

    @property
    def gain_per_s(self) -> float:
        """Expected improvement of the log value, less its price, per second of its trial."""
        return (self.gain - self.price) / self.trial_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Promising:
    """Proposes changes of the best plans, largest expected improvement per second first.

    So cheap trials come before expensive ones, and several changes at once before each alone;
    changes that may cost speed are reverted later, and plans that compile for minutes come last.

    Attributes:
        hardware: the machine that trials run on.
        gain: relative gain below which two values count as equal.
        chance: least probability of such a gain for a plan to be proposed.
    """

    hardware: Hardware
    gain: float
    chance: float

    def candidates(self, history: History) -> Iterator[Proposal]:
        """Yield plans that gain with probability `chance` or more, most gain per second first."""
        forecast = Prospects(history, self.hardware)
        incumbent = _incumbent_value(history, forecast)
        for candidate in self._ranked(history, forecast, incumbent):
            if self._may_gain(candidate, incumbent):
                promise = self._promise(candidate, incumbent)
                yield replace(_proposal(candidate, incumbent, history), promise=promise)

    def worthwhile(self, proposals: Iterable[Proposal], history: History) -> Iterator[Proposal]:
        """Yield the proposals whose probability of a gain is at least `chance`.

        They are ranked in groups. While no measured plan may win, all of them are yielded, so that
        the user reads how far the best one is from what was asked for.
        """
        forecast = Prospects(history, self.hardware)
        incumbent, asked = _incumbent_value(history, forecast), iter(proposals)
        while some := list(itertools.islice(asked, _PROPOSALS_RANKED_TOGETHER)):
            outlooks = forecast.of([proposal.plan for proposal in some], history.best.plan)
            found = [
                (self._candidate(p.plan, history.best, outlook, history, incumbent), p)
                for p, outlook in zip(some, outlooks, strict=True)
            ]
            for candidate, proposal in sorted(found, key=lambda pair: -pair[0].gain_per_s):
                if not incumbent or self._may_gain(candidate, incumbent):
                    gain = candidate.gain if incumbent else None
                    yield replace(
                        proposal,
                        trial_s=candidate.trial_s,
                        gain=gain,
                        promise=self._promise(candidate, incumbent),
                    )

    def _may_gain(self, candidate: Candidate, incumbent: float) -> bool:
        return self._chance(candidate, incumbent) >= self.chance

    def _chance(self, candidate: Candidate, incumbent: float) -> float:
        return candidate.runs * candidate.outlook.chance(incumbent * (1 + self.gain))

    def _promise(self, candidate: Candidate, incumbent: float) -> Promise:
        return Promise(
            throughput=candidate.outlook.throughput,
            chance=self._chance(candidate, incumbent),
            seconds=candidate.trial_s,
        )

    def _ranked(self, history: History, forecast: Prospects, incumbent: float) -> list[Candidate]:
        bases: dict[Plan, Done] = {}
        for base in _best_trials(history):
            combined = self._combined_changes(base, history, forecast)
            bases = (
                dict.fromkeys(itertools.chain(_one_change_away(base, history), combined), base)
                | bases
            )
        plans = [p for p in bases if p not in history.tried and not cannot_fit(p, history)]
        found = [
            self._candidate(plan, bases[plan], outlook, history, incumbent)
            for plan, outlook in zip(plans, forecast.of(plans, history.best.plan), strict=True)
        ]
        return sorted(found, key=lambda candidate: -candidate.gain_per_s)

    def _candidate(
        self, plan: Plan, base: Done, outlook: Prospect, history: History, incumbent: float
    ) -> Candidate:
        runs = chance_to_run(plan, history) * chance_to_fit(plan, history)
        trial_s = self._trial_s(plan, outlook, history)
        return Candidate(
            plan=plan,
            base=base,
            outlook=outlook,
            runs=runs,
            trial_s=trial_s,
            gain=runs * outlook.gain(incumbent),
            price=_price_of_batch(plan, history),
        )

    def _trial_s(self, plan: Plan, outlook: Prospect, history: History) -> float:
        # A large batch makes long steps, of which a trial has a least number beside its first one.
        # Workers deliver batches in bursts, and a trial waits for the first one and for whole ones
        # in its windows.
        samples = int(plan["batch_size"]) * int(plan.get(FOLLOWS, 1)) * history.space.num_ranks
        step_s = samples / outlook.throughput
        workers = int(plan.get("workers", 0))
        queue = workers * (int(plan.get("prefetch", 0)) + _TIMED_BATCHES)
        steps_s = (
            _LEAST_STEPS * step_s
            + min(_MAX_QUEUE_S, queue * step_s)
            + _LEAST_BURSTS * workers * step_s
        )
        first_step_s = expected_first_step_s(plan, history, self.hardware)
        return max(steps_s + first_step_s, expected_s(plan, history, self.hardware))

    def _combined_changes(
        self, base: Done, history: History, forecast: Prospects
    ) -> Iterator[Plan]:
        """Yield the base plan with one change, two and so on, adding the best one each time.

        This is done three times: with all knobs, without those that make first steps long, and
        without those and the batch. The last plan of each comes with every other batch, too, as
        the best one may make trials long.
        """
        for kept in (frozenset[str](), _LENGTHEN_START, _LENGTHEN_START | {"batch_size"}):
            plan, log_value = base.plan, _log_value(base, history, forecast)
            while addition := self._best_addition(plan, base, kept, history, forecast):
                if addition[1] <= log_value + _LEAST_GAIN_BESIDE_OTHERS:
                    break
                plan, log_value = addition
                yield plan
            yield from history.space.alternatives(plan, "batch_size")

    def _best_addition(
        self,
        plan: Plan,
        base: Done,
        kept: frozenset[str],
        history: History,
        forecast: Prospects,
    ) -> tuple[Plan, float] | None:
        """Return the plan with the best further change, and its log value less price and risk."""
        options = list(_additions(plan, base, kept, history))
        priced = [
            (
                other,
                outlook.log_mean
                - self._least_gain(other, outlook, history)
                - self._least_gain_of_guarded(other, plan),
            )
            for other, outlook in zip(options, forecast.of(options), strict=True)
        ]
        return max(priced, key=lambda entry: entry[1], default=None)

    def _least_gain_of_guarded(self, plan: Plan, without: Plan) -> float:
        """Return the least gain, in the log value, of a guarded value beside other changes.

        Such a value, which runs only with the user's permission, may also cost speed, and that
        would be blamed on the other changes.
        """
        changed = (BY_NAME.get(name) for name in plan.diff(without) if name in plan)
        guarded = any(knob and plan[knob.name] in knob.guarded for knob in changed)
        return _GUARDED_GAIN_PART * self.gain if guarded else 0.0

    def _least_gain(self, plan: Plan, outlook: Prospect, history: History) -> float:
        """Return the least gain, in the log value, that pays for the trial and a larger batch."""
        assert history.baseline is not None
        usual_s = max(history.baseline.undiagnosed_s, 1.0)
        price = _LEAST_GAIN_PER_TRIAL_LENGTH * (
            self._trial_s(plan, outlook, history) / usual_s - 1.0
        )
        price += _price_of_batch(plan, history)
        if not history.objective.weighs_memory:
            return price
        # Changes that only add speed are of no use to a plan that is fast enough already.
        return price + self.gain * len(changes(plan, history.best.plan))


def _price_of_batch(plan: Plan, history: History) -> float:
    """Return the least gain, in the log value, that pays for a batch larger than the best's."""
    growth = int(plan["batch_size"]) / int(history.best.plan["batch_size"])
    return _LEAST_GAIN_PER_DOUBLING * max(0.0, math.log2(growth))


def _incumbent_value(history: History, forecast: Prospects) -> float:
    """Return the highest posterior mean of the value among the best and the running plans.

    Measured values would favour the luckiest process. Running plans count with their forecast, so
    that no plan like them is started beside them.
    """
    plans = [*(trial.plan for trial in _best_trials(history)), *history.pending]
    return max(outlook.value for outlook in forecast.of(plans))


def _log_value(trial: Done, history: History, forecast: Prospects) -> float:
    """Return the log of the trial's measured value, of its forecast if it may not win."""
    value = history.value(trial)
    return math.log(value) if value else forecast.of([trial.plan])[0].log_mean


def _best_trials(history: History) -> list[Done]:
    """Return the best trial and the next ones with nearly its value, three at most."""
    best = history.best
    least = _NEAR_BEST * history.value(best)
    near = [trial for trial in history.ranking if history.value(trial) >= least]
    return [best, *(t for t in near if t.plan != best.plan)][:_MAX_BASES]


def _one_change_away(base: Done, history: History) -> Iterator[Plan]:
    """Yield the plans that change one knob of the base.

    A batch that cannot fit comes with the knobs that make room, too.
    Knobs that only apply with the new value, such as the compiler's scope, take all their values.
    """
    for name in _tunable(base.plan, base, history):
        for plan in _alternatives(name, base.plan, base, history):
            yield from _with_new_knobs_varied(plan, base, history)
            if name == "batch_size" and cannot_fit(plan, history):
                yield from _with_more_room(plan, history)
    own = history.space.baseline
    for name in (n for n in _MAKE_ROOM if base.plan.get(n, "") != own.get(n, "")):
        yield from history.space.alternatives(base.plan, name)


def _with_more_room(plan: Plan, history: History) -> Iterator[Plan]:
    for name in _MAKE_ROOM:
        yield from history.space.alternatives(plan, name)


def _with_new_knobs_varied(plan: Plan, base: Done, history: History) -> list[Plan]:
    """Return the plan with all combinations of values of the knobs that the base does not have.

    Those that only save memory stay as they come where memory does not count.
    """
    plans, kept = [plan], set() if history.objective.weighs_memory else _MEMORY_KNOBS
    for name in (name for name in plan if name not in base.plan and name not in kept):
        plans += [other for p in plans for other in history.space.alternatives(p, name)]
    return plans


def _additions(plan: Plan, base: Done, kept: frozenset[str], history: History) -> Iterator[Plan]:
    """Yield the plans that change one knob of `plan` and probably run and fit in memory."""
    for name in _tunable(plan, base, history):
        for other in () if name in kept else _alternatives(name, plan, base, history):
            if (
                chance_to_fit(other, history) * chance_to_run(other, history)
                > _LEAST_CHANCE_TO_RUN
            ):
                yield other


def _tunable(plan: Plan, measured: Done, history: History) -> Iterator[str]:
    """Yield the knobs of the plan whose change may improve it.

    The loader's knobs are among them while the loop waits for data; the number of workers also
    otherwise, as there may be too many.
    """
    waits = waits_for_data(measured)
    for name in plan:
        idle = history.space.knob(name).needs_data_wait and not waits and name != "workers"
        is_for_memory = name in _MEMORY_KNOBS and not history.objective.weighs_memory
        if name != FOLLOWS and not is_for_memory and not idle:
            yield name


def _alternatives(name: str, plan: Plan, measured: Done, history: History) -> Iterator[Plan]:
    """Yield the plan with each other value of a knob; more workers only while the loop waits."""
    for other in history.space.alternatives(plan, name):
        adds_workers = name == "workers" and int(other[name]) > int(plan[name])
        if not adds_workers or waits_for_data(measured):
            yield other


def _proposal(candidate: Candidate, incumbent: float, history: History) -> Proposal:
    base = candidate.base
    changed = [name for name in candidate.plan.diff(base.plan) if name in candidate.plan]
    # While no measured plan may win, any plan that may is a gain.
    ratio = math.exp(candidate.outlook.worth.log_mean) / incumbent if incumbent else math.inf
    # Knobs that apply only with a change, such as the compiler's scope, need no own reason.
    before = base.plan.values
    changes = [(history.space.knob(n), candidate.plan[n], before.get(n)) for n in changed]
    words = [why_better(c, base, history) for c in changes if c[0].name in before]
    bound = bound_acted_on(changes, history)
    because = "; ".join(dict.fromkeys([*words, bound] if bound else words))
    reason = (
        f"{describe_changes(candidate.plan, base.plan)} on top of trial {base.number}: {because} "
        f"({_promised(candidate, ratio, history)}, for {candidate.trial_s:.0f} s)"
    )
    return Proposal(
        plan=candidate.plan,
        purpose=_purpose(changed, ratio - 1),
        reason=reason,
        trial_s=candidate.trial_s,
        gain=candidate.gain if incumbent else None,
    )


def _promised(candidate: Candidate, ratio: float, history: History) -> str:
    if math.isinf(ratio):
        return f"{candidate.outlook.throughput:,.4g} samples/s expected"
    return history.objective.promise(ratio)


def _purpose(changed: list[str], gain: float) -> Purpose:
    if "batch_size" in changed and _BATCH_AND_ROOM.issuperset(changed):
        return Purpose.LADDER
    return Purpose.PRESET if gain > 0 or len(changed) > 1 else Purpose.NEIGHBOUR
