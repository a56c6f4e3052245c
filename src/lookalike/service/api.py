"""The JSON API, version 1. Described at /openapi.json."""

from __future__ import annotations

import time
from typing import Annotated, Any

from fastapi import APIRouter, File, Query, Request, UploadFile
from fastapi.concurrency import run_in_threadpool

from lookalike._version import __version__
from lookalike.core.files import hash_bytes
from lookalike.searching import Hits
from lookalike.service import uploads
from lookalike.service.mosaic import mosaic
from lookalike.service.problems import Problem
from lookalike.service.state import Service, card, shape

router = APIRouter(prefix="/api/v1")

Filters = Annotated[
    list[str],
    Query(default_factory=list, max_length=50, description="COLUMN:VALUE, COLUMN!:VALUE or COLUMN:BEGINNING*"),
]
Count = Annotated[int, Query(ge=1, le=600, description="How many hits")]
Names = Annotated[list[str], Query(default_factory=list, max_length=20)]


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


@router.get("/info")
def info(request: Request) -> dict[str, Any]:
    """The index, its model, what can be filtered by, and the limits of this server."""
    service = _service(request)
    index, generation = service.index, service.index.generation
    calibration = index.scores.calibration
    return {
        "version": __version__,
        "index": {
            "name": index.name,
            "pictures": index.store.count(),
            "complete": generation.complete,
            "updated": generation.updated,
            "columns": index.columns,
            "store": generation.store,
        },
        "model": generation.model.model_dump(),
        "scores": {
            "calibrated": calibration is not None,
            "why": index.scores.why,
            "error": calibration.checked.get("ece") if calibration else None,
            "pairs": calibration.positive if calibration else 0,
        },
        "limits": {"upload": service.limits.upload, "hits": service.limits.hits, "keep_days": service.keep_days},
    }


@router.post("/search")
async def search_by_upload(
    request: Request, picture: Annotated[UploadFile, File()], f: Filters, k: Count = 60
) -> dict[str, Any]:
    """Search by an uploaded picture; `query.id` can be asked by again for a few days."""
    service = _service(request)
    data, name = await picture.read(), picture.filename or ""
    return await run_in_threadpool(_by_upload, service, data, name, f, k)


def _by_upload(service: Service, data: bytes, name: str, f: list[str], k: int) -> dict[str, Any]:
    from lookalike.data import UnreadableImage, decode, thumbnail

    start = time.monotonic()
    uploads.check(data, name, limit=service.limits.upload)
    try:
        vector = service.encoder.encode(data)
        pixels = decode(data, min_side=512)
    except UnreadableImage:
        raise uploads.unreadable(name) from None
    mark, ratio = hash_bytes(data), round(pixels.shape[1] / pixels.shape[0], 4)
    hits = service.ask([vector], [], k, f, same={mark}, without=[], start=start)
    kept = service.queries.keep(vector, mark, ratio, thumbnail(pixels, 512))
    return _answer(hits, {"kind": "upload", "id": kept, "ratio": ratio})


@router.get("/search")
def search_by_reference(
    request: Request,
    more: Names,
    less: Names,
    f: Filters,
    like: str | None = None,
    q: str | None = None,
    k: Count = 60,
) -> dict[str, Any]:
    """Search by pictures of the index (`like`, `more`, `less`) or by an upload that is still kept (`q`)."""
    service = _service(request)
    examples = [service.record(name) for name in ([like] if like else []) + more]
    against = [service.record(name) for name in less]
    vectors = [r.vector for r in examples if r.vector is not None]
    same: set[str] = set()
    query: dict[str, Any] = {"kind": "none", "id": None}
    if q:
        kept = service.queries.get(q)
        vectors.insert(0, kept.vector)
        same.add(kept.hash)
        query = {"kind": "upload", "id": q, "ratio": kept.ratio}
    elif like:
        query = {"kind": "item", **card(examples[0])}
    shown = [str(r.payload.get("content_id")) for r in (*examples, *against) if r.payload.get("content_id")]
    negatives = [r.vector for r in against if r.vector is not None]
    hits = service.ask(vectors, negatives, k, f, same=same, without=shown)
    examples = examples[1:] if like else examples
    trays = {"more": [card(r) for r in examples], "less": [card(r) for r in against]}
    return _answer(hits, query) | trays


def _answer(hits: Hits, query: dict[str, Any]) -> dict[str, Any]:
    document = hits.to_json()
    del document["index"]  # a path of this machine
    document["query"] = query
    document["hits"] = [line | shape(hit.payload) for line, hit in zip(document["hits"], hits, strict=True)]
    return document


@router.get("/items")
def items(request: Request, sample: Annotated[int, Query(ge=1, le=100)] = 24) -> dict[str, Any]:
    """A few pictures, as different from each other as the collection allows."""
    service = _service(request)
    return {"items": [card(record) for record in mosaic(service.index, sample)]}


@router.get("/items/{name:path}")
def item(request: Request, name: str) -> dict[str, Any]:
    """All that is known of one picture."""
    return card(_service(request).record(name))


@router.get("/facets/{column}")
def facets(
    request: Request,
    column: str,
    f: Filters,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> dict[str, Any]:
    """The values of a column with how many pictures have each, under the other columns' filters."""
    service = _service(request)
    service.index.check_columns([column])
    where = [condition for condition in service.where(f) if condition.column != column]
    pairs = service.index.store.facets(column, where=where, limit=limit)
    return {"column": column, "values": [{"value": value, "count": count} for value, count in pairs]}


@router.delete("/queries/{name}")
def forget(request: Request, name: str) -> dict[str, bool]:
    """Forget an uploaded picture now."""
    if request.headers.get("x-lookalike") != "1":
        raise Problem(403, "This request needs the header X-Lookalike: 1.")
    _service(request).queries.forget(name)
    return {"forgotten": True}


@router.get("/reports")
def reports(request: Request) -> dict[str, Any]:
    """Reports of runs, newest first."""
    return {"reports": _service(request).reports.list()}
