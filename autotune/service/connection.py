"""Connections to a server: its address, what is sent, how an answer or a refusal is read."""

import http.client
import json
import os
import ssl
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO
from urllib.parse import urlsplit
from uuid import uuid4

from autotune.errors import (
    AutotuneError,
    NotAllowedError,
    NotFoundError,
    ServerError,
    UsageError,
)
from autotune.service.tokens import SERVER_VARIABLE

PREFIX = "/api/v1"
TIMEOUT_S = 60.0
"""Seconds to wait for the next bytes of an answer; a stream is never silent for that long."""
RETRY_S = 0.2
"""Seconds before the second try after a lost connection; each further one waits twice as long."""
MAX_RETRY_S = 5.0
CHUNK_BYTES = 2**16
LOST = (OSError, http.client.HTTPException)
"""What is raised when a connection cannot be made, or is lost."""
ERRORS: dict[int, type[AutotuneError]] = {
    400: UsageError,
    401: NotAllowedError,
    403: NotAllowedError,
    404: NotFoundError,
    413: UsageError,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a server is: `text` as the user wrote it, and its parts."""

    text: str
    is_tls: bool
    host: str
    port: int | None
    path: str

    @classmethod
    def of(cls, text: str | None) -> "Address":
        """Read an address.

        Raises:
            UsageError: when it is none.
        """
        if not text:
            raise UsageError(
                f"no server: name one with --server http://host:port, or in {SERVER_VARIABLE}"
            )
        try:
            parts = urlsplit(text if "://" in text else f"http://{text}")
            host, port = parts.hostname, parts.port
        except ValueError:
            host = None
        if not host or parts.scheme not in {"http", "https"}:
            raise UsageError(f"the server {text!r} is no address; write it like http://host:8060")
        return cls(
            text=text,
            is_tls=parts.scheme == "https",
            host=host,
            port=port,
            path=parts.path.rstrip("/"),
        )

    def connect(self) -> http.client.HTTPConnection:
        """Return a connection, which is made when something is sent."""
        if self.is_tls:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(
                self.host, self.port, timeout=TIMEOUT_S, context=context
            )
        return http.client.HTTPConnection(self.host, self.port, timeout=TIMEOUT_S)

    @contextmanager
    def answer(
        self,
        token: str,
        method: str,
        path: str,
        body: "Body | None" = None,
        headers: Mapping[str, str] | None = None,
    ) -> Iterator[http.client.HTTPResponse]:
        """Give the server's answer to a request.

        Raises:
            AutotuneError: what the server says, where it refuses.
            OSError, HTTPException: when the connection is lost.
        """
        sent = {"Authorization": f"Bearer {token}", **(headers or {})}
        sent |= {} if body is None else body.headers
        connection = self.connect()
        try:
            # The server may refuse without reading all; its answer says why.
            with suppress(BrokenPipeError, ConnectionResetError):
                parts = None if body is None else body.parts()
                connection.request(method, self.path + PREFIX + path, parts, sent)
            answer = connection.getresponse()
            if answer.status >= 300:
                raise _refusal(answer, self.text)
            yield answer
        finally:
            connection.close()


class Tries:
    """Waits longer and longer, until patience ends."""

    def __init__(self, patience_s: float) -> None:
        self._until = time.monotonic() + patience_s
        self.num = 0

    def wait(self) -> bool:
        """Wait before another try; False when there should be none."""
        pause = min(MAX_RETRY_S, RETRY_S * 2**self.num)
        if time.monotonic() + pause > self._until:
            return False
        self.num += 1
        time.sleep(pause)
        return True


class JsonBody:
    """A job as JSON, without an archive."""

    def __init__(self, text: str) -> None:
        self._text = text.encode()
        self.headers = {"Content-Type": "application/json"}

    def parts(self) -> bytes:
        """Return what is sent."""
        return self._text


class Form:
    """A form with a job and its archive, which is sent from the disk."""

    def __init__(self, job: str, archive: IO[bytes]) -> None:
        boundary = uuid4().hex
        self._archive = archive
        self._before = (
            f'--{boundary}\r\nContent-Disposition: form-data; name="job"\r\n\r\n{job}\r\n'
            f'--{boundary}\r\nContent-Disposition: form-data; name="archive"; '
            'filename="workload.tar.gz"\r\nContent-Type: application/gzip\r\n\r\n'
        ).encode()
        self._after = f"\r\n--{boundary}--\r\n".encode()
        size = len(self._before) + archive.seek(0, os.SEEK_END) + len(self._after)
        self.headers = {
            "Content-Type": f"multipart/form-data; boundary={boundary}",
            "Content-Length": str(size),
        }

    def parts(self) -> Iterable[bytes]:
        """Yield what is sent, from its beginning."""
        self._archive.seek(0)
        yield self._before
        while chunk := self._archive.read(CHUNK_BYTES):
            yield chunk
        yield self._after


Body = JsonBody | Form


def _refusal(answer: http.client.HTTPResponse, server: str) -> AutotuneError:
    text = answer.read(CHUNK_BYTES).decode(errors="replace")
    try:
        said = str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        said = f"{server} answered {answer.status} {answer.reason}; is it a server of autotune's?"
    return ERRORS.get(answer.status, ServerError)(said)


def server_sent(answer: http.client.HTTPResponse) -> Iterator[dict[str, str]]:
    """Yield the fields of each server-sent event."""
    fields: dict[str, str] = {}
    for raw in answer:
        line = raw.decode().rstrip("\r\n")
        name, _, value = line.partition(":")
        if name:
            fields[name] = value.removeprefix(" ")
        elif not line:
            if "event" in fields:
                yield fields
            fields = {}
