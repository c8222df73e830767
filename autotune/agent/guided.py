"""The proposals that domain knowledge makes, each kind a small proposer."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from autotune.agent.history import Done, History
from autotune.agent.levers import LOADER_KNOBS, Lever, levers, speed_of, waits_for_data
from autotune.agent.proposal import Proposal
from autotune.search_space.hardware import Hardware
from autotune.search_space.plan import Plan
from autotune.search_space.presets import CHECKLIST, checklist
from autotune.trials.result import Outcome, Purpose

STRONG = 1.04  # expected gain from which a lever is worth a trial before the batch ladder
_SHORTFALL = 1.1  # of the gain promised over the gain seen: then some part does not deliver
_LARGE_PROMISE = 1.15
_WORTH_WORKERS = 0.1  # share of waiting from which workers are on the checklist
_HOPELESS = 0.9  # expected speed-up of a neighbour below which it waits for the sampler
EXPENSIVE = ("max-autotune-no-cudagraphs", "max-autotune")


@dataclass(frozen=True, slots=True, kw_only=True)
class Presets:
    """The checklist all together, with less compilation where time or the compiler forbids it."""

    def candidates(self, history: History) -> Iterator[Proposal]:
        """Yield the checklist, then cheaper ones until one of them ran."""
        for plan, words in self._variants(history):
            if plan != history.space.baseline:
                yield Proposal(plan=plan, purpose=Purpose.PRESET, reason=words)
            if plan in history.pending or history.outcome(plan) is Outcome.OK:
                return

    def _variants(self, history: History) -> Iterator[tuple[Plan, str]]:
        assert history.baseline is not None
        space, batch = history.space, history.baseline.plan["batch_size"]
        skip = _skipped(history.baseline)
        whole = space.plan({"batch_size": batch}, checklist(space, skip))
        yield whole, "the checklist of performance guides, all together"
        if "compile_scope" in whole:
            block = space.plan({"compile_scope": _last(history, "compile_scope")}, whole)
            yield block, "the checklist, compiling only the repeated block"
        eager = checklist(space, (*skip, "compile_mode"))
        yield space.plan({"batch_size": batch}, eager), "the checklist without compiling"


@dataclass(frozen=True, slots=True, kw_only=True)
class Levers:
    """Single knobs on top of the best plan, largest expected gain first."""

    hardware: Hardware
    at_least: float

    def candidates(self, history: History) -> Iterator[Proposal]:
        """Yield each lever that is expected to gain a factor of `at_least`."""
        for lever in levers(history, self.hardware):
            if lever.gain >= self.at_least and lever.value not in EXPENSIVE:
                yield from _pulled(lever, history)


@dataclass(frozen=True, slots=True, kw_only=True)
class PatientCompilation:
    """Compile modes that take minutes, once everything cheaper was tried."""

    hardware: Hardware

    def candidates(self, history: History) -> Iterator[Proposal]:
        """Yield them on top of the best plan."""
        for lever in levers(history, self.hardware):
            if lever.value in EXPENSIVE:
                yield from _pulled(lever, history)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlipBack:
    """Parts of the checklist that may hurt here, taken back one at a time."""

    hardware: Hardware

    def candidates(self, history: History) -> Iterator[Proposal]:
        """Yield the parts never seen alone, those that promised most first.

        When all together gave what was promised, only small promises are worth a doubt.
        """
        best, baseline = history.best, history.space.baseline
        promised = self._promises(history)
        delivered = history.best.throughput / _speed_of_baseline(history)
        kept = math.prod(promised.values()) <= _SHORTFALL * delivered
        for name in sorted(promised, key=lambda name: -promised[name]):
            old, new = baseline[name], best.plan[name]
            seen = [*history.effects(name, old, new), *history.effects(name, new, old)]
            if not seen and not (kept and promised[name] >= _LARGE_PROMISE):
                yield Proposal(
                    plan=history.space.plan({name: old}, best.plan),
                    purpose=Purpose.NEIGHBOUR,
                    reason=f"does {name}={new} of trial {best.number} help or hurt?",
                )

    def _promises(self, history: History) -> dict[str, float]:
        best, baseline = history.best.plan, history.space.baseline
        parts = [name for name in CHECKLIST if best.get(name, "") != baseline.get(name, "")]
        return {name: speed_of(name, history, self.hardware).get(best[name], 1) for name in parts}


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """Other values of each knob of the best plan, save those expected to lose clearly."""

    hardware: Hardware

    def candidates(self, history: History) -> Iterator[Proposal]:
        """Yield the neighbours that evidence does not rule out; minutes of compiling are not."""
        best = history.best
        for name in best.plan:
            if _pointless(name, history):
                continue
            for plan in history.space.alternatives(best.plan, name):
                if self._is_hopeful(name, plan, history):
                    reason = f"{name}={plan[name]} beside trial {best.number}, the best so far"
                    yield Proposal(plan=plan, purpose=Purpose.NEIGHBOUR, reason=reason)

    def _is_hopeful(self, name: str, plan: Plan, history: History) -> bool:
        current, speeds = history.best.plan[name], speed_of(name, history, self.hardware)
        promise = speeds.get(plan[name], 1.0) / speeds.get(current, 1.0)
        expensive = plan.get("compile_mode", "off") in EXPENSIVE
        return (
            promise > _HOPELESS and not expensive and not history.loses(name, current, plan[name])
        )


def _skipped(baseline: Done) -> tuple[str, ...]:
    # Each worker costs the step: a core on a CPU, and copies between processes anywhere.
    return () if waits_for_data(baseline, at_least=_WORTH_WORKERS) else ("workers",)


def _pointless(name: str, history: History) -> bool:
    """Loader knobs matter only while the loop waits; others are other proposers' business."""
    if name in LOADER_KNOBS and not waits_for_data(history.best):
        return True
    return name in ("activation_checkpointing", "batch_size", "accumulation", "sharding")


def _speed_of_baseline(history: History) -> float:
    return history.baseline.throughput if history.baseline else 1.0


def _pulled(lever: Lever, history: History) -> Iterator[Proposal]:
    best = history.best
    plan = history.space.possible({lever.knob: lever.value}, best.plan)
    if plan is not None:
        reason = f"{lever.knob}={lever.value} on top of trial {best.number}: {lever.why}"
        yield Proposal(plan=plan, purpose=Purpose.PRESET, reason=reason)


def _last(history: History, knob: str) -> str:
    return str(history.space.by_name[knob].values[-1])
