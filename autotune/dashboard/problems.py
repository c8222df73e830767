"""Turns every error into an HTTP response of the same JSON shape."""

from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException as StarletteHTTPException

from autotune.errors import (
    AutotuneError,
    NotAllowedError,
    NotFoundError,
    ResourceError,
    UsageError,
)

BUG_NOTE = "this is a bug in autotune; the traceback is in the output of `autotune dashboard`"


def error_body(status: int, message: str) -> dict[str, Any]:
    """Return the JSON of an error: `{"error": {"status", "message"}}`."""
    return {"error": {"status": status, "message": message}}


def status_of(error: AutotuneError) -> int:
    """Return the HTTP status for an error."""
    if isinstance(error, NotFoundError):
        return 404
    if isinstance(error, NotAllowedError):
        return 403
    if isinstance(error, UsageError):
        return 400
    return 503 if isinstance(error, ResourceError) else 500


def add_handlers(app: FastAPI) -> None:
    """Make the application answer every error with `error_body`."""
    app.add_exception_handler(AutotuneError, _known)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(StarletteHTTPException, _http)
    app.add_exception_handler(Exception, _bug)


def _known(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, AutotuneError)
    return error_response(status_of(error), str(error))


def _invalid(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    message = "; ".join(_invalid_part(part) for part in error.errors())
    return error_response(400, message)


def _invalid_part(part: dict[str, Any]) -> str:
    where = ".".join(str(step) for step in part["loc"][1:]) or part["loc"][0]
    return f"{where}={part.get('input')!r}: {part['msg']}"


def _http(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, StarletteHTTPException)
    answer = error_response(error.status_code, str(error.detail))
    answer.headers.update(error.headers or {})
    return answer


def _bug(_: Request, error: Exception) -> JSONResponse:
    return error_response(500, f"{type(error).__name__}: {error}: {BUG_NOTE}")


def error_response(status: int, message: str) -> JSONResponse:
    """Return the error as a response."""
    return JSONResponse(error_body(status, message), status)
