"""Reads the profiler's Chrome trace into plain values.

Only fields that every version of the format has are read: complete events (`"ph": "X"`) with their
category, microseconds, thread, and the `correlation` that leads from a kernel to its launch.
"""

import bisect
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.trials.profiling.parts import LAST, TRACE_PREFIX
from autotune.trials.profiling.spans import Span

_DEVICE = {"kernel": "kernel", "gpu_memcpy": "copy", "gpu_memset": "memset"}
_ON_DEVICE = frozenset(_DEVICE.values())
_LAUNCHES = ("cuda_runtime", "cuda_driver")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A kernel or a copy on a device, or an operator or a marked part of a step on the host.

    Attributes:
        kind: `kernel`, `copy`, `memset`, `operator` or `part`.
        start_us, end_us: on the trace's clock.
        thread: of the host; 0 on a device.
        part: of the step that launched or called it; None outside of all parts.
        step: the number of that step in the trace, from 0.
    """

    name: str
    kind: str
    start_us: float
    end_us: float
    thread: int = 0
    part: str | None = None
    step: int | None = None

    @property
    def span(self) -> Span:
        """When it ran, in microseconds."""
        return self.start_us, self.end_us

    @property
    def is_on_device(self) -> bool:
        """Whether a device ran it."""
        return self.kind in _ON_DEVICE

    @property
    def duration_us(self) -> float:
        """Microseconds that it ran."""
        return self.end_us - self.start_us


def read_trace(path: Path) -> list[Operation]:
    """Read the trace that `export_chrome_trace` wrote of steps with their parts marked."""
    with path.open() as file:
        events = [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]
    parts = _Parts(events)
    launched = {
        event["args"]["correlation"]: float(event["ts"])
        for event in events
        if event.get("cat") in _LAUNCHES and "correlation" in event.get("args", {})
    }
    operations = [_on_device(e, launched, parts) for e in events if e.get("cat") in _DEVICE]
    marks = [_on_host(event, "part", parts) for event in events if _is_mark(event)]
    called = [_on_host(e, "operator", parts) for e in events if e.get("cat") == "cpu_op"]
    return [*operations, *marks, *called]


def _is_mark(event: dict[str, Any]) -> bool:
    """Whether an event marks a part of a step, on the host."""
    is_ours = str(event["name"]).startswith(TRACE_PREFIX)
    return is_ours and event.get("cat") == "user_annotation"


def _on_device(event: dict[str, Any], launched: dict[int, float], parts: "_Parts") -> Operation:
    start, launch = float(event["ts"]), launched.get(event["args"].get("correlation"))
    return Operation(
        name=event["name"],
        kind=_DEVICE[event["cat"]],
        start_us=start,
        end_us=start + float(event["dur"]),
        **({} if launch is None else parts.at(launch)),
    )


def _on_host(event: dict[str, Any], kind: str, parts: "_Parts") -> Operation:
    start = float(event["ts"])
    return Operation(
        name=event["name"],
        kind=kind,
        start_us=start,
        end_us=start + float(event["dur"]),
        thread=int(event["tid"]),
        **parts.at(start),
    )


class _Parts:
    """Finds the marked part at a moment. Parts do not overlap, whichever thread they use."""

    def __init__(self, events: Sequence[dict[str, Any]]) -> None:
        marks = sorted(
            (
                float(e["ts"]),
                float(e["ts"]) + float(e["dur"]),
                e["name"].removeprefix(TRACE_PREFIX),
            )
            for e in events
            if _is_mark(e)
        )
        self._marks: list[tuple[float, float, str]] = marks
        self._starts = [start for start, _, _ in marks]
        last = [part.value for part in LAST]
        ends = itertools.accumulate(part in last for _, _, part in marks)
        self._steps = [0, *ends][: len(marks)]

    def at(self, moment: float) -> dict[str, Any]:
        """Return the `part` and `step` at a moment; empty outside of all parts."""
        index = bisect.bisect_right(self._starts, moment) - 1
        if index < 0 or moment > self._marks[index][1]:
            return {}
        return {"part": self._marks[index][2], "step": self._steps[index]}
