"""The trials of a run so far, as an immutable view; all decisions are functions of it."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from autotune.agent.done import Done
from autotune.agent.objectives.objective import Figures, Objective
from autotune.agent.objectives.throughput import FASTEST
from autotune.agent.startup import MeasuredPlan, StartUps
from autotune.agent.verdicts import Verdicts
from autotune.search_space.knobs.batch import FOLLOWS_BATCH
from autotune.search_space.plan import Plan
from autotune.search_space.space import Space
from autotune.trials.cause import Cause
from autotune.trials.diagnosis import Diagnosis
from autotune.trials.result import Measurement, Outcome, Purpose

# Purposes of the trials that the search runs, the baseline included.
SEARCH = frozenset(
    {Purpose.BASELINE, Purpose.PRESET, Purpose.LADDER, Purpose.NEIGHBOUR, Purpose.SAMPLER}
)
# Trials of a plan, lost by the infrastructure or too slow, after which it is not run again.
MAX_LOST = 2


@dataclass(frozen=True, kw_only=True)
class History:
    """The finished trials of one space, and its plans that are running.

    Attributes:
        space: the space of the plans.
        memory_cap_bytes: peak memory above which a plan cannot win.
        done: the finished trials, by number.
        pending: the plans of running trials.
        scouts: the trials on one device, if those of this history are on several.
        objective: gives plans their value.
        compiled_earlier: measurements of earlier runs, whose kernels may still be in the
            compiler's cache.
    """

    space: Space
    memory_cap_bytes: float
    done: tuple[Done, ...] = ()
    pending: tuple[Plan, ...] = ()
    scouts: "History | None" = None
    objective: Objective = FASTEST
    compiled_earlier: tuple[MeasuredPlan, ...] = ()

    def of(self, *purposes: Purpose) -> tuple[Done, ...]:
        """Return the finished trials with one of these purposes."""
        return tuple(trial for trial in self.done if trial.purpose in purposes)

    @cached_property
    def search(self) -> tuple[Done, ...]:
        """The finished search trials, the baseline among them."""
        return self.of(*SEARCH)

    @property
    def num_search(self) -> int:
        """The number of finished and running search trials, those on one device included."""
        scouts = self.scouts.num_search if self.scouts else 0
        return len(self.search) + len(self.pending) + scouts

    @cached_property
    def measured(self) -> dict[Plan, Measurement]:
        """The measurement of each plan by search or ablation; confirmations are left out."""
        trials = self.of(*SEARCH, Purpose.ABLATE)
        return {t.plan: t.result.measurement for t in trials if t.result.measurement}

    @cached_property
    def peaks(self) -> dict[Plan, dict[int, int]]:
        """Measured peaks in bytes by batch, for each plan without its batch."""
        found: dict[Plan, dict[int, int]] = {}
        for plan, measurement in self.measured.items():
            if measurement.memory_bytes is not None:
                batches = found.setdefault(without_batch(plan), {})
                batches[int(plan["batch_size"])] = measurement.memory_bytes
        return found

    @cached_property
    def tried(self) -> frozenset[Plan]:
        """Plans that the search does not run again.

        They were measured or failed, are running, were cancelled at the end of the search, or were
        lost or given up twice.
        """
        known = {t.plan for t in self.search if t.result.outcome.is_about_plan}
        unknown = [t for t in self.search if not t.result.outcome.is_about_plan]
        lost = [t.plan for t in unknown if t.result.cause is not Cause.USER_STOPPED]
        often = {p for p in lost if lost.count(p) >= MAX_LOST}
        return frozenset(known | often | self.cut_short).union(self.pending)

    @cached_property
    def cut_short(self) -> frozenset[Plan]:
        """Plans whose trial was cancelled because the time for searching ended."""
        return frozenset(t.plan for t in self.search if t.result.cause is Cause.SEARCH_ENDED)

    @cached_property
    def baseline(self) -> Done | None:
        """The first baseline that ran; its batch is smaller if the user's did not fit."""
        ran = (t for t in self.of(Purpose.BASELINE) if t.result.outcome is Outcome.OK)
        return next(ran, None)

    @property
    def reference(self) -> Plan:
        """The plan to compare with: the baseline that ran, or the user's own before one ran."""
        return self.baseline.plan if self.baseline else self.space.baseline

    @property
    def diagnosis(self) -> Diagnosis | None:
        """The diagnosis of the baseline's step, None before it was diagnosed."""
        return self.baseline.result.diagnosis if self.baseline else None

    @cached_property
    def diagnosed(self) -> Done | None:
        """The fastest search trial whose step was diagnosed; None where no parts of it are known.

        What limits a step changes with the plan, so forecasts are made from this one.
        """
        known = [t for t in self.search if t.result.diagnosis and t.result.diagnosis.causes]
        return max((t for t in known if t.is_measured), key=lambda t: t.throughput, default=None)

    @cached_property
    def start_ups(self) -> StartUps:
        """Start-up times of plans."""
        ran = [(t.plan, t.result.measurement) for t in self.done if t.result.measurement]
        device_kind = self.space.site.hardware.device_kind
        return StartUps(ran, self.compiled_earlier, device_kind=device_kind)

    def figures(self, trial: Done) -> Figures:
        """Return the figures of a measured trial that the objective depends on."""
        measurement = trial.result.measurement
        memory = measurement.memory_bytes if measurement else None
        return self.figures_of(trial.plan, trial.throughput, memory)

    def figures_of(self, plan: Plan, throughput: float, memory_bytes: int | None) -> Figures:
        """Return the figures of a plan with this throughput and peak memory."""
        start_s = self.start_ups.of(plan) or 0.0
        return Figures(throughput=throughput, start_s=start_s, memory_bytes=memory_bytes)

    def value(self, trial: Done) -> float:
        """Return the value of a measured trial by the objective, 0 where it may not win."""
        return self.objective.value(self.figures(trial), self.figures(self.baseline or trial))

    @cached_property
    def verdicts(self) -> Verdicts:
        """What the numerics checks say about plans."""
        own_knobs = [name for name, _ in self.space.facts.user_knobs]
        return Verdicts(self.of(Purpose.NUMERICS), self.space.baseline, own_knobs)

    @cached_property
    def ranking(self) -> tuple[Done, ...]:
        """The trials of `fastest` whose plans no numerics check rules out."""
        return tuple(t for t in self.fastest if not self.verdicts.rule_out(t.plan))

    @cached_property
    def fastest(self) -> tuple[Done, ...]:
        """The fully measured search trials that fit in memory, by value, then by throughput."""
        fit = [t for t in self.search if t.is_measured and not _raced(t) and self.fits(t)]
        return tuple(sorted(fit, key=lambda t: (-self.value(t), -t.throughput, t.number)))

    @property
    def best(self) -> Done:
        """The first of `ranking`; the baseline where nothing is in it.

        Raises:
            LookupError: before a baseline ran.
        """
        if self.baseline is None:
            raise LookupError("no baseline has run yet")
        return self.ranking[0] if self.ranking else self.baseline

    def fits(self, trial: Done) -> bool:
        """Whether the trial left the memory headroom; unknown memory counts as fitting."""
        measurement = trial.result.measurement
        memory = measurement.memory_bytes if measurement else None
        return memory is None or memory <= self.memory_cap_bytes

    def outcome(self, plan: Plan) -> Outcome | None:
        """Return how the search's last trial of the plan ended, None if there was none."""
        ends = [t.result.outcome for t in self.search if t.plan == plan]
        return ends[-1] if ends else None


def conclusive(trials: Iterable[Done]) -> list[Done]:
    """Return those of a plan's trials that say something about it.

    Stopped trials do not, nor does a first failure of the infrastructure.
    """
    ended = list(trials)
    lost = [t for t in ended if t.result.outcome is Outcome.INFRA]
    return [t for t in ended if t.result.outcome.is_about_plan] + lost[MAX_LOST - 1 :]


def without_batch(plan: Plan) -> Plan:
    """Return the plan without its batch size and accumulation."""
    return Plan(tuple(item for item in plan.items if item[0] not in FOLLOWS_BATCH))


def _raced(trial: Done) -> bool:
    return trial.result.measurement is not None and trial.result.measurement.raced
