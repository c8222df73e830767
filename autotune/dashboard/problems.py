"""What goes wrong while the store is looked at, as an HTTP answer: one shape for all errors."""

from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException as StarletteHTTPException

from autotune.errors import AutotuneError, NotFoundError, StoreError, UsageError

BUG = "a bug in autotune; the server's own output has the traceback"


def error_body(status: int, message: str) -> dict[str, Any]:
    """Return the one shape: `{"error": {"status", "message"}}`."""
    return {"error": {"status": status, "message": message}}


def status_of(error: AutotuneError) -> int:
    """Return the HTTP status that says best what kind of error it is."""
    if isinstance(error, NotFoundError):
        return 404
    if isinstance(error, UsageError):
        return 400
    return 503 if isinstance(error, StoreError) else 500


def add_handlers(app: FastAPI) -> None:
    """Answer every error in the one shape."""
    app.add_exception_handler(AutotuneError, _known)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(StarletteHTTPException, _http)
    app.add_exception_handler(Exception, _bug)


def _known(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, AutotuneError)
    return answer(status_of(error), str(error))


def _invalid(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    said = "; ".join(_invalid_part(part) for part in error.errors())
    return answer(400, said)


def _invalid_part(part: dict[str, Any]) -> str:
    where = ".".join(str(step) for step in part["loc"][1:]) or part["loc"][0]
    return f"{where}={part.get('input')!r}: {part['msg']}"


def _http(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, StarletteHTTPException)
    return answer(error.status_code, str(error.detail))


def _bug(_: Request, error: Exception) -> JSONResponse:
    return answer(500, f"{type(error).__name__}: {error}: {BUG}")


def answer(status: int, message: str) -> JSONResponse:
    """Return the error as a response."""
    return JSONResponse(error_body(status, message), status)
