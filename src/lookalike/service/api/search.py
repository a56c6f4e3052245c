"""Search endpoints: by an upload, by images of the index, by a text, by vectors; and the images themselves."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

import fastapi
import numpy as np
from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field, ValidationError
from starlette.background import BackgroundTask
from starlette.datastructures import UploadFile

from lookalike._version import __version__
from lookalike.core.files import hash_bytes
from lookalike.core.seeds import numpy_rng
from lookalike.searching import Hits
from lookalike.searching.payload import payload_box
from lookalike.searching.query import MAX_HITS, Query
from lookalike.service import uploads
from lookalike.service.api.common import (
    BOX_HELP,
    FILTER_HELP,
    Count,
    Filters,
    FilterText,
    IndexDep,
    Names,
    ServiceDep,
    fields,
    json_bytes,
    live_of,
    parse_box,
    service_of,
    with_tags,
)
from lookalike.service.auth import rights_of
from lookalike.service.http_errors import Problem
from lookalike.service.limits import open_image
from lookalike.service.open_index import OpenIndex
from lookalike.service.state import Service, card, thumbnail_fields
from lookalike.store import Condition, Record, Where

router = APIRouter(prefix="/api/v1", tags=["search"])
Box = Annotated[str | None, fastapi.Query(max_length=100, description=BOX_HELP)]
Text = Annotated[str | None, fastapi.Query(max_length=500, description="A text, if `info.text` is true")]
T = TypeVar("T")
MIN_STORED_SIDE = 4  # pixels of a part of a stored upload, which is small: a part that was large enough has fewer there
MIN_STORED_LENGTH = 384  # longer side in pixels that a stored upload has at least, where the image has as many
MAX_PENDING_BYTES = 4_000_000  # of pixels that wait to be stored
SAMPLED = 400  # images among which different ones are chosen


@dataclass(frozen=True)
class Examples:
    """The examples of a search request, resolved to vectors and rows of the index.

    Args:
        description: The query as it is shown in the answer.
        vectors: Vectors of the images (or the text) to look like.
        more: Rows to look like, besides the first example.
        less: Rows to look unlike.
        exclude: Content ids of examples: their copies are not hits.
        identical: Hashes of files that count as identical to the query.
        start: When the request came in.
    """

    description: dict[str, Any]
    vectors: list[np.ndarray]
    more: list[Record]
    less: list[Record]
    exclude: list[str]
    identical: set[str] = field(default_factory=set)
    start: float = field(default_factory=time.monotonic)

    def search(self, service: Service, live: OpenIndex, k: int, where: Sequence[Condition]) -> Hits:
        """Search the open index for `k` hits; `Problem` 400 if there are too many examples."""
        if len(self.vectors) + len(self.less) > service.limits.examples:
            raise Problem(400, f"At most {service.limits.examples} images can be used as examples.")
        negative = [record.vector for record in self.less if record.vector is not None]
        query = Query(
            np.stack(self.vectors) if self.vectors else np.empty((0, live.index.generation.dim), np.float32),
            np.stack(negative) if negative else None,
            min(k, service.limits.hits, MAX_HITS),
            where,
            is_text=self.description["kind"] == "text",
            identical=self.identical,
            exclude=self.exclude,
        )
        return query.run(live.index, start=self.start)

    def respond(self, service: Service, live: OpenIndex, k: int, where: Sequence[Condition]) -> Response:
        """Search, and answer with the hits and the cards of the examples.

        They are encoded here: FastAPI would validate every hit first, which takes longer than the search.
        """
        hits = self.search(service, live, k, where)
        document = hits.to_json()
        del document["index"]  # a path on the server
        lines = [line | thumbnail_fields(hit.payload) for line, hit in zip(document["hits"], hits, strict=True)]
        cards = {"more": [*map(card, self.more)], "less": [*map(card, self.less)]}
        document |= {"query": self.description, "hits": with_tags(live, lines), **cards}
        return Response(json_bytes(document), media_type="application/json")


@dataclass(frozen=True)
class Reference:
    """Parameters of a search by reference; rows are looked up only after the whole request was validated.

    Args:
        more: Ids of images to look like.
        less: Ids of images to look unlike.
        like: Id of the image to search by.
        q: Id of a stored upload to search by.
        text: Text to search by.
        box: The part of ``like`` or ``q`` that counts.
    """

    more: Names
    less: Names
    like: str | None = None
    q: str | None = None
    text: Text = None
    box: Box = None

    async def run(self, service: Service, function: Callable[[], T], *, scans: bool) -> T:
        """Run a function in a thread of the search pool if the model is needed, of the scan pool if it `scans`."""
        if self.box or self.q or self.text:
            return await service.search_pool.run(function)
        return await (service.scan_pool.run(function) if scans else run_in_threadpool(function))

    def resolve(self, live: OpenIndex) -> Examples:
        """Look up the rows, and embed what has no vector yet."""
        from lookalike.data.decoding import image_size

        start = time.monotonic()
        rows = [live.record(name) for name in ([self.like] if self.like else []) + self.more]
        less = [live.record(name) for name in self.less]
        vectors = [record.vector for record in rows if record.vector is not None]
        identical: set[str] = set()
        description: dict[str, Any] = {"kind": "none", "id": None}
        if self.q:
            upload = live.queries.get(self.q)
            box = parse_box(self.box, upload.width, upload.height)
            if box is None:
                vectors.insert(0, upload.vector)
                identical.add(upload.hash)
            else:
                stored = live.queries.image(self.q)
                part = uploads.decode_part(stored, box, live.min_side, smallest=MIN_STORED_SIDE)[1]
                vectors.insert(0, live.encoder.encode(part))
            description = {"kind": "upload", "id": self.q, "ratio": upload.ratio}
        elif self.like:
            description = {"kind": "item", **card(rows[0])}
            if self.box:
                within = payload_box(rows[0].payload)
                with open_image(live.index, rows[0]) as data:
                    size = (within[2] - within[0], within[3] - within[1]) if within else image_size(data)
                    box = parse_box(self.box, *size)
                    part = uploads.decode_bounded(data, size, box, live.min_side, within=within)[1]
                vectors[0] = live.encoder.encode(part)
        elif self.text and self.text.strip():
            vectors.insert(0, live.index.embed_text(self.text))
            description = {"kind": "text", "id": None, "text": self.text}
        more = rows[1:] if self.like else rows
        return Examples(description, vectors, more, less, _content_ids(rows + less), identical, start)


ReferenceDep = Annotated[Reference, fastapi.Depends()]


@router.get("/info")
def info(request: Request, service: ServiceDep, live: IndexDep) -> dict[str, Any]:
    """The index, its model, what can be filtered by, the limits of this server, and what the caller may do."""
    index, generation = live.index, live.index.generation
    calibration = index.scores.calibration
    about = {"name": index.name, "images": index.store.count(), "generation": generation.number}
    about |= {"columns": index.columns, "store": generation.store.partition("://")[0]}
    checked = {"calibrated": calibration is not None, "error": None, "pairs": 0}
    if calibration is not None:
        checked |= {"error": calibration.checked.get("ece"), "pairs": calibration.positive}
    return {
        "version": __version__,
        "index": about | fields(generation, "complete", "updated"),
        "model": generation.model.model_dump(),
        "scores": fields(index.scores, "why", "note") | checked,
        "limits": fields(service.limits, "upload", "hits", "examples") | fields(service, "keep_days"),
        "rights": rights_of(request.scope),
        "text": index.supports_text,
        "originals": service.originals or rights_of(request.scope) == "write",
        "metadata": service.keep_metadata,
    }


class UploadQuery(BaseModel):
    """Parameters of a search by an upload."""

    f: list[FilterText] = Field(max_length=50, description=FILTER_HELP)
    more: list[str] = Field(max_length=20)
    less: list[str] = Field(max_length=20)
    k: int = Field(60, ge=1, le=600, description="How many hits")
    box: str | None = Field(None, max_length=100, description=BOX_HELP)
    keep: bool = True


_LISTS = ("f", "more", "less")
_FORM = {"type": "object", "required": ["image"], "properties": {"image": {"type": "string", "format": "binary"}}}
_UPLOAD_SCHEMA: dict[str, Any] = {
    "parameters": [
        {"name": name, "in": "query", "required": False, "schema": schema}
        for name, schema in UploadQuery.model_json_schema()["properties"].items()
    ],
    "requestBody": {"required": True, "content": {"multipart/form-data": {"schema": _FORM}}},
}


class _PlainRoute(APIRoute):
    """A route whose function answers a request itself: FastAPI would look through its annotations for each one."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        return search_by_upload


async def search_by_upload(request: Request) -> Response:
    """Search by an uploaded image, and by further images of the index (`more`, `less`).

    `query.id` can be used as a query for a few days, unless `keep` is false.
    """
    service = await service_of(request)
    parameters = request.query_params
    try:
        params = UploadQuery.model_validate({**parameters, **{name: parameters.getlist(name) for name in _LISTS}})
    except ValidationError as error:
        raise RequestValidationError(error.errors()) from None
    form = await request.form(max_files=4, max_fields=20)
    image = form.get("image")
    if not isinstance(image, UploadFile):
        raise Problem(422, "Send the file as form field `image` of a multipart form.")
    live = await live_of(request)

    def run() -> Response:
        start = time.monotonic()
        data = image.file.read()  # uploads that wait for their turn are on disk
        where = live.where(params.f)
        like, unlike = ([live.record(name) for name in names] for names in (params.more, params.less))
        query, query_id = _embed_upload(service, live, data, image.filename or "", params)
        description = {"kind": "upload", "id": query_id, "ratio": query.ratio}
        vectors = [query.vector, *(record.vector for record in like if record.vector is not None)]
        identical = set() if params.box else {query.hash}
        examples = Examples(description, vectors, like, unlike, _content_ids(like + unlike), identical, start)
        response = examples.respond(service, live, params.k, where)
        if query_id:
            response.background = BackgroundTask(live.queries.write_pending)
        return response

    try:
        return await service.search_pool.run(run)
    finally:
        await form.close()


router.add_api_route(
    "/search", search_by_upload, methods=["POST"], openapi_extra=_UPLOAD_SCHEMA, route_class_override=_PlainRoute
)


def _embed_upload(
    service: Service, live: OpenIndex, data: bytes, name: str, params: UploadQuery
) -> tuple[uploads.SavedQuery, str | None]:
    """Decode and embed an uploaded image; returns it and, if it is kept, its id."""
    from lookalike.data.decoding import UnreadableImage, shrink

    width, height = uploads.check(data, name, limit=service.limits.upload)
    region = parse_box(params.box, width, height)
    keep = params.keep and live.queries.active
    side = live.min_side
    if keep:  # one decode serves the model and the stored copy
        fraction = 1.0 if region is None else min(region[2] - region[0], region[3] - region[1])
        side = max(side, MIN_STORED_LENGTH * fraction * min(width, height) / max(width, height))
    try:
        with uploads.decode_upload(data, width, height, region, side) as (pixels, part):
            if pixels.nbytes > MAX_PENDING_BYTES:
                pixels = shrink(pixels, uploads.STORED_SIDE, of=max)
            crop = live.encoder.model().crop(part)
            del part
    except UnreadableImage as error:
        raise uploads.unreadable(name, error.reason) from None
    query = uploads.SavedQuery(live.encoder.encode_crop(crop), hash_bytes(data), width, height)
    return query, live.queries.keep(query, pixels) if keep else None


@router.get("/search")
async def search_by_reference(
    service: ServiceDep, live: IndexDep, reference: ReferenceDep, f: Filters, k: Count = 60
) -> Response:
    """Search by images of the index (`like`, `more`, `less`), by a stored upload (`q`), or by a text.

    `box` is the part of `like` or `q` that counts.
    """

    def run() -> Response:
        return reference.resolve(live).respond(service, live, k, live.where(f))

    return await reference.run(service, run, scans=bool(f))


@router.get("/items")
async def items(
    service: ServiceDep, live: IndexDep, f: Filters, sample: Annotated[int, fastapi.Query(ge=1, le=100)] = 24
) -> dict[str, Any]:
    """A few images, as different from each other as the collection (or what filters leave of it) allows."""
    run = service.scan_pool.run if f else run_in_threadpool
    return {"items": [card(record) for record in await run(lambda: diverse_sample(live, sample, live.where(f)))]}


@router.get("/items/{name:path}")
def item(live: IndexDep, name: str) -> dict[str, Any]:
    """All that is known of one image."""
    return with_tags(live, [card(live.record(name))])[0]


@router.delete("/queries/{name}")
def forget(live: IndexDep, name: str) -> dict[str, bool]:
    """Delete an uploaded image now."""
    live.queries.forget(name)
    return {"forgotten": True}


@router.get("/reports")
def reports(service: ServiceDep) -> dict[str, Any]:
    """Reports of runs, newest first."""
    return {"reports": service.reports.list()}


def diverse_sample(live: OpenIndex, count: int, where: Where = ()) -> list[Record]:
    """Choose different images by farthest-first traversal of a random sample; returns them in random order."""
    index = live.index
    if where:
        names = np.array([record.id for batch in live.scan(where) for record in batch], dtype=object)
    else:
        names = index.table.column("row_id")
    rng = numpy_rng(0, "mosaic")
    rows = rng.choice(len(names), min(SAMPLED, len(names)), replace=False)
    sample = [record for record in index.store.get([str(names[row]) for row in rows], vectors=True) if record]
    records = list({record.payload.get("content_id", record.id): record for record in sample}.values())
    if not records:
        return []
    vectors = np.stack([record.vector for record in records if record.vector is not None])
    chosen = [0]
    similarity = vectors @ vectors[0]  # to the most similar chosen image
    while len(chosen) < min(count, len(records)):
        similarity[chosen[-1]] = np.inf
        chosen.append(int(np.argmin(similarity)))
        similarity = np.maximum(similarity, vectors @ vectors[chosen[-1]])
    return [records[place] for place in rng.permutation(chosen)]


def _content_ids(records: Sequence[Record]) -> list[str]:
    return [str(record.payload["content_id"]) for record in records if record.payload.get("content_id")]
