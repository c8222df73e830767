"""How long a plan takes to its second step where nothing of it was compiled before.

A later process finds kernels in the compiler's cache, which lives on the disk: the second process
of a plan starts sooner than the first, and so do plans that compile the same program. A training
elsewhere, or after an update, finds none. So the longest compilation that any process showed
counts, whatever the others took. Plans that compile nothing have no such cache. What else delays a
first step, such as files read for the first time, is the same under all plans, and the first
process of a run has most of it: there the shortest start counts. Imports are not part of it.
"""

import statistics
from collections.abc import Iterable

from autotune.search_space.plan import Plan
from autotune.trials.result import Measurement

Process = tuple[Plan, Measurement]
"""A plan, and what one process measured of it."""

# What a compiler does not look at, or, as the batch, does not take longer for.
_NOT_COMPILED = frozenset({
    "batch_size",
    "accumulation",
    "workers",
    "prefetch",
    "pin_memory",
    "optimizer_impl",
    "cudnn_benchmark",
    "bucket_mb",
    "gradient_as_bucket_view",
    "static_graph",
    "comm_hook",
})  # fmt: skip


class StartUps:
    """Start-up times of plans, learnt from processes.

    Args:
        processes: of plans, in any order.
        earlier: of earlier runs; what they compiled may still be in the cache.
    """

    def __init__(self, processes: Iterable[Process], earlier: Iterable[Process] = ()) -> None:
        self._own: dict[Plan, list[Measurement]] = {}
        self._compile_s: dict[Plan, float] = {}
        for plan, measurement in processes:
            self._own.setdefault(plan, []).append(measurement)
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
        return self._compile_s.get(program(plan)) if _is_compiled(plan) else None

    def build_s(self) -> float:
        """Return how long building takes; no setting changes much about it."""
        own = [m.build_s for measured in self._own.values() for m in measured]
        return statistics.median(own) if own else 0.0

    def _see(self, plan: Plan, measurement: Measurement) -> None:
        if _is_compiled(plan):
            compiled = program(plan)
            seen_s = max(0.0, measurement.first_step_s - measurement.step_ms / 1000)
            self._compile_s[compiled] = max(seen_s, self._compile_s.get(compiled, 0.0))


def _is_compiled(plan: Plan) -> bool:
    return plan.get("compile_mode", "off") != "off"


def program(plan: Plan) -> Plan:
    """Return what of the plan decides which program is compiled, for a batch of any size."""
    return Plan(tuple(item for item in plan.items if item[0] not in _NOT_COMPILED))
