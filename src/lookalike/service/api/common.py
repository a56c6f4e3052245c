"""What the parts of the API share."""

from __future__ import annotations

import json
from typing import Annotated, Any

import pydantic
from fastapi import Depends, Query, Request, Response

from lookalike.core.files import hash_bytes, plain, printable
from lookalike.service.http_errors import Problem
from lookalike.service.open_index import Live
from lookalike.service.state import Service


def nothing() -> list[Any]:
    """`list` itself would have its signature parsed from text at every request."""
    return []


Filters = Annotated[
    list[str],
    Query(default_factory=nothing, max_length=50, description="COLUMN:VALUE, COLUMN!:VALUE or COLUMN:BEGINNING*"),
]
Count = Annotated[int, Query(ge=1, le=600, description="How many hits")]
Names = Annotated[list[str], Query(default_factory=nothing, max_length=20)]


class Body(pydantic.BaseModel):
    """What a request may carry; a name that is not known is told."""

    model_config = pydantic.ConfigDict(extra="forbid")


# Both are coroutines only so that FastAPI calls them at once: a plain function would go through a thread each time.
async def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


async def live_of(request: Request) -> Live:
    """The generation that answers this request to its end: taken when the body is there, not while a client sends."""
    service: Service = request.app.state.service
    live: Live = request.scope["ending"].enter_context(service.changing.lease())
    return live


Serving = Annotated[Service, Depends(service_of)]
Answering = Annotated[Live, Depends(live_of)]


def tagged(request: Request, document: Any) -> Response:
    """A document with an ETag; nothing but 304 if the caller has it already."""
    body = printable(json.dumps(plain(document), ensure_ascii=False)).encode()
    mark = f'"{hash_bytes(body)}"'
    headers = {"ETag": mark, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == mark:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type="application/json", headers=headers)


def parse_box(text: str | None) -> tuple[float, float, float, float] | None:
    """`x1,y1,x2,y2` as shares of width and height."""
    if not text:
        return None
    try:
        x1, y1, x2, y2 = (float(part) for part in text.split(","))
    except ValueError:
        x1 = y1 = x2 = y2 = -1.0
    if not (0 <= x1 < x2 <= 1 and 0 <= y1 < y2 <= 1):
        raise Problem(422, "`box` must be x1,y1,x2,y2 with numbers from 0 to 1, the corner first.")
    return x1, y1, x2, y2
