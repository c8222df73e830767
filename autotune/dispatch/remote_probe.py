"""The probe on a node of a cluster: the driver's machine may have neither device nor torch."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray

from autotune.dispatch.job import Exit, Job
from autotune.dispatch.mark import new_token
from autotune.dispatch.probing import PROBE, read_facts
from autotune.dispatch.slot_actor import RankExit
from autotune.search_space.facts import WorkloadFacts
from autotune.trials.request import ProbeRequest


class RemoteProbe:
    """Looks at a workload beside a slot, while the caller does other things."""

    def __init__(self, slot: Any, request: ProbeRequest) -> None:
        self._slot = slot
        self._path = Path(request.workload_path)
        job = Job(entry=PROBE, argument=request, log="probe.log", token=new_token())
        self._token = job.token
        self._stream = slot.run.remote(job)

    def facts(self, timeout_s: float) -> WorkloadFacts:
        """Return what the process found; see `Probe.facts`."""
        items = list(self._items(time.monotonic() + timeout_s))
        if not any(isinstance(item, RankExit) for item in items):
            self._slot.end.remote(self._token)
        tail = next((item.log_tail for item in items if isinstance(item, RankExit)), "")
        read = [Exit(code=i.exit_code or 0) if isinstance(i, RankExit) else i for i in items]
        return read_facts(read, self._path, timeout_s, tail)

    def _items(self, until: float) -> Iterator[Any]:
        while ray.wait([self._stream], timeout=max(0.0, until - time.monotonic()))[0]:
            try:
                yield ray.get(next(self._stream))
            except StopIteration:
                return
