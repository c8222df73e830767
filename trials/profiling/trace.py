"""Reads the profiler's Chrome trace into plain values.

Only what every version of the format has is read: complete events (`"ph": "X"`) with their
category, microseconds, thread, and the `correlation` that leads from a kernel to its launch.
"""

import bisect
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.trials.profiling.spans import Span

_DEVICE = {"kernel": "kernel", "gpu_memcpy": "copy", "gpu_memset": "memset"}
_LAUNCHES = ("cuda_runtime", "cuda_driver")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """Something that ran: a kernel or a copy on a device, an operator on the host.

    Attributes:
        kind: `kernel`, `copy`, `memset` or `operator`.
        start_us, end_us: on the trace's clock.
        thread: of the host, for operators.
        part: of the step that launched or called it, None outside of all.
    """

    name: str
    kind: str
    start_us: float
    end_us: float
    thread: int = 0
    part: str | None = None

    @property
    def span(self) -> Span:
        """When it ran, in microseconds."""
        return self.start_us, self.end_us

    @property
    def duration_us(self) -> float:
        """How long it ran."""
        return self.end_us - self.start_us


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What happened in some steps.

    Attributes:
        operations: each with the part that its launch or call falls into.
        part_us: microseconds of the host in each part.
    """

    operations: list[Operation]
    part_us: dict[str, float]


def read_trace(path: Path, prefix: str) -> Trace:
    """Read a trace.

    Args:
        path: written by `export_chrome_trace`.
        prefix: of the names of the annotations that mark the parts, on the host.
    """
    with path.open() as file:
        events = [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]
    parts = _Parts(events, prefix)
    launched = {
        event["args"]["correlation"]: float(event["ts"])
        for event in events
        if event.get("cat") in _LAUNCHES and "correlation" in event.get("args", {})
    }
    operations = [_on_device(e, launched, parts) for e in events if e.get("cat") in _DEVICE]
    called = [_on_host(event, parts) for event in events if event.get("cat") == "cpu_op"]
    return Trace(operations=operations + called, part_us=parts.durations_us())


def _on_device(event: dict[str, Any], launched: dict[int, float], parts: "_Parts") -> Operation:
    start, launch = float(event["ts"]), launched.get(event["args"].get("correlation"))
    return Operation(
        name=event["name"],
        kind=_DEVICE[event["cat"]],
        start_us=start,
        end_us=start + float(event["dur"]),
        part=None if launch is None else parts.at(launch),
    )


def _on_host(event: dict[str, Any], parts: "_Parts") -> Operation:
    start = float(event["ts"])
    return Operation(
        name=event["name"],
        kind="operator",
        start_us=start,
        end_us=start + float(event["dur"]),
        thread=int(event["tid"]),
        part=parts.at(start),
    )


class _Parts:
    """The marked parts by time. They follow each other, also where a part works in a thread."""

    def __init__(self, events: Sequence[dict[str, Any]], prefix: str) -> None:
        marks = sorted(
            (float(e["ts"]), float(e["ts"]) + float(e["dur"]), e["name"].removeprefix(prefix))
            for e in events
            if e.get("cat") == "user_annotation" and e["name"].startswith(prefix)
        )
        self._starts = [start for start, _, _ in marks]
        self._marks: list[tuple[float, float, str]] = marks

    def durations_us(self) -> dict[str, float]:
        """Return how long each part took in all steps."""
        total: defaultdict[str, float] = defaultdict(float)
        for start, end, part in self._marks:
            total[part] += end - start
        return dict(total)

    def at(self, moment: float) -> str | None:
        """Return the part that goes on at a moment."""
        index = bisect.bisect_right(self._starts, moment) - 1
        if index < 0 or moment > self._marks[index][1]:
            return None
        return self._marks[index][2]
