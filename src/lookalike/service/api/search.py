"""Questions and answers: pictures by pictures, by words, by what the table says of them."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, File, Query, Request, Response, UploadFile
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, Field, FiniteFloat

from lookalike._version import __version__
from lookalike.core.files import hash_bytes
from lookalike.searching import Hits
from lookalike.searching.asking import MOST, answer
from lookalike.searching.rows import box_of
from lookalike.service import uploads
from lookalike.service.access import rights_of
from lookalike.service.api.common import Answering, Count, Filters, Names, Serving, parse_box
from lookalike.service.limits import BUDGET, SOME
from lookalike.service.live import Live
from lookalike.service.mosaic import mosaic
from lookalike.service.problems import Problem
from lookalike.service.state import Service, card, shape
from lookalike.store import Condition

router = APIRouter(prefix="/api/v1", tags=["search"])
Box = Annotated[str | None, Query(max_length=100, description="x1,y1,x2,y2 as shares from 0 to 1")]
Words = Annotated[str | None, Query(max_length=500, description="Words, where `info.words` says that they are read")]


@router.get("/info")
def info(request: Request, service: Serving, live: Answering) -> dict[str, Any]:
    """The index, its model, what can be filtered by, the limits of this server, and what the caller may do."""
    index, generation = live.index, live.index.generation
    calibration = index.scores.calibration
    return {
        "version": __version__,
        "index": {
            "name": index.name,
            "pictures": index.store.count(),
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
            "error": calibration.checked.get("ece") if calibration else None,
            "pairs": calibration.positive if calibration else 0,
        },
        "limits": {"upload": service.limits.upload, "hits": service.limits.hits, "keep_days": service.keep_days},
        "rights": rights_of(request.scope),
        "words": index.reads_words,
        "originals": service.originals or rights_of(request.scope) == "write",
        "metadata": service.keep_metadata,
    }


@router.post("/search")
async def search_by_upload(
    service: Serving,
    live: Answering,
    picture: Annotated[UploadFile, File()],
    f: Filters,
    k: Count = 60,
    box: Box = None,
    keep: bool = True,
) -> Response:
    """Search by an uploaded picture; `query.id` can be asked by again for a few days, unless `keep` is false."""
    data, name = await picture.read(), picture.filename or ""
    return await run_in_threadpool(_by_upload, service, live, data, name, f, k, box, keep)


def _by_upload(
    service: Service, live: Live, data: bytes, name: str, f: list[str], k: int, box: str | None, keep: bool
) -> Response:
    from lookalike.data import UnreadableImage, thumbnail
    from lookalike.data.decoding import shrink

    start = time.monotonic()
    where, region = live.where(f), parse_box(box)
    width, height = uploads.check(data, name, limit=service.limits.upload)
    try:
        if region is None:
            vector = live.encoder.encode(data, pixels=width * height)
        else:
            with BUDGET.take(width * height):
                part = uploads.cut(data, region)
            vector = live.encoder.encode(part)
        kept = None
        if keep and live.queries.days > 0:
            with BUDGET.take(width * height):
                pixels = shrink(data, 512, of=max)
            width, height = pixels.shape[1], pixels.shape[0]
            kept = live.queries.keep(vector, hash_bytes(data), round(width / height, 4), thumbnail(pixels, 512))
    except UnreadableImage:
        raise uploads.unreadable(name) from None
    same = {hash_bytes(data)} if region is None else set()
    hits = answer(live.index, vector[None], min(k, service.limits.hits, MOST), where, same=same, start=start)
    return _answer(hits, {"kind": "upload", "id": kept, "ratio": round(width / height, 4)})


@router.get("/search")
def search_by_reference(
    service: Serving,
    live: Answering,
    more: Names,
    less: Names,
    f: Filters,
    like: str | None = None,
    q: str | None = None,
    text: Words = None,
    k: Count = 60,
    box: Box = None,
) -> Response:
    """Search by pictures of the index (`like`, `more`, `less`), by an upload that is still kept (`q`), or by words.

    `box` is the part of `like` or `q` that counts.
    """
    start = time.monotonic()
    examples = [live.record(name) for name in ([like] if like else []) + more]
    against = [live.record(name) for name in less]
    vectors = [r.vector for r in examples if r.vector is not None]
    region = parse_box(box)
    same: set[str] = set()
    query: dict[str, Any] = {"kind": "none", "id": None}
    if q:
        kept = live.queries.get(q)
        if region is None:
            vectors.insert(0, kept.vector)
            same.add(kept.hash)
        else:
            vectors.insert(0, live.encoder.encode(uploads.cut(live.queries.picture(q), region)))
        query = {"kind": "upload", "id": q, "ratio": kept.ratio}
    elif like:
        query = {"kind": "item", **card(examples[0])}
        if region is not None:
            own = box_of(examples[0].payload)
            with BUDGET.take(SOME):
                part = uploads.cut(live.index.open_bytes(examples[0]), region, within=own)
            vectors[0] = live.encoder.encode(part)
    elif text and text.strip():
        vectors.insert(0, live.index.words_vector(text))
        query = {"kind": "words", "id": None, "text": text}
    if not vectors:
        raise Problem(400, "Add one picture to look for first.")
    if len(vectors) + len(against) > service.limits.examples:
        raise Problem(400, f"At most {service.limits.examples} pictures can be asked by at once.")
    shown = [str(r.payload.get("content_id")) for r in (*examples, *against) if r.payload.get("content_id")]
    negatives = [r.vector for r in against if r.vector is not None]
    hits = answer(
        live.index,
        np.stack(vectors),
        min(k, service.limits.hits, MOST),
        live.where(f),
        negative=np.stack(negatives) if negatives else None,
        same=same,
        without=shown,
        start=start,
    )
    examples = examples[1:] if like else examples
    trays = {"more": [card(r) for r in examples], "less": [card(r) for r in against]}
    return _answer(hits, query, trays)


class Rule(BaseModel):
    """A condition of a filter, as the store knows it."""

    column: str
    values: list[str] = Field(max_length=1000)
    prefix: bool = False
    negate: bool = False


class Question(BaseModel):
    """Vectors of the index's model to look like and unlike; `same` are hashes of files that count as identical."""

    positive: list[list[FiniteFloat]] = Field(min_length=1, max_length=20)
    negative: list[list[FiniteFloat]] = Field(default=[], max_length=20)
    k: int = Field(default=10, ge=1, le=MOST)
    where: list[Rule] = Field(default=[], max_length=50)
    same: list[str] = Field(default=[], max_length=20)
    exact: bool = False


@router.post("/nearest")
def nearest(live: Answering, question: Question) -> Response:
    """Search by vectors: how `lookalike search` asks an index that this server has to itself."""
    where = [Condition(rule.column, tuple(rule.values), rule.prefix, rule.negate) for rule in question.where]
    live.index.check_columns(condition.column for condition in where)
    positive, negative = (_matrix(rows, live) for rows in (question.positive, question.negative))
    hits = answer(
        live.index, positive, question.k, where, negative=negative, same=set(question.same), exact=question.exact
    )
    return _answer(hits, {"kind": "vectors", "id": None})


def _matrix(rows: list[list[float]], live: Live) -> np.ndarray:
    dim = live.index.generation.dim
    if any(len(row) != dim for row in rows):
        raise Problem(400, f"The vectors of this index have {dim} numbers.")
    return np.array(rows, dtype=np.float32).reshape(-1, dim)


def _answer(hits: Hits, query: dict[str, Any], more: dict[str, Any] | None = None) -> Response:
    """As JSON at once: FastAPI would walk through every hit first, which takes longer than finding them."""
    document = hits.to_json()
    del document["index"]  # a path of this machine
    document["query"] = query
    document["hits"] = [line | shape(hit.payload) for line, hit in zip(document["hits"], hits, strict=True)]
    return Response(json.dumps(document | (more or {}), ensure_ascii=False), media_type="application/json")


@router.get("/items")
def items(live: Answering, f: Filters, sample: Annotated[int, Query(ge=1, le=100)] = 24) -> dict[str, Any]:
    """A few pictures, as different from each other as the collection (or what filters leave of it) allows."""
    return {"items": [card(record) for record in mosaic(live.index, sample, live.where(f))]}


@router.get("/items/{name:path}")
def item(live: Answering, name: str) -> dict[str, Any]:
    """All that is known of one picture."""
    return card(live.record(name))


@router.get("/facets")
def all_facets(live: Answering, f: Filters, limit: Annotated[int, Query(ge=1, le=100)] = 12) -> dict[str, Any]:
    """Every column with its most frequent values, each under the filters of the other columns."""
    columns = [name for name in live.index.columns if name != "path"]
    return {"facets": [_facet(live, name, f, limit) for name in columns]}


@router.get("/facets/{column}")
def facets(
    live: Answering, column: str, f: Filters, limit: Annotated[int, Query(ge=1, le=1000)] = 200
) -> dict[str, Any]:
    """The values of a column with how many pictures have each, under the other columns' filters."""
    live.index.check_columns([column])
    return _facet(live, column, f, limit)


def _facet(live: Live, column: str, f: list[str], limit: int) -> dict[str, Any]:
    where = [condition for condition in live.where(f) if condition.column != column]
    pairs = live.index.store.facets(column, where=where, limit=limit)
    return {"column": column, "values": [{"value": value, "count": count} for value, count in pairs]}


@router.delete("/queries/{name}")
def forget(live: Answering, name: str) -> dict[str, bool]:
    """Forget an uploaded picture now."""
    live.queries.forget(name)
    return {"forgotten": True}


@router.get("/reports")
def reports(service: Serving) -> dict[str, Any]:
    """Reports of runs, newest first."""
    return {"reports": service.reports.list()}
