"""How long a step should take, from the time of its host and that of its device.

A GPU computes while the host launches more, so the slower side sets the time; on a CPU both sides
are the same cores, and the times add up. So the gain of a setting or of a larger batch depends on
the other settings: a lower precision does not speed up a step that waits for launches.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from autotune.agent.done import Done
from autotune.agent.forecast.loading import computing_share
from autotune.agent.history import History
from autotune.search_space.bound import Bound
from autotune.search_space.hardware import Hardware
from autotune.search_space.knobs import Knob
from autotune.search_space.knobs.batch import FOLLOWS, FOLLOWS_BATCH
from autotune.search_space.knobs.host import THREADS
from autotune.search_space.knobs.knob import Effect, StepPart, both
from autotune.search_space.plan import Plan, Value

# How sharply the slower side sets the time: the p of a p-norm. 1 is a sum, infinity a maximum.
_SHARPNESS = {"cuda": 4.0, "cpu": 1.0}
_LAUNCH_S = 12e-6  # host time of launching one operation of an eager step on a GPU
# Guess of a step's host time without a diagnosis, at any batch; and its largest share of the step.
_HOST_S = {"cuda": 6e-3, "cpu": 3e-3}
_MOST_HOST_SHARE = 0.8
_IDLE_SHARE = 0.1  # idle share of a GPU's step above which the host is taken to be the slower side
# Least device time of a kernel; and the largest share of the step that these add up to.
_KERNEL_S, _MOST_FIXED_SHARE = 3e-6, 0.95
# Device time of any batch beside its samples, as a part of the baseline's batch: a small batch
# leaves units idle.
_IDLE_PART_OF_BATCH = 0.05
# Share of a GPU's time that a usual step in fp32 spends on kernels bound by memory bandwidth: of
# models of matrix products alone, and how much more of convolutions alone, which are faster.
_USUAL_POINTWISE_SHARE, _MORE_BESIDE_CONVOLUTIONS = 0.1, 0.2
_LEAST_POINTWISE_SHARE = 0.03  # also where a diagnosis saw none
_LEAST_DOUBT = 0.002  # least standard deviation of the log speed by a changed setting
# Part of the time of copying batches that pinned memory hides: a ResNet-50 on an H200 copied for
# 19 % of its step from pageable memory.
_HIDDEN_PART = 0.8
# Standard deviation of the log speed by a doubling of the batch: a constant, and a part of its
# expected gain.
_DOUBT_ABOUT_DOUBLING, _DOUBT_ABOUT_BATCH = 0.02, 0.3
_DOUBT_WITHOUT_DIAGNOSIS = 0.2  # that constant if the times of host and device are a guess


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """Host and device time of a micro-step, without waiting for data.

    Attributes:
        host_s: seconds in which the host prepares and launches operations.
        device_s: seconds in which the device runs them.
        fixed_s: part of `device_s` that depends on neither batch nor precision.
        is_measured: whether a diagnosis measured them; else they are a guess.
        pointwise_share: share of `device_s` less `fixed_s` in eager fp32 that is bound by memory
            bandwidth, not by the arithmetic of matrix products, convolutions and attention.
    """

    host_s: float
    device_s: float
    fixed_s: float
    is_measured: bool = True
    pointwise_share: float = _USUAL_POINTWISE_SHARE

    def varying_s(self, speed: Effect) -> float:
        """Return the device time beside `fixed_s` that settings of this speed-up leave."""
        products = (1.0 - self.pointwise_share) / speed.products
        return (self.device_s - self.fixed_s) * (
            (products + self.pointwise_share / speed.pointwise) / speed.device
        )


class Roofline:
    """The expected speed of plans, from the host and device time of a step that was diagnosed.

    That is the fastest such step, as what limits a step changes with the plan; see
    `History.diagnosed`. Its times without the effects of its settings are those of eager fp32.

    Args:
        history: with a baseline that ran.
        hardware: the machine that trials run on.
    """

    def __init__(self, history: History, hardware: Hardware) -> None:
        assert history.baseline is not None
        self._history, self._hardware = history, hardware
        self._baseline_plan = history.baseline.plan
        self._sharpness = _SHARPNESS[hardware.device_kind]
        self._effects: dict[tuple[str, Value], Effect] = {}
        reference = history.diagnosed or history.baseline
        self._diagnosed_batch = int(reference.plan["batch_size"])
        effect, sides = self._combined_effect(reference.plan), sides_of(reference, hardware)
        share = self._pointwise_share(reference, effect, sides)
        self._sides = _without(effect, replace(sides, pointwise_share=share))

    def _pointwise_share(self, reference: Done, effect: Effect, sides: Sides) -> float:
        """Return the share in eager fp32; least kernels, which all take as long, say little."""
        conv_share = self._history.space.facts.conv_share
        usual = _USUAL_POINTWISE_SHARE + _MORE_BESIDE_CONVOLUTIONS * conv_share
        measured = _measured_share(reference)
        if measured is None:
            return usual
        least = sides.fixed_s / sides.device_s if sides.device_s else 1.0
        return (1.0 - least) * _share_without(effect, measured) + least * usual

    def log_speed(self, plan: Plan) -> float:
        """Return the log of the expected samples per second without waiting for data."""
        return self._log_speed(int(plan["batch_size"]), self._combined_effect(plan))

    def gains(self, plan: Plan) -> dict[str, float]:
        """Return the expected gain in log speed of each change, given the plan's other changes."""
        batch, combined = int(plan["batch_size"]), self._combined_effect(plan)
        speed = self._log_speed(batch, combined)
        gains = {
            "batch_size": speed - self._log_speed(int(self._baseline_plan["batch_size"]), combined)
        }
        for name in self._changed(plan):
            without = self._combined_effect(plan, but=name)
            gains[name] = speed - self._log_speed(batch, without)
        return gains

    def doubts(self, plan: Plan) -> dict[str, float]:
        """Return the standard deviation of the log speed by each changed setting at zero gain."""
        return {name: self._doubt(name) for name in self._changed(plan)}

    def _changed(self, plan: Plan) -> Iterator[str]:
        for name, value in plan.items:
            if name not in FOLLOWS_BATCH and value != self._baseline_plan.get(name, ""):
                yield name

    def batch_variance(self, batch: int) -> float:
        """Return the variance of the log speed at a batch relative to the baseline's batch.

        Each doubling adds its own variance. The result is negative for a smaller batch.
        """
        own = int(self._baseline_plan["batch_size"])
        low, high = sorted((own, batch))
        total, at = 0.0, float(low)
        while at < high:
            to = min(2 * at, high)
            total += math.log2(to / at) * self._doubt_of_doubling(at) ** 2
            at = to
        return math.copysign(total, batch - own)

    def _doubt_of_doubling(self, batch: float) -> float:
        gain = self._log_speed(2 * batch, self._best) - self._log_speed(batch, self._best)
        least = _DOUBT_ABOUT_DOUBLING if self._sides.is_measured else _DOUBT_WITHOUT_DIAGNOSIS
        return least + _DOUBT_ABOUT_BATCH * abs(gain)

    @cached_property
    def _best(self) -> Effect:
        return self._combined_effect(self._history.best.plan)

    def _doubt(self, name: str) -> float:
        doubt, share = self._knob(name).doubt, self._share_saved(name)
        return doubt if share is None else min(doubt, max(share / 2, _LEAST_DOUBT))

    def _combined_effect(self, plan: Plan, but: str = "") -> Effect:
        effects = {name: self._effect(name, value) for name, value in plan.items if name != but}
        corrections = [self._knob(n).correction(plan[n], effects) for n in effects]
        found = [*effects.values(), *corrections]
        return Effect(
            host=math.prod(e.host for e in found),
            device=math.prod(e.device for e in found),
            products=math.prod(e.products for e in found),
            pointwise=math.prod(e.pointwise for e in found),
        )

    def _effect(self, name: str, value: Value) -> Effect:
        if (name, value) not in self._effects:
            found, most = self._expected(name, value), self._largest_effect(name)
            self._effects[name, value] = self._by_diagnosis(name, value) or replace(
                found,
                host=self._limited(name, found.host, most.host),
                device=self._limited(name, found.device, most.device),
            )
        return self._effects[name, value]

    def _by_diagnosis(self, name: str, value: Value) -> Effect | None:
        """Return the effect of a value that a diagnosis of a step without it tells; else None.

        That is of fewer threads, and of what lets a part of the step run beside the rest.
        """
        if name == THREADS.name:
            return self._of_fewer_threads(int(value))
        diagnosed, part = self._history.diagnosed, self._knob(name).hides
        first = self._history.space.by_name[name].values[0]
        if part is None or value == first or diagnosed is None:
            return None
        if diagnosed.result.diagnosis is None or diagnosed.plan.get(name, "") != first:
            return None
        share = getattr(diagnosed.result.diagnosis.shares, part) or 0.0
        return both(1.0 / (1.0 - _HIDDEN_PART * share))

    def _of_fewer_threads(self, value: int) -> Effect | None:
        """Return the effect of fewer threads on a CPU, by what one did in the baseline's step."""
        assert self._history.baseline is not None
        own = int(self._baseline_plan["threads"])
        diagnosis = self._history.baseline.result.diagnosis
        if diagnosis is None or diagnosis.one_thread_speedup is None or value >= own:
            return None
        return both(diagnosis.one_thread_speedup ** (math.log(own / value) / math.log(own)))

    def _limited(self, name: str, speed: float, most: float) -> float:
        """Return the speed-up, limited by the share of the step that the knob acts on (Amdahl)."""
        share = self._share_saved(name)
        if share is None or share >= 1.0 or most <= 1.0:
            return speed
        limit = -math.log1p(-share)
        return float(speed ** min(1.0, limit / math.log(most)))

    def _largest_effect(self, name: str) -> Effect:
        values = self._history.space.by_name[name].values
        effects = [self._expected(name, value) for value in values]
        return Effect(max(e.host for e in effects), max(e.device for e in effects))

    def _expected(self, name: str, value: Value) -> Effect:
        return self._knob(name).speed(value, self._history.space.site)

    def _share_saved(self, name: str) -> float | None:
        return share_saved(self._knob(name), self._history)

    def _knob(self, name: str) -> Knob:
        return self._history.space.knob(name)

    def _log_speed(self, batch: float, speed: Effect) -> float:
        """Return the log of samples per second for a micro-batch and the speed-up of each side."""
        own, sides, p = self._diagnosed_batch, self._sides, self._sharpness
        host_s = sides.host_s / speed.host
        idle = _IDLE_PART_OF_BATCH * int(self._baseline_plan["batch_size"])
        device_s = sides.fixed_s + sides.varying_s(speed) * (batch + idle) / (own + idle)
        step_s = float((host_s**p + device_s**p) ** (1 / p))
        return math.log(batch / step_s)


def share_saved(knob: Knob, history: History) -> float | None:
    """Return the largest share of the best plan's step that a knob can save, None if unknown.

    Communication is traced in every trial. Other parts were measured in a step that was diagnosed;
    they take as long in a faster step, so a larger share of it.
    """
    diagnosed, best = history.diagnosed, history.best
    if knob.saves == frozenset({StepPart.COMMUNICATION}) and best.result.measurement is not None:
        return best.result.measurement.exposed_comm_share
    if diagnosed is None or diagnosed.result.diagnosis is None or knob.saves is None:
        return None
    found = diagnosed.result.diagnosis
    shares: list[float | None] = [getattr(found.shares, part) for part in knob.saves]
    known = [share for share in shares if share is not None]
    if len(known) < len(shares):
        return None
    return min(1.0, sum(known) * max(1.0, best.throughput / diagnosed.throughput))


def sides_of(trial: Done, hardware: Hardware) -> Sides:
    """Return host and device time of a trial's step, a guess if it was not diagnosed."""
    measurement, diagnosis = trial.result.measurement, trial.result.diagnosis
    assert measurement is not None
    micro_steps = int(trial.plan.get(FOLLOWS, 1))
    step_s = 1e-3 * measurement.step_ms * computing_share(trial) / micro_steps
    if diagnosis is None or Bound.LAUNCHES not in diagnosis.causes:
        host_s = min(_HOST_S[hardware.device_kind], _MOST_HOST_SHARE * step_s)
        return _sides(host_s, step_s - host_s, is_measured=False)
    waits = diagnosis.causes.get(Bound.DATA, 0.0)
    launches = min(1.0, diagnosis.causes[Bound.LAUNCHES] / max(1e-3, 1.0 - waits))
    if hardware.device_kind == "cpu":
        return _sides(launches * step_s, (1.0 - launches) * step_s)
    ops = (diagnosis.ops_per_step or 0.0) / micro_steps
    if launches > _IDLE_SHARE:
        return _sides(step_s, (1.0 - launches) * step_s, ops)
    return _sides(min(_LAUNCH_S * ops, step_s), step_s, ops)


def _sides(
    host_s: float, device_s: float, kernels: float = 0.0, *, is_measured: bool = True
) -> Sides:
    fixed_s = min(_KERNEL_S * kernels, _MOST_FIXED_SHARE * device_s)
    return Sides(host_s=host_s, device_s=device_s, fixed_s=fixed_s, is_measured=is_measured)


def _without(speed: Effect, sides: Sides) -> Sides:
    """Return what the times would be without the settings of this speed-up that they have."""
    varying_s = sides.device_s - sides.fixed_s
    times = varying_s / sides.varying_s(speed) if varying_s else 1.0
    return replace(
        sides, host_s=sides.host_s * speed.host, device_s=sides.fixed_s + varying_s * times
    )


def _share_without(speed: Effect, share: float) -> float:
    """Return what a share of kernels bound by memory bandwidth would be without settings."""
    products, pointwise = (1.0 - share) * speed.products, share * speed.pointwise
    return pointwise / (products + pointwise)


def _measured_share(trial: Done) -> float | None:
    """Return the share of the kernels' time that is bound by memory bandwidth, as diagnosed."""
    diagnosis = trial.result.diagnosis
    if diagnosis is None:
        return None
    by_bandwidth = diagnosis.causes.get(Bound.MEMORY_BANDWIDTH, 0.0)
    busy = by_bandwidth + diagnosis.causes.get(Bound.ARITHMETIC, 0.0)
    return max(_LEAST_POINTWISE_SHARE, by_bandwidth / busy) if busy else None
