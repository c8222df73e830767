"""Talks to a server of the search service: submits jobs, watches them, fetches their plans.

    client = autotune.Client("http://gpu-box:8060")
    job = client.submit("model.py", budget="2h")
    for message in client.watch(job["id"]):
        print(message.text)
    print(client.plan(job["id"]))

It needs the standard library alone.
"""

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode
from uuid import uuid4

from autotune.errors import ServerError, UsageError
from autotune.service.archives import pack
from autotune.service.connection import LOST, Address, Body, Form, JsonBody, Tries, server_sent
from autotune.service.request import JobRequest
from autotune.service.tokens import SERVER_VARIABLE, read_token, token_file

PATIENCE_S = 5.0
"""Seconds for which a request is tried again."""
WATCH_PATIENCE_S = 900.0
"""Seconds for which a watched job's server may be away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMessage:
    """Something that a watched job, or the connection to its server, has to say.

    Attributes:
        kind: `output` (a line that the job printed), `event` (something happened to it), `lost`
            (the connection was, and is tried again) or `end`.
        text: the line, or what happened in words.
        data: the event or the ended job as JSON; empty for other kinds.
    """

    kind: str
    text: str
    data: dict[str, Any]


class Client:
    """A client of a server. Not thread-safe.

    Args:
        server: its address; None: that in the variable AUTOTUNE_SERVER.
        token: None: that in the file that AUTOTUNE_TOKEN_FILE names, or in
            `~/.config/autotune/token`.
        patience_s: how long a request is tried again when its connection is lost.

    Raises:
        UsageError: when there is no address or no token.
    """

    def __init__(
        self,
        server: str | None = None,
        token: str | None = None,
        *,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._server = Address.of(server or os.environ.get(SERVER_VARIABLE))
        self._token = token or read_token(token_file())
        self._patience_s = patience_s

    def submit(
        self,
        model: "str | os.PathLike[str] | None" = None,
        *,
        command: Sequence[str] = (),
        arguments: Sequence[str] = (),
        folder: "str | os.PathLike[str] | None" = None,
        on_server: bool = False,
        exclude: Sequence[str] = (),
        budget: str = "15m",
        name: str | None = None,
        priority: int = 0,
        devices: int | None = None,
        python: str | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        """Queue a run, and return the job; the workload's folder is sent along.

        Args:
            model: the path of model.py; or, instead:
            command: the words of any command that trains.
            arguments: what `sys.argv` of the model holds.
            folder: to send, in which the job runs; None: the working directory, or the model's
                folder where that is elsewhere.
            on_server: the paths are the server's; nothing is sent.
            exclude: patterns of files that are not sent.
            budget: of the run, such as `2h`.
            name: for people.
            priority: from -10 to 10; jobs of a larger one start first.
            devices: how many the job holds; None: as many as a trial needs.
            python: the path of an interpreter on the server; None: the server's choice.
            options: of `autotune run`, such as `numerics="exact"` or `fix=["batch_size=64"]`.

        Raises:
            UsageError: when something is wrong with the job, or it is too large.
            NotAllowedError: when the token does not allow it.
            ServerError: when the server cannot be reached.
        """
        place = _Place.of(model, folder, on_server=on_server)
        request = JobRequest(
            model=place.model,
            command=tuple(command),
            arguments=tuple(arguments),
            folder=str(place.folder) if on_server else None,
            budget=budget,
            options={key: value for key, value in options.items() if value not in (None, [])},
            python=python,
            name=name,
            priority=priority,
            devices=devices,
            key=uuid4().hex,
        )
        request.check()
        body = json.dumps(request.to_dict())
        if on_server:
            return self._json("POST", "/jobs", JsonBody(body))
        with tempfile.TemporaryFile() as archive:
            pack(place.folder, archive, exclude)
            return self._json("POST", "/jobs", Form(body, archive))

    def jobs(self, states: Sequence[str] = (), limit: int = 100) -> list[dict[str, Any]]:
        """Return jobs, newest first: all, or those in some states."""
        query = urlencode([*(("state", state) for state in states), ("limit", limit)])
        return list(self._json("GET", f"/jobs?{query}")["items"])

    def job(self, job: int | str) -> dict[str, Any]:
        """Return a job with its `events`.

        Raises:
            NotFoundError: when there is none.
        """
        return self._json("GET", _path(job))

    def cancel(self, job: int | str) -> dict[str, Any]:
        """Cancel a job, and return it; what its run has found is kept.

        Raises:
            NotAllowedError: when it is somebody else's.
        """
        return self._json("POST", _path(job, "/cancel"))

    def plan(self, job: int | str, format: str = "yaml") -> str:  # noqa: A002  the name users know from --format
        """Return the text of the plan file that a job's run has found.

        Raises:
            NotFoundError: when it has found none yet.
        """
        return self._text("GET", f"{_path(job, '/plan')}?{urlencode({'format': format})}")

    def report(self, job: int | str) -> dict[str, Any]:
        """Return the run of a job with its verdict, as `autotune show RUN --json`."""
        return self._json("GET", _path(job, "/report"))

    def log(self, job: int | str) -> str:
        """Return all that a job has printed."""
        return self._text("GET", _path(job, "/log"))

    def watch(
        self, job: int | str, *, patience_s: float = WATCH_PATIENCE_S
    ) -> Iterator[JobMessage]:
        """Yield what a job says, from its beginning to its end, also over lost connections.

        Args:
            job: its number.
            patience_s: seconds for which the server may be away.

        Raises:
            ServerError: when it is away for longer.
        """
        job_id = self.job(job)["id"]
        place, tries = "", Tries(patience_s)
        while True:
            try:
                for message, reached in self._stream(job_id, place):
                    place = reached
                    tries = Tries(patience_s)
                    yield message
                    if message.kind == "end":
                        return
                lost: Exception = ConnectionError("the server ended the connection")
            except LOST as error:
                lost = error
            except ServerError as error:  # such as a proxy whose server starts anew
                lost = error
            if tries.num == 0:
                yield JobMessage(
                    kind="lost", text=f"connection lost ({lost}); trying again", data={}
                )
            if not tries.wait():
                raise ServerError(self._away(lost))

    def _stream(self, job_id: int, place: str) -> Iterator[tuple[JobMessage, str]]:
        headers = {"Last-Event-ID": place} if place else {}
        with self._server.answer(
            self._token, "GET", _path(job_id, "/stream"), headers=headers
        ) as answer:
            for fields in server_sent(answer):
                place = fields.get("id", place)
                yield _message(fields["event"], json.loads(fields["data"])), place

    def _json(self, method: str, path: str, body: Body | None = None) -> dict[str, Any]:
        return dict(json.loads(self._text(method, path, body)))

    def _text(self, method: str, path: str, body: Body | None = None) -> str:
        tries = Tries(self._patience_s)
        while True:
            try:
                with self._server.answer(self._token, method, path, body) as answer:
                    return answer.read().decode()
            except LOST as error:
                if not tries.wait():
                    raise ServerError(self._away(error)) from error

    def _away(self, error: Exception) -> str:
        return (
            f"no server answers at {self._server.text} ({error}); check the address, and that "
            "`autotune serve` runs there"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """The folder of a workload, and the model's path in it."""

    folder: Path
    model: str | None

    @classmethod
    def of(
        cls,
        model: "str | os.PathLike[str] | None",
        folder: "str | os.PathLike[str] | None",
        *,
        on_server: bool,
    ) -> "_Place":
        if on_server:
            return cls._on_server(model, folder)
        here = Path.cwd() if folder is None else Path(folder).expanduser().absolute()
        if model is None:
            return cls(folder=_sendable(here), model=None)
        path = Path(os.path.normpath(Path.cwd() / Path(model).expanduser()))
        if not path.is_file():
            raise UsageError(f"there is no file {model}")
        if folder is None and not path.is_relative_to(here):
            here = path.parent
        if not path.is_relative_to(here):
            raise UsageError(
                f"{model} is not in --folder {folder}, which is sent; name one around it"
            )
        return cls(folder=_sendable(here), model=path.relative_to(here).as_posix())

    @classmethod
    def _on_server(
        cls,
        model: "str | os.PathLike[str] | None",
        folder: "str | os.PathLike[str] | None",
    ) -> "_Place":
        if model is None:
            if folder is None:
                raise UsageError("--on-server: name the command's folder there with --folder")
            return cls(folder=Path(folder), model=None)
        path = Path(model)
        around = path.parent if folder is None else Path(folder)
        inside = path.relative_to(around) if path.is_relative_to(around) else path
        return cls(folder=around, model=inside.as_posix())


def _sendable(folder: Path) -> Path:
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}")
    if folder.resolve() in {Path("/"), Path.home().resolve()}:
        raise UsageError(
            f"{folder} would be sent as a whole; change to the workload's folder, or name it with "
            "--folder"
        )
    return folder


def _path(job: int | str, rest: str = "") -> str:
    return f"/jobs/{quote(str(job), safe='')}{rest}"


def _message(kind: str, data: Any) -> JobMessage:
    if kind == "output":
        return JobMessage(kind=kind, text=str(data), data={})
    text = data["text"] if kind == "event" else data["message"]
    return JobMessage(kind=kind, text=str(text), data=data)
