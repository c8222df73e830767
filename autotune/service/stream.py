"""A job's events and output as server-sent events, from any point on.

Events have the type `event`, with an event of the job as JSON, `output`, with a line of the job's
output as JSON text, and `end`, with the job. Their ids say how far both have come, so that a
client that lost its connection sends the last one as `Last-Event-ID` and misses nothing.
"""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from anyio import to_thread

from autotune.dashboard.source import Source
from autotune.service.views import event_view, job_view
from autotune.storage.job_records import ENDED, JobRecord

POLL_S = 0.3
"""Seconds between two looks for something new."""
KEEP_ALIVE_S = 15.0
"""Seconds of silence after which a comment is sent, so that no proxy ends the connection."""
MAX_OUTPUT_BYTES = 2**18
"""Bytes of output that are read at once."""


@dataclass(frozen=True, slots=True)
class Place:
    """How far a reader has come: the last event's id, and the bytes of output."""

    event: int = 0
    offset: int = 0

    @classmethod
    def of(cls, text: str | None) -> Self:
        """Read from an event's id; the beginning for anything else."""
        event, _, offset = (text or "").partition("-")
        known = event.isdecimal() and offset.isdecimal() and len(event + offset) < 30
        return cls(int(event), int(offset)) if known else cls()

    def __str__(self) -> str:
        """Return the place as an event's id."""
        return f"{self.event}-{self.offset}"


class JobStream:
    """The events and the output of a job.

    Args:
        source: opens the store.
        job_id: of the job.
        output: the file that the job prints to.
    """

    def __init__(self, source: Source, job_id: int, output: Path) -> None:
        self._source = source
        self._job_id = job_id
        self._output = output

    async def messages(self, place: Place) -> AsyncIterator[str]:
        """Yield server-sent events from a place on, until the job has ended."""
        silent_s = 0.0
        while True:
            job, found, place = await to_thread.run_sync(self._news, place)
            for message in found:
                yield message
            if job.state in ENDED and not found:
                yield _message("end", job_view(job), place)
                return
            silent_s = 0.0 if found else silent_s + POLL_S
            if silent_s > KEEP_ALIVE_S:
                silent_s = 0.0
                yield ": still here\n\n"
            if not found:
                await asyncio.sleep(POLL_S)

    def _news(self, place: Place) -> tuple[JobRecord, list[str], Place]:
        # The job is read first: what it printed before it ended is then seen below.
        with self._source.store() as store:
            job = store.jobs.job(str(self._job_id))
            events = store.jobs.events(self._job_id, place.event)
        found = []
        for event in events:
            place = Place(event.id, place.offset)
            found.append(_message("event", event_view(event), place))
        for line, offset in self._lines(place.offset, whole=job.state not in ENDED):
            place = Place(place.event, offset)
            found.append(_message("output", line, place))
        return job, found, place

    def _lines(self, offset: int, *, whole: bool) -> Iterator[tuple[str, int]]:
        """Yield lines of the output after an offset, each with the offset of its end.

        Args:
            offset: in bytes.
            whole: leave out a last line without an end, to which more may come.
        """
        try:
            with self._output.open("rb") as file:
                file.seek(offset)
                found = file.read(MAX_OUTPUT_BYTES)
        except FileNotFoundError:
            return
        is_all = len(found) < MAX_OUTPUT_BYTES
        for line in io.BytesIO(found):
            is_cut = not line.endswith(b"\n")
            if is_cut and (whole or not is_all) and len(line) < MAX_OUTPUT_BYTES:
                return
            offset += len(line)
            yield line.decode(errors="replace").rstrip("\r\n"), offset


def _message(kind: str, data: Any, place: Place) -> str:
    return f"id: {place}\nevent: {kind}\ndata: {json.dumps(data)}\n\n"
