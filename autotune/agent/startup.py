"""Start-up time of plans: building the model and a first step with an empty compiler cache.

The compiler's cache lives on the disk, so the second process of a plan starts sooner than the
first, and so do plans that compile the same program. A training elsewhere, or after an update,
finds the cache empty: the longest compilation that any process showed counts. A plan that compiles
nothing is judged by its shortest start: other delays, such as files read for the first time, are
the same for all plans and mostly fall to the first process of a run. Imports do not count.
"""

import statistics
from collections.abc import Iterable, Sequence

from autotune.search_space.hardware import DeviceKind
from autotune.search_space.knobs import CATALOGUE, is_compiled
from autotune.search_space.knobs.layout import CUDNN_BENCHMARK
from autotune.search_space.plan import Plan, Value
from autotune.trials.result import Measurement

MeasuredPlan = tuple[Plan, Measurement]
"""A plan and its measurement by one process."""


class StartUps:
    """Start-up times of plans, estimated from the processes that ran them.

    Args:
        processes: measurements of this run, in the order of the processes.
        earlier: measurements of earlier runs, whose kernels may still be in the compiler's cache.
        device_kind: kind of the devices; it decides which knobs change the compiled program.
    """

    def __init__(
        self,
        processes: Iterable[MeasuredPlan],
        earlier: Iterable[MeasuredPlan] = (),
        *,
        device_kind: DeviceKind = "cpu",
    ) -> None:
        self._measurements: dict[Plan, list[Measurement]] = {}
        self._compile_s: dict[Plan, float] = {}
        self._first_steps_s: dict[tuple[Plan, Value, Value], list[float]] = {}
        self._knobs_outside_program = frozenset(
            knob.name for knob in CATALOGUE if device_kind not in knob.recompiles_on
        )
        for plan, measurement in processes:
            self._measurements.setdefault(plan, []).append(measurement)
            first_steps_s = self._first_steps_s.setdefault(self._program_and_batch(plan), [])
            first_steps_s.append(measurement.first_step_s)
            self._note_compilation(plan, measurement)
        for plan, measurement in earlier:
            self._note_compilation(plan, measurement)

    def of(self, plan: Plan) -> float | None:
        """Return the seconds of building and of a first step with an empty compiler cache.

        None: the plan was not measured.
        """
        own = self._measurements.get(plan)
        if own is None:
            return None
        starts_s = [m.build_s + m.first_step_s for m in own]
        compile_s = self.compile_s(plan)
        if compile_s is None:
            return min(starts_s)
        build_s, step_s = min(m.build_s for m in own), min(m.step_ms for m in own) / 1000
        return max(*starts_s, build_s + compile_s + step_s)

    def compile_s(self, plan: Plan) -> float | None:
        """Return the seconds of the longest compilation of the plan's program.

        None: unknown, or the plan compiles nothing. A compilation takes the first step less the
        time of a usual step, which depends on the batch.
        """
        return self._compile_s.get(self._program(plan)) if is_compiled(plan) else None

    def first_steps_s(self, plan: Plan) -> Sequence[float]:
        """Return the seconds of the first step of each process with the plan's program and batch.

        The processes are in their order, so all but the first found kernels in the cache.
        """
        return self._first_steps_s.get(self._program_and_batch(plan), ())

    def build_s(self) -> float:
        """Return the median seconds of building the model; settings hardly change it."""
        own = [m.build_s for measured in self._measurements.values() for m in measured]
        return statistics.median(own) if own else 0.0

    def _note_compilation(self, plan: Plan, measurement: Measurement) -> None:
        if is_compiled(plan):
            program = self._program(plan)
            seen_s = max(0.0, measurement.first_step_s - measurement.step_ms / 1000)
            self._compile_s[program] = max(seen_s, self._compile_s.get(program, 0.0))

    def _program(self, plan: Plan) -> Plan:
        """Return the plan's settings that decide which program is compiled, without the batch."""
        return Plan(
            tuple(item for item in plan.items if item[0] not in self._knobs_outside_program)
        )

    def _program_and_batch(self, plan: Plan) -> tuple[Plan, Value, Value]:
        """Return what decides which kernels a process finds in a cache of compiler or cuDNN."""
        return self._program(plan), plan["batch_size"], plan.get(CUDNN_BENCHMARK.name, False)
