"""Parameters, dependencies and responses that the endpoints share."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import orjson
import pydantic
from fastapi import Depends, Query, Request, Response

from lookalike.core.files import hash_bytes, printable, to_json, to_plain
from lookalike.service import limits
from lookalike.service.http_errors import Problem
from lookalike.service.open_index import OpenIndex
from lookalike.service.state import Service


def nothing() -> list[Any]:
    """An empty list; FastAPI would inspect the signature of `list` at every request."""
    return []


FILTER_HELP = "COLUMN:VALUE, COLUMN!:VALUE or COLUMN:BEGINNING*"
Filters = Annotated[
    list[Annotated[str, pydantic.Field(max_length=2_000)]],
    Query(default_factory=nothing, max_length=50, description=FILTER_HELP),
]
Count = Annotated[int, Query(ge=1, le=600, description="How many hits")]
Names = Annotated[list[str], Query(default_factory=nothing, max_length=20)]


class Body(pydantic.BaseModel):
    """A JSON request body; unknown fields are refused."""

    model_config = pydantic.ConfigDict(extra="forbid")


# Coroutines, because FastAPI would run plain functions in a thread each time.
async def service_of(request: Request) -> Service:
    """The service of the app."""
    service: Service = request.app.state.service
    return service


async def live_of(request: Request) -> OpenIndex:
    """The index that answers this request to its end; taken once the body has arrived, when its deadline begins."""
    limits.DEADLINE.set(time.monotonic() + limits.REQUEST_SECONDS)
    service: Service = request.app.state.service
    live: OpenIndex = request.scope["exit_stack"].enter_context(service.switcher.lease())
    return live


ServiceDep = Annotated[Service, Depends(service_of)]
IndexDep = Annotated[OpenIndex, Depends(live_of)]


def json_bytes(document: Any) -> bytes:
    """A document as JSON; numbers that are not finite become null, names that are not UTF-8 are made printable."""
    try:
        return orjson.dumps(document, to_json, orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:
        return printable(json.dumps(to_plain(document), ensure_ascii=False)).encode()


def tagged(request: Request, document: Any) -> Response:
    """A JSON response with an ETag, or 304 if the client has it already."""
    body = json_bytes(document)
    etag = f'"{hash_bytes(body)}"'
    headers = {"ETag": etag, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type="application/json", headers=headers)


def parse_box(text: str | None) -> tuple[float, float, float, float] | None:
    """Parse `x1,y1,x2,y2`, fractions of width and height."""
    if not text:
        return None
    try:
        x1, y1, x2, y2 = (float(part) for part in text.split(","))
    except ValueError:
        x1 = y1 = x2 = y2 = -1.0
    if not (0 <= x1 < x2 <= 1 and 0 <= y1 < y2 <= 1):
        raise Problem(422, "`box` must be x1,y1,x2,y2 with numbers from 0 to 1, the upper left corner first.")
    return x1, y1, x2, y2
