"""Search endpoints: by an upload, by images of the index, by a text, by vectors; and the images themselves."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import fastapi
import numpy as np
from fastapi import APIRouter, File, Request, Response, UploadFile
from pydantic import BaseModel, Field, FiniteFloat

from lookalike._version import __version__
from lookalike.core.files import hash_bytes
from lookalike.searching import Hits
from lookalike.searching.query import MAX_HITS, Query
from lookalike.service import uploads
from lookalike.service.api.common import Answering, Count, Filters, Names, Serving, parse_box
from lookalike.service.api.references import Box, ByReference, Examples, Reference, content_ids
from lookalike.service.auth import rights_of
from lookalike.service.http_errors import Problem
from lookalike.service.limits import BUDGET
from lookalike.service.mosaic import mosaic
from lookalike.service.open_index import Live
from lookalike.service.state import Service, card, shape
from lookalike.store import Condition

router = APIRouter(prefix="/api/v1", tags=["search"])


@router.get("/info")
def info(request: Request, service: Serving, live: Answering) -> dict[str, Any]:
    """The index, its model, what can be filtered by, the limits of this server, and what the caller may do."""
    index, generation = live.index, live.index.generation
    calibration = index.scores.calibration
    return {
        "version": __version__,
        "index": {
            "name": index.name,
            "images": index.store.count(),
            "complete": generation.complete,
            "updated": generation.updated,
            "columns": index.columns,
            "store": generation.store.partition("://")[0],
            "generation": generation.number,
        },
        "model": generation.model.model_dump(),
        "scores": {
            "calibrated": calibration is not None,
            "why": index.scores.why,
            "note": index.scores.note,
            "error": calibration.checked.get("ece") if calibration else None,
            "pairs": calibration.positive if calibration else 0,
        },
        "limits": {"upload": service.limits.upload, "hits": service.limits.hits, "keep_days": service.keep_days},
        "rights": rights_of(request.scope),
        "text": index.supports_text,
        "originals": service.originals or rights_of(request.scope) == "write",
        "metadata": service.keep_metadata,
    }


@router.post("/search")
async def search_by_upload(
    service: Serving,
    live: Answering,
    image: Annotated[UploadFile, File()],
    f: Filters,
    more: Names,
    less: Names,
    k: Count = 60,
    box: Box = None,
    keep: bool = True,
) -> Response:
    """Search by an uploaded image, and by further images of the index (`more`, `less`).

    `query.id` can be used as a query for a few days, unless `keep` is false.
    """
    return await service.asking.work(_by_upload, service, live, image, f, more, less, k, box, keep)


def _by_upload(
    service: Service,
    live: Live,
    image: UploadFile,
    f: list[str],
    more: list[str],
    less: list[str],
    k: int,
    box: str | None,
    keep: bool,
) -> Response:
    from lookalike.data import UnreadableImage, thumbnail
    from lookalike.data.decoding import shrink

    start, name = time.monotonic(), image.filename or ""
    data = image.file.read()  # uploads that wait for their turn are on disk
    where, region = live.where(f), parse_box(box)
    like, unlike = ([live.record(name) for name in names] for names in (more, less))
    width, height = uploads.check(data, name, limit=service.limits.upload)
    try:
        if region is None:
            vector = live.encoder.encode(data, pixels=width * height)
        else:
            with BUDGET.take(width * height):
                part = uploads.cut(data, region, live.side)
            vector = live.encoder.encode(part)
        stored = None
        if keep and live.queries.days > 0:
            with BUDGET.take(width * height):
                pixels = shrink(data, 512, of=max)
            width, height = pixels.shape[1], pixels.shape[0]
            stored = live.queries.keep(vector, hash_bytes(data), round(width / height, 4), thumbnail(pixels, 512))
    except UnreadableImage:
        raise uploads.unreadable(name) from None
    vectors = [vector, *(record.vector for record in like if record.vector is not None)]
    description = {"kind": "upload", "id": stored, "ratio": round(width / height, 4)}
    identical = {hash_bytes(data)} if region is None else set()
    examples = Examples(description, vectors, like, unlike, content_ids(like + unlike), identical, start)
    return _search(examples, service, live, k, where)


@router.get("/search")
async def search_by_reference(
    service: Serving, live: Answering, reference: ByReference, f: Filters, k: Count = 60
) -> Response:
    """Search by images of the index (`like`, `more`, `less`), by a stored upload (`q`), or by a text.

    `box` is the part of `like` or `q` that counts.
    """
    return await reference.run(service, _by_reference, service, live, reference, f, k)


def _by_reference(service: Service, live: Live, reference: Reference, f: list[str], k: int) -> Response:
    return _search(reference.resolve(live), service, live, k, live.where(f))


def _search(examples: Examples, service: Service, live: Live, k: int, where: list[Condition]) -> Response:
    hits = examples.search(service, live, k, where)
    rows = {"more": [card(record) for record in examples.more], "less": [card(record) for record in examples.less]}
    return _answer(hits, examples.description, rows)


class ConditionBody(BaseModel):
    """A condition of a filter (`lookalike.store.Condition`)."""

    column: str
    values: list[str] = Field(max_length=1000)
    prefix: bool = False
    negate: bool = False


class QueryBody(BaseModel):
    """A query by vectors of the index's model (`lookalike.searching.query.Query`)."""

    positive: list[list[FiniteFloat]] = Field(min_length=1, max_length=20)
    negative: list[list[FiniteFloat]] = Field(default=[], max_length=20)
    k: int = Field(default=10, ge=1, le=MAX_HITS)
    where: list[ConditionBody] = Field(default=[], max_length=50)
    identical: list[str] = Field(default=[], max_length=20)
    exact: bool = False
    is_text: bool = False

    def to_query(self, live: Live) -> Query:
        """Check columns and dimensions against the open index."""
        where = [Condition(c.column, tuple(c.values), c.prefix, c.negate) for c in self.where]
        live.index.check_columns(condition.column for condition in where)
        dim = live.index.generation.dim
        if any(len(row) != dim for row in (*self.positive, *self.negative)):
            raise Problem(400, f"The vectors of this index have dimension {dim}.")
        positive, negative = (np.array(rows, np.float32).reshape(-1, dim) for rows in (self.positive, self.negative))
        fields = {name: getattr(self, name) for name in ("k", "identical", "exact", "is_text")}
        return Query(positive, negative, where=where, **fields)


@router.post("/nearest")
def nearest(live: Answering, body: QueryBody) -> Response:
    """Search by vectors: how `lookalike search` searches an index that this server has open."""
    return _answer(body.to_query(live).run(live.index), {"kind": "vectors", "id": None})


def _answer(hits: Hits, query: dict[str, Any], more: dict[str, Any] | None = None) -> Response:
    """Encode the hits directly: FastAPI would validate every hit first, which takes longer than the search."""
    document = hits.to_json()
    del document["index"]  # a path on the server
    document["query"] = query
    document["hits"] = [line | shape(hit.payload) for line, hit in zip(document["hits"], hits, strict=True)]
    return Response(json.dumps(document | (more or {}), ensure_ascii=False), media_type="application/json")


@router.get("/items")
def items(live: Answering, f: Filters, sample: Annotated[int, fastapi.Query(ge=1, le=100)] = 24) -> dict[str, Any]:
    """A few images, as different from each other as the collection (or what filters leave of it) allows."""
    return {"items": [card(record) for record in mosaic(live.index, sample, live.where(f))]}


@router.get("/items/{name:path}")
def item(live: Answering, name: str) -> dict[str, Any]:
    """All that is known of one image."""
    return card(live.record(name))


@router.delete("/queries/{name}")
def forget(live: Answering, name: str) -> dict[str, bool]:
    """Forget an uploaded image now."""
    live.queries.forget(name)
    return {"forgotten": True}


@router.get("/reports")
def reports(service: Serving) -> dict[str, Any]:
    """Reports of runs, newest first."""
    return {"reports": service.reports.list()}
