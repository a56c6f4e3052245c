"""Parameters, dependencies and responses that the endpoints share."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Annotated, Any, TypeVar

import orjson
import pydantic
from fastapi import Depends, Query, Request, Response

from lookalike.core.errors import LookalikeError
from lookalike.core.files import hash_bytes, printable, to_json, to_plain
from lookalike.searching.query import box_region
from lookalike.service import limits
from lookalike.service.http_errors import Problem
from lookalike.service.limits import WorkerPool
from lookalike.service.open_index import OpenIndex
from lookalike.service.state import Service

IMMUTABLE = {"Cache-Control": "private, max-age=31536000, immutable"}
T = TypeVar("T")


def nothing() -> list[Any]:
    """An empty list; FastAPI would inspect the signature of `list` at every request."""
    return []


FILTER_HELP = "COLUMN=VALUE, COLUMN!=VALUE, COLUMN=BEGINNING*, COLUMN>=NUMBER or COLUMN=FROM..TO"
BOX_HELP = "x1,y1,x2,y2 in pixels of the image as it is seen, or in fractions if all are at most 1"
BOX_ERROR = f"`box` must be {BOX_HELP}; the upper left corner first, inside the image."
FilterText = Annotated[str, pydantic.Field(max_length=2_000)]
Filters = Annotated[list[FilterText], Query(default_factory=nothing, max_length=50, description=FILTER_HELP)]
Count = Annotated[int, Query(ge=1, le=600, description="How many hits")]
Names = Annotated[list[str], Query(default_factory=nothing, max_length=20)]


class Body(pydantic.BaseModel):
    """A JSON request body; unknown fields are refused."""

    model_config = pydantic.ConfigDict(extra="forbid")


# Coroutines, because FastAPI would run plain functions in a thread each time.
async def service_of(request: Request) -> Service:
    """The service of the app."""
    service: Service = request.scope.get("service") or request.app.state.service
    return service


async def live_of(request: Request) -> OpenIndex:
    """The index that answers this request to its end; taken once the body has arrived, when its deadline begins."""
    service = await service_of(request)
    live: OpenIndex = request.scope["exit_stack"].enter_context(service.switcher.lease())
    request.scope["index"] = live
    limits.set_deadline(lambda: live.closing or "client_left" in request.scope)
    return live


ServiceDep = Annotated[Service, Depends(service_of)]
IndexDep = Annotated[OpenIndex, Depends(live_of)]


def in_pool(name: str) -> Callable[[Callable[..., T]], Callable[..., Coroutine[Any, Any, T]]]:
    """Run an endpoint with the parameter `service` in one of the service's pools."""

    def decorate(function: Callable[..., T]) -> Callable[..., Coroutine[Any, Any, T]]:
        @wraps(function)
        async def endpoint(*, service: Service, **parameters: Any) -> T:
            pool: WorkerPool = getattr(service, name)
            return await pool.run(function, service=service, **parameters)

        return endpoint

    return decorate


def fields(of: Any, *names: str) -> dict[str, Any]:
    """Some attributes of an object by name."""
    return {name: getattr(of, name) for name in names}


def with_tags(live: OpenIndex, cards: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add the tags of images to their columns."""
    tags = live.index.tags.of([one["id"] for one in cards])
    for one in cards:
        if one["id"] in tags:
            one["columns"][live.index.tags.column] = tags[one["id"]]
    return cards


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
    headers = {"ETag": etag}
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type="application/json", headers=headers)


def parse_box(text: str | None, width: float = 1, height: float = 1) -> tuple[float, float, float, float] | None:
    """Parse `x1,y1,x2,y2` to fractions of an image of a size; `Problem` 422 if it is no part of it."""
    if not text:
        return None
    try:
        return box_region([float(part) for part in text.split(",")], width, height)
    except (ValueError, LookalikeError):
        raise Problem(422, BOX_ERROR) from None
