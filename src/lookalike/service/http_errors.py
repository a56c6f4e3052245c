"""What goes wrong in a request, as a status and one sentence."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from lookalike.core.errors import LookalikeError, Unavailable
from lookalike.core.files import printable


class Problem(LookalikeError):
    """A refusal with a status of its own."""

    def __init__(self, status: int, sentence: str, *, retry_after: int | None = None) -> None:
        super().__init__(sentence)
        self.status, self.retry_after = status, retry_after


def problem(status: int, sentence: str, *, retry_after: int | None = None) -> JSONResponse:
    headers = {"Cache-Control": "no-store"}
    sentence = printable(" ".join(sentence.split()))  # a name from outside may hold anything
    if retry_after is not None:
        headers["Retry-After"] = str(retry_after)
    return JSONResponse({"error": {"status": status, "sentence": sentence}}, status, headers)


def install(app: FastAPI) -> None:
    """Every error of a request is answered in the same form; a bug keeps its traceback in the log."""

    @app.exception_handler(LookalikeError)
    async def mistake(request: Request, error: LookalikeError) -> JSONResponse:
        if isinstance(error, Problem):
            return problem(error.status, str(error), retry_after=error.retry_after)
        if isinstance(error, Unavailable):
            return problem(503, str(error), retry_after=5)
        return problem(400, str(error))

    @app.exception_handler(HTTPException)
    async def known(request: Request, error: HTTPException) -> JSONResponse:
        words = {404: "There is nothing at this address.", 405: "This address does not take that kind of request."}
        return problem(error.status_code, words.get(error.status_code, str(error.detail)))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first: dict[str, Any] = dict(error.errors()[0])
        name = ".".join(str(part) for part in first["loc"] if part not in ("query", "body", "path"))
        return problem(422, f"`{name}` in the request is wrong: {str(first['msg']).lower()}.")

    @app.exception_handler(Exception)
    async def bug(request: Request, error: Exception) -> JSONResponse:
        return problem(500, "Something went wrong in the server; its log says more.")
