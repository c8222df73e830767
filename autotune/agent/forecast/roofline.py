"""How long a step should take: as long as its host prepares it, or its device runs it.

A GPU works on what was launched while the host launches more, so the slower side sets the time; on
a CPU both are the same cores, and the times add up. What a setting or a larger batch is worth thus
depends on the other settings: fewer bits do nothing for a step that waits for launches.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from autotune.agent.done import Done
from autotune.agent.forecast.loading import computing_share
from autotune.agent.history import History
from autotune.search_space.bound import Bound
from autotune.search_space.hardware import Hardware
from autotune.search_space.knobs import Knob
from autotune.search_space.knobs.batch import FOLLOWS, FOLLOWS_BATCH
from autotune.search_space.knobs.knob import Effect, StepPart
from autotune.search_space.plan import Plan, Value

# How sharply the slower side sets the time: the p of a p-norm. 1 is a sum, infinity a maximum.
_SHARPNESS = {"cuda": 4.0, "cpu": 1.0}
_LAUNCH_S = 12e-6  # of the host for each operation of an eager step on a GPU
_HOST_S = {"cuda": 6e-3, "cpu": 3e-3}  # of a step that was not looked at, whatever the batch
_MOST_HOST = 0.8  # share of such a step
_IDLES = 0.1  # share of the time from which a device waits for its host
_KERNEL_S, _MOST_FIXED = 3e-6, 0.95  # what each kernel takes at the least; share of all of them
_IDLE_UNITS = 0.05  # share of the baseline's batch that would run in the same time for nothing
_LEAST_DOUBT = 0.002  # deviation of the log speed, for a setting that can save next to nothing
# How far the log speed may be off with each doubling of the batch: something, and a part of what
# that promises.
_DOUBT_ABOUT_DOUBLING, _DOUBT_ABOUT_BATCH = 0.02, 0.3
_DOUBT_WITHOUT_DIAGNOSIS = 0.2  # about a doubling, where how the step divides is a guess


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """Seconds of one step of the baseline without waiting for data, by side.

    Attributes:
        fixed_s: part of the device's that depends on neither batch nor precision.
        seen: in a diagnosis; else it is a guess.
    """

    host_s: float
    device_s: float
    fixed_s: float
    seen: bool = True


class Roofline:
    """What is expected of plans, given how the baseline's step divides.

    Args:
        history: with a baseline that ran.
    """

    def __init__(self, history: History, hardware: Hardware) -> None:
        assert history.baseline is not None
        self._history, self._hardware = history, hardware
        self._own = history.baseline.plan
        self._sides = sides_of(history.baseline, hardware)
        self._sharpness = _SHARPNESS[hardware.device_kind]
        self._effects: dict[tuple[str, Value], Effect] = {}

    def log_speed(self, plan: Plan) -> float:
        """Return the logarithm of the samples per second, were there no waiting for data."""
        return self._log_speed(int(plan["batch_size"]), self._together(plan))

    def gains(self, plan: Plan) -> dict[str, float]:
        """Return what each change from the baseline is worth in the plan, in the log speed."""
        batch, together = int(plan["batch_size"]), self._together(plan)
        speed = self._log_speed(batch, together)
        gains = {"batch_size": speed - self._log_speed(int(self._own["batch_size"]), together)}
        for name in self._changed(plan):
            without = self._together(plan, but=name)
            gains[name] = speed - self._log_speed(batch, without)
        return gains

    def doubts(self, plan: Plan) -> dict[str, float]:
        """Return how far each changed setting may be off in any case, in the log speed."""
        return {name: self._doubt(name) for name in self._changed(plan)}

    def _changed(self, plan: Plan) -> Iterator[str]:
        for name, value in plan.items:
            if name not in FOLLOWS_BATCH and value != self._own.get(name, ""):
                yield name

    def distance(self, batch: int) -> float:
        """Return the variance that the log speed gains on the way from the baseline's batch.

        Signed by the direction. Each doubling adds the doubt about what it gains.
        """
        own = int(self._own["batch_size"])
        low, high = sorted((own, batch))
        total, at = 0.0, float(low)
        while at < high:
            to = min(2 * at, high)
            total += math.log2(to / at) * self._doubt_of_doubling(at) ** 2
            at = to
        return math.copysign(total, batch - own)

    def _doubt_of_doubling(self, batch: float) -> float:
        gain = self._log_speed(2 * batch, self._best) - self._log_speed(batch, self._best)
        least = _DOUBT_ABOUT_DOUBLING if self._sides.seen else _DOUBT_WITHOUT_DIAGNOSIS
        return least + _DOUBT_ABOUT_BATCH * abs(gain)

    @cached_property
    def _best(self) -> Effect:
        return self._together(self._history.best.plan)

    def _doubt(self, name: str) -> float:
        doubt, share = self._knob(name).doubt, self._share_saved(name)
        return doubt if share is None else min(doubt, max(share / 2, _LEAST_DOUBT))

    def _together(self, plan: Plan, but: str = "") -> Effect:
        effects = {name: self._effect(name, value) for name, value in plan.items if name != but}
        corrections = [self._knob(n).correction(plan[n], effects) for n in effects]
        found = [*effects.values(), *corrections]
        return Effect(math.prod(e.host for e in found), math.prod(e.device for e in found))

    def _effect(self, name: str, value: Value) -> Effect:
        if (name, value) not in self._effects:
            found, most = self._expected(name, value), self._most(name)
            self._effects[name, value] = Effect(
                self._shortened(name, found.host, most.host),
                self._shortened(name, found.device, most.device),
            )
        return self._effects[name, value]

    def _shortened(self, name: str, speed: float, most: float) -> float:
        """Nothing gains more than all of the time that it acts on (Amdahl's law)."""
        share = self._share_saved(name)
        if share is None or share >= 1.0 or most <= 1.0:
            return speed
        limit = -math.log1p(-share)
        return float(speed ** min(1.0, limit / math.log(most)))

    def _most(self, name: str) -> Effect:
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
        """Return it for a micro-batch; `speed` is that of each side over the baseline's."""
        own = int(self._own["batch_size"])
        sides, p = self._sides, self._sharpness
        host_s = sides.host_s / speed.host
        idle = _IDLE_UNITS * own
        varying_s = (sides.device_s - sides.fixed_s) * (batch + idle) / (own + idle)
        device_s = sides.fixed_s + varying_s / speed.device
        step_s = float((host_s**p + device_s**p) ** (1 / p))
        return math.log(batch / step_s)


def share_saved(knob: Knob, history: History) -> float | None:
    """Return the largest share of the best plan's step that a knob can save, None if unknown.

    Communication is traced in every trial. What was seen of the baseline alone takes as long in a
    faster step, so more of it.
    """
    found, baseline, best = history.diagnosis, history.baseline, history.best
    if knob.saves == frozenset({StepPart.COMMUNICATION}) and best.result.measurement is not None:
        return best.result.measurement.exposed_comm_share
    if found is None or baseline is None or knob.saves is None:
        return None
    shares: list[float | None] = [getattr(found.shares, part) for part in knob.saves]
    known = [share for share in shares if share is not None]
    if len(known) < len(shares):
        return None
    return min(1.0, sum(known) * max(1.0, best.throughput / baseline.throughput))


def sides_of(baseline: Done, hardware: Hardware) -> Sides:
    """Return how the baseline's step divides, from its diagnosis where it has one."""
    measurement, diagnosis = baseline.result.measurement, baseline.result.diagnosis
    assert measurement is not None
    micro_steps = int(baseline.plan.get(FOLLOWS, 1))
    step_s = 1e-3 * measurement.step_ms * computing_share(baseline) / micro_steps
    if diagnosis is None or Bound.LAUNCHES not in diagnosis.causes:
        host_s = min(_HOST_S[hardware.device_kind], _MOST_HOST * step_s)
        return _sides(host_s, step_s - host_s, seen=False)
    waits = diagnosis.causes.get(Bound.DATA, 0.0)
    launches = min(1.0, diagnosis.causes[Bound.LAUNCHES] / max(1e-3, 1.0 - waits))
    if hardware.device_kind == "cpu":
        return _sides(launches * step_s, (1.0 - launches) * step_s)
    ops = (diagnosis.ops_per_step or 0.0) / micro_steps
    if launches > _IDLES:
        return _sides(step_s, (1.0 - launches) * step_s, ops)
    return _sides(min(_LAUNCH_S * ops, step_s), step_s, ops)


def _sides(host_s: float, device_s: float, kernels: float = 0.0, *, seen: bool = True) -> Sides:
    fixed_s = min(_KERNEL_S * kernels, _MOST_FIXED * device_s)
    return Sides(host_s=host_s, device_s=device_s, fixed_s=fixed_s, seen=seen)
