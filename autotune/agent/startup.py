"""How long a plan takes to its second step where nothing of it was compiled before.

A later process finds kernels in the compiler's cache, which lives on the disk: the second process
of a plan starts sooner than the first, and so do plans that compile the same program. A training
elsewhere, or after an update, finds none. So the longest compilation that any process showed
counts, whatever the others took. Plans that compile nothing have no such cache. What else delays a
first step, such as files read for the first time, is the same under all plans, and the first
process of a run has most of it: there the shortest start counts. Imports are not part of it.
"""

import statistics
from collections.abc import Iterable, Sequence

from autotune.search_space.hardware import DeviceKind
from autotune.search_space.knobs import CATALOGUE, is_compiled
from autotune.search_space.plan import Plan, Value
from autotune.trials.result import Measurement

Process = tuple[Plan, Measurement]
"""A plan, and what one process measured of it."""


class StartUps:
    """Start-up times of plans, learnt from processes.

    Args:
        processes: of plans, in the order in which they ran.
        earlier: of earlier runs; what they compiled may still be in the cache.
        device_kind: of the devices; it decides which settings the compiler looks at.
    """

    def __init__(
        self,
        processes: Iterable[Process],
        earlier: Iterable[Process] = (),
        *,
        device_kind: DeviceKind = "cpu",
    ) -> None:
        self._own: dict[Plan, list[Measurement]] = {}
        self._compile_s: dict[Plan, float] = {}
        self._first_steps_s: dict[tuple[Plan, Value], list[float]] = {}
        self._not_compiled = frozenset(
            knob.name for knob in CATALOGUE if device_kind not in knob.recompiles_on
        )
        for plan, measurement in processes:
            self._own.setdefault(plan, []).append(measurement)
            first_steps_s = self._first_steps_s.setdefault(self._with_batch(plan), [])
            first_steps_s.append(measurement.first_step_s)
            self._see(plan, measurement)
        for plan, measurement in earlier:
            self._see(plan, measurement)

    def of(self, plan: Plan) -> float | None:
        """Return the seconds of building and of a cold first step, None before it was measured."""
        own = self._own.get(plan)
        if own is None:
            return None
        starts_s = [m.build_s + m.first_step_s for m in own]
        compile_s = self.compile_s(plan)
        if compile_s is None:
            return min(starts_s)
        build_s, step_s = min(m.build_s for m in own), min(m.step_ms for m in own) / 1000
        return max(*starts_s, build_s + compile_s + step_s)

    def compile_s(self, plan: Plan) -> float | None:
        """Return the longest compilation of the plan's program; None: unknown, or there is none.

        It is the first step without the time of a usual one: that depends on the batch.
        """
        return self._compile_s.get(self._program(plan)) if is_compiled(plan) else None

    def first_steps_s(self, plan: Plan) -> Sequence[float]:
        """Return the first steps of the processes so far that ran the plan's program at its batch.

        The later ones found it in the compiler's cache.
        """
        return self._first_steps_s.get(self._with_batch(plan), ())

    def build_s(self) -> float:
        """Return how long building takes; no setting changes much about it."""
        own = [m.build_s for measured in self._own.values() for m in measured]
        return statistics.median(own) if own else 0.0

    def _see(self, plan: Plan, measurement: Measurement) -> None:
        if is_compiled(plan):
            program = self._program(plan)
            seen_s = max(0.0, measurement.first_step_s - measurement.step_ms / 1000)
            self._compile_s[program] = max(seen_s, self._compile_s.get(program, 0.0))

    def _program(self, plan: Plan) -> Plan:
        """Return what of the plan decides which program is compiled, for a batch of any size."""
        return Plan(tuple(item for item in plan.items if item[0] not in self._not_compiled))

    def _with_batch(self, plan: Plan) -> tuple[Plan, Value]:
        return self._program(plan), plan["batch_size"]
