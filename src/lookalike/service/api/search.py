"""Questions and answers: images by images, by words, by what the table says of them."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, File, Query, Request, Response, UploadFile
from pydantic import BaseModel, Field, FiniteFloat

from lookalike._version import __version__
from lookalike.core.files import hash_bytes
from lookalike.searching import Hits
from lookalike.searching.query import MOST, answer
from lookalike.service import uploads
from lookalike.service.api.common import Answering, Count, Filters, Names, Serving, parse_box
from lookalike.service.api.references import Asked, Asking, Box, Reference, shown
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
        "words": index.supports_text,
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
    """Search by an uploaded image, and by others of the index (`more`, `less`).

    `query.id` can be asked by again for a few days, unless `keep` is false.
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
    data = image.file.read()  # what waits for its turn lies on the disk
    where, region = live.where(f), parse_box(box)
    examples, against = ([live.record(name) for name in names] for names in (more, less))
    width, height = uploads.check(data, name, limit=service.limits.upload)
    try:
        if region is None:
            vector = live.encoder.encode(data, pixels=width * height)
        else:
            with BUDGET.take(width * height):
                part = uploads.cut(data, region, live.side)
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
    query = {"kind": "upload", "id": kept, "ratio": round(width / height, 4)}
    vectors = [vector, *(record.vector for record in examples if record.vector is not None)]
    asked = Asked(query, vectors, examples, against, same, shown(examples + against), start)
    return _asked(asked, service, live, k, where)


@router.get("/search")
async def search_by_reference(
    service: Serving, live: Answering, reference: Asking, f: Filters, k: Count = 60
) -> Response:
    """Search by images of the index (`like`, `more`, `less`), by an upload that is still kept (`q`), or by words.

    `box` is the part of `like` or `q` that counts.
    """
    return await reference.run(service, _by_reference, service, live, reference, f, k)


def _by_reference(service: Service, live: Live, reference: Reference, f: list[str], k: int) -> Response:
    return _asked(reference.asked(live), service, live, k, live.where(f))


def _asked(asked: Asked, service: Service, live: Live, k: int, where: list[Condition]) -> Response:
    hits = asked.answer(service, live, k, where)
    trays = {"more": [card(record) for record in asked.more], "less": [card(record) for record in asked.less]}
    return _answer(hits, asked.query, trays)


class Rule(BaseModel):
    """A condition of a filter, as the store knows it."""

    column: str
    values: list[str] = Field(max_length=1000)
    prefix: bool = False
    negate: bool = False


class Question(BaseModel):
    """Vectors of the index's model to look like and unlike; `same` are hashes of files that count as identical, `words`
    says that a vector is that of words."""

    positive: list[list[FiniteFloat]] = Field(min_length=1, max_length=20)
    negative: list[list[FiniteFloat]] = Field(default=[], max_length=20)
    k: int = Field(default=10, ge=1, le=MOST)
    where: list[Rule] = Field(default=[], max_length=50)
    same: list[str] = Field(default=[], max_length=20)
    exact: bool = False
    words: bool = False


@router.post("/nearest")
def nearest(live: Answering, question: Question) -> Response:
    """Search by vectors: how `lookalike search` asks an index that this server has to itself."""
    where = [Condition(rule.column, tuple(rule.values), rule.prefix, rule.negate) for rule in question.where]
    live.index.check_columns(condition.column for condition in where)
    positive, negative = (_matrix(rows, live) for rows in (question.positive, question.negative))
    hits = answer(
        live.index,
        positive,
        question.k,
        where,
        negative=negative,
        same=set(question.same),
        exact=question.exact,
        words=question.words,
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
