"""Everything that is known so far, as an immutable view; all decisions are functions of it."""

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

SEARCH = frozenset(
    {Purpose.BASELINE, Purpose.PRESET, Purpose.LADDER, Purpose.NEIGHBOUR, Purpose.SAMPLER}
)
MAX_LOST = 2  # a trial that the infrastructure lost, or that took too long, is tried once more


@dataclass(frozen=True, kw_only=True)
class History:
    """Finished trials of one space by number, and its plans that are running.

    Attributes:
        memory_cap_bytes: plans that need more cannot win.
        scouts: the trials on one device, where those of this history are on several.
        objective: what makes a plan better than another.
        compiled_earlier: processes of earlier runs, whose kernels may still be in the cache.
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
        """Search trials that ended or run, those on one device among them."""
        scouts = self.scouts.num_search if self.scouts else 0
        return len(self.search) + len(self.pending) + scouts

    @cached_property
    def measured(self) -> dict[Plan, Measurement]:
        """What one process measured of each plan, confirmations not among it."""
        trials = self.of(*SEARCH, Purpose.ABLATE)
        return {t.plan: t.result.measurement for t in trials if t.result.measurement}

    @cached_property
    def peaks(self) -> dict[Plan, dict[int, int]]:
        """Measured memory in bytes by batch, of each plan but for its batch."""
        found: dict[Plan, dict[int, int]] = {}
        for plan, measurement in self.measured.items():
            if measurement.memory_bytes is not None:
                batches = found.setdefault(but_batch(plan), {})
                batches[int(plan["batch_size"])] = measurement.memory_bytes
        return found

    @cached_property
    def tried(self) -> frozenset[Plan]:
        """Plans not to run again in the search.

        They are known, running, cut short by the end of its time, or lost or given up twice.
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
        """The first baseline that ran; a smaller batch than the user's where theirs did not."""
        ran = (t for t in self.of(Purpose.BASELINE) if t.result.outcome is Outcome.OK)
        return next(ran, None)

    @property
    def reference(self) -> Plan:
        """What plans are compared with: the baseline that ran, before one did the user's own."""
        return self.baseline.plan if self.baseline else self.space.baseline

    @property
    def diagnosis(self) -> Diagnosis | None:
        """What limits the step of the baseline, None before that was looked at."""
        return self.baseline.result.diagnosis if self.baseline else None

    @cached_property
    def start_ups(self) -> StartUps:
        """How long plans take to start."""
        ran = [(t.plan, t.result.measurement) for t in self.done if t.result.measurement]
        device_kind = self.space.site.hardware.device_kind
        return StartUps(ran, self.compiled_earlier, device_kind=device_kind)

    def figures(self, trial: Done) -> Figures:
        """Return what the objective weighs of a measured trial."""
        measurement = trial.result.measurement
        memory = measurement.memory_bytes if measurement else None
        return self.figures_of(trial.plan, trial.throughput, memory)

    def figures_of(self, plan: Plan, throughput: float, memory_bytes: int | None) -> Figures:
        """Return what the objective weighs of a plan that gives and needs so much."""
        start_s = self.start_ups.of(plan) or 0.0
        return Figures(throughput=throughput, start_s=start_s, memory_bytes=memory_bytes)

    def value(self, trial: Done) -> float:
        """Return how good a measured trial's plan is by the objective, 0 where it may not win."""
        return self.objective.value(self.figures(trial), self.figures(self.baseline or trial))

    @cached_property
    def verdicts(self) -> Verdicts:
        """What the numerics checks say about plans."""
        return Verdicts(self.of(Purpose.NUMERICS), self.space)

    @cached_property
    def ranking(self) -> tuple[Done, ...]:
        """The trials of `fastest` whose plans no numerics check speaks against."""
        return tuple(t for t in self.fastest if not self.verdicts.rule_out(t.plan))

    @cached_property
    def fastest(self) -> tuple[Done, ...]:
        """The search trials measured to the end that fit, by value, then by throughput."""
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
    """Return which of a plan's trials count: those that were stopped say nothing about it.

    One failure of the infrastructure is forgiven.
    """
    ended = list(trials)
    lost = [t for t in ended if t.result.outcome is Outcome.INFRA]
    return [t for t in ended if t.result.outcome.is_about_plan] + lost[MAX_LOST - 1 :]


def but_batch(plan: Plan) -> Plan:
    """Return what of the plan does not follow from the batch."""
    return Plan(tuple(item for item in plan.items if item[0] not in FOLLOWS_BATCH))


def _raced(trial: Done) -> bool:
    return trial.result.measurement is not None and trial.result.measurement.raced
