"""Reads a job with its archive out of a request, and refuses one that is too large in time."""

import json
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from fastapi import Request
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.types import Message

from autotune.errors import UsageError
from autotune.service.archives import GOES_ON, MAX_UPLOAD_BYTES, unpack
from autotune.service.request import JobRequest
from autotune.units import size_in_words

MAX_JOB_BYTES = 2**16
"""Bytes of the job's JSON."""
FORM = "multipart/form-data"


class Submission:
    """What a request submits: the job, and the folder of its unpacked archive."""

    def __init__(self, request: JobRequest, workload: Path | None) -> None:
        self.request = request
        self.workload = workload

    def drop(self) -> None:
        """Remove the folder."""
        if self.workload is not None:
            shutil.rmtree(self.workload, ignore_errors=True)


@asynccontextmanager
async def read_form(
    request: Request, max_bytes: int = MAX_UPLOAD_BYTES
) -> AsyncIterator[Mapping[str, Any]]:
    """Give the fields of a form, or a JSON body as its field `job`.

    Nothing is read of a request that says to be too large, and no more than the limit of one that
    does not say. Its files are removed afterwards.

    Raises:
        HTTPException: with status 413 when it is too large.
        UsageError: when it is neither.
    """
    limit = _Limit(request, max_bytes)
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit.num_bytes:
        raise limit.refusal
    limited = Request(request.scope, limit.receive)
    try:
        if request.headers.get("content-type", "").startswith(FORM):
            form = await limited.form(max_files=1, max_fields=2, max_part_size=MAX_JOB_BYTES)
        else:
            form = FormData({"job": (await limited.body()).decode(errors="replace")})
    except (HTTPException, MultiPartException):
        if limit.is_passed:
            raise limit.refusal from None
        raise
    try:
        yield form
    finally:
        await form.close()


class _Limit:
    """Hands on a request's body up to a limit."""

    def __init__(self, request: Request, max_bytes: int) -> None:
        self._request = request
        self._num_received = 0
        self.num_bytes = max_bytes + MAX_JOB_BYTES
        self.refusal = HTTPException(
            413,
            f"the upload is larger than {size_in_words(max_bytes)}; {GOES_ON}",
            {"Connection": "close"},
        )

    @property
    def is_passed(self) -> bool:
        """Whether more has come than the limit."""
        return self._num_received > self.num_bytes

    async def receive(self) -> Message:
        """Return the next part of the body.

        Raises:
            MultiPartException: above the limit; the parser of forms then removes its files.
        """
        message = await self._request.receive()
        self._num_received += len(message.get("body", b""))
        if self.is_passed:
            raise MultiPartException("too large")
        return message


def submission_of(form: Mapping[str, Any], workloads: Path) -> Submission:
    """Return what a form submits; its archive is unpacked into a new folder in `workloads`.

    Raises:
        UsageError: when the job or the archive is wrong.
    """
    request = _job_of(form.get("job"))
    archive = form.get("archive")
    if (archive is None) == (request.folder is None):
        raise UsageError(
            "a job has its workload in the field `archive`, or in a `folder` that the server "
            "sees: one of both"
        )
    if not isinstance(archive, UploadFile):
        _check_folder(request)
        return Submission(request, None)
    submission = Submission(request, workloads / uuid4().hex)
    assert submission.workload is not None
    try:
        unpack(archive.file, submission.workload)
        _check_model(request, submission.workload)
    except BaseException:
        submission.drop()
        raise
    return submission


def _job_of(text: Any) -> JobRequest:
    if not isinstance(text, str):
        raise UsageError('the field `job` is missing: a JSON object such as {"model": "model.py"}')
    if len(text) > MAX_JOB_BYTES:
        raise UsageError(f"the field `job` has more than {MAX_JOB_BYTES} characters")
    try:
        return JobRequest.from_dict(json.loads(text))
    except (json.JSONDecodeError, RecursionError) as error:
        raise UsageError(f"the field `job` is no JSON: {error}") from error


def _check_folder(request: JobRequest) -> None:
    folder = Path(str(request.folder))
    if not folder.is_dir():
        raise UsageError(
            f"the server sees no folder {folder}; send the workload itself, without --on-server"
        )
    _check_model(request, folder)


def _check_model(request: JobRequest, folder: Path) -> None:
    if request.model is not None and not (folder / request.model).is_file():
        raise UsageError(f"there is no {request.model} in the workload's folder")
