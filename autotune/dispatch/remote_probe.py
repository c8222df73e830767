"""The probe on a node of a cluster: the driver's machine may have neither device nor torch."""

import time
from collections.abc import Iterator
from typing import Any

import ray

from autotune.dispatch.job import Exit
from autotune.dispatch.probing import ProbeJob
from autotune.dispatch.slot_actor import RankExit
from autotune.trials.request import ProbeRequest


class RemoteProbe(ProbeJob):
    """A probe in a process of a slot."""

    def __init__(self, slot: Any, request: ProbeRequest) -> None:
        super().__init__(request, log="probe.log")
        self._slot = slot
        self._stream = slot.run.remote(self._job)

    def _wait(self, timeout_s: float) -> tuple[list[Any], str]:
        items = list(self._items(time.monotonic() + timeout_s))
        end = next((item for item in items if isinstance(item, RankExit)), None)
        if end is None:
            self._slot.end.remote(self._job.token)
            return items, ""
        exits = [Exit(code=i.exit_code or 0) if i is end else i for i in items]
        return exits, end.log_tail

    def _items(self, until: float) -> Iterator[Any]:
        while ray.wait([self._stream], timeout=max(0.0, until - time.monotonic()))[0]:
            try:
                yield ray.get(next(self._stream))
            except StopIteration:
                return
