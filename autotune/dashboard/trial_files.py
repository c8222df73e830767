"""The files that a trial left on this machine: its log, and the trace of its diagnosis."""

from pathlib import Path

from fastapi.responses import FileResponse

from autotune.dashboard.source import Source
from autotune.errors import NotFoundError
from autotune.storage.location import locate
from autotune.storage.records import TrialRecord

SUFFIXES = (".log", ".json", ".gz")
"""The endings of logs and traces; no other file is ever sent."""


def log_of(trial: TrialRecord, url: str | None) -> Path | None:
    """Return the trial's whole log, None where it is not on this machine."""
    return _found(trial.log_path, url)


def trace_of(trial: TrialRecord, url: str | None) -> Path | None:
    """Return the Chrome trace of the trial's diagnosis, None where there is none here."""
    diagnosis = None if trial.result is None else trial.result.diagnosis
    return _found(None if diagnosis is None else diagnosis.trace_path, url)


def _found(told: str | None, url: str | None) -> Path | None:
    """Return the file if it stands beside the store or where the server runs.

    A store may come from elsewhere, and must not make the server send any file it names.
    """
    if told is None or not told.endswith(SUFFIXES):
        return None
    for folder in _folders(url):
        path = (folder / told).resolve()
        if path.is_relative_to(folder) and path.is_file():
            return path
    return None


def _folders(url: str | None) -> list[Path]:
    beside = locate(url).path
    return [folder.resolve() for folder in (*([beside.parent] if beside else []), Path.cwd())]


class TrialFiles:
    """The handlers of routes that send these files.

    Args:
        source: the store whose trials they are of.
    """

    def __init__(self, source: Source) -> None:
        self._source = source

    def log(self, run: str, number: int, *, download: bool = False) -> FileResponse:
        """Return a trial's whole log as text; `download=true` lets a browser save it."""
        with self._source.store() as store:
            path = log_of(store.trial(store.run(run), number), self._source.url)
        return _sent(path, "text/plain; charset=utf-8", "log", download=download)

    def trace(self, run: str, number: int) -> FileResponse:
        """Return the Chrome trace of a trial's diagnosis, to open in ui.perfetto.dev."""
        with self._source.store() as store:
            path = trace_of(store.trial(store.run(run), number), self._source.url)
        return _sent(path, "application/octet-stream", "trace", download=True)


def _sent(path: Path | None, media_type: str, what: str, *, download: bool) -> FileResponse:
    if path is None:
        raise NotFoundError(
            f"the {what} is not on this machine beside the store; look where the run was started"
        )
    kind = "attachment" if download else "inline"
    return FileResponse(
        path, media_type=media_type, filename=path.name, content_disposition_type=kind
    )
