"""Errors of requests as an HTTP status and a one-sentence message."""

from __future__ import annotations

import contextlib
import errno
import logging
import re
from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from lookalike.core.errors import DiskError, LookalikeError, Unavailable
from lookalike.core.files import printable
from lookalike.data.decoding import UnreadableImage

log = logging.getLogger("lookalike.service")
MESSAGES = {404: "There is nothing at this address.", 405: "This address does not accept this method."}


class Problem(LookalikeError):
    """A refused request with its own HTTP status.

    Args:
        status: HTTP status code.
        message: One sentence that says what is wrong and what to do.
        retry_after: Seconds after which the client may try again.
    """

    def __init__(self, status: int, message: str, *, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status, self.retry_after = status, retry_after


@contextlib.contextmanager
def answered_with(status: int, *, unreadable: int | None = None) -> Iterator[None]:
    """Refuse the request with a status for an error of the block that has none; `unreadable` is that of bad images."""
    try:
        yield
    except (Problem, DiskError):
        raise
    except LookalikeError as error:
        own = unreadable if isinstance(error, UnreadableImage) else None
        raise Problem(own or status, str(error)) from error


def error_response(status: int, message: str, *, retry_after: int | None = None) -> JSONResponse:
    """The JSON answer of a refused request: `{"error": {"status", "message"}}`, without control characters."""
    headers = {"Cache-Control": "no-store"}
    if retry_after is not None:
        headers["Retry-After"] = str(retry_after)
    message = printable(" ".join(without_folders(message).split()))
    return JSONResponse({"error": {"status": status, "message": message}}, status, headers)


def without_folders(message: str) -> str:
    """A message without the folders of absolute paths, which are nobody's business on another machine."""
    return re.sub(
        r"`[^`]*`", lambda quoted: re.sub(r"(?<=[` ])([A-Za-z]:)?[\\/]([^`\\/]+[\\/])*", "", quoted[0]), message
    )


def install_error_handlers(app: FastAPI) -> None:
    """Answer every error of a request in the same form; bugs keep their traceback in the log."""

    def disk_error(error: Exception) -> JSONResponse:
        log.warning("a disk cannot be written to", extra={"reason": str(error)})  # it names a path
        return error_response(507, "The server cannot write to its disk; its log says more.")

    @app.exception_handler(LookalikeError)
    async def handle_user_error(request: Request, error: LookalikeError) -> JSONResponse:
        if isinstance(error, (Problem, Unavailable)):
            status, retry_after = (error.status, error.retry_after) if isinstance(error, Problem) else (503, 5)
            return error_response(status, str(error), retry_after=retry_after)
        return disk_error(error) if isinstance(error, DiskError) else error_response(400, str(error))

    @app.exception_handler(OSError)
    async def handle_system_error(request: Request, error: OSError) -> JSONResponse:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            log.warning("there are no file handles left", extra={"reason": str(error.strerror)})
            return error_response(503, "Busy. Try again in 5 s.", retry_after=5)
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):  # also of the folder for temporary files
            return disk_error(error)
        raise error

    @app.exception_handler(ClientDisconnect)
    async def handle_disconnect(request: Request, error: ClientDisconnect) -> JSONResponse:
        return error_response(400, "The rest of this request did not arrive.")

    @app.exception_handler(HTTPException)
    async def handle_http_error(request: Request, error: HTTPException) -> JSONResponse:
        return error_response(error.status_code, MESSAGES.get(error.status_code, f"{str(error.detail).rstrip('.')}."))

    @app.exception_handler(RequestValidationError)
    async def handle_invalid_request(request: Request, error: RequestValidationError) -> JSONResponse:
        first: dict[str, Any] = dict(error.errors()[0])
        name = ".".join(str(part) for part in first["loc"] if part not in ("query", "body", "path"))
        return error_response(422, f"`{name}` in the request is invalid: {str(first['msg']).lower()}.")

    @app.exception_handler(Exception)
    async def handle_bug(request: Request, error: Exception) -> JSONResponse:
        return error_response(500, "Something went wrong in the server; its log says more.")
