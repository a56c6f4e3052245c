"""Search requests by reference: images of the index, a stored upload, a part of either, or a text."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ParamSpec, TypeVar

import fastapi
import numpy as np
from fastapi.concurrency import run_in_threadpool

from lookalike.searching import Hits
from lookalike.searching.payload import payload_box
from lookalike.searching.query import MAX_HITS, Query
from lookalike.service import uploads
from lookalike.service.api.common import Names, parse_box
from lookalike.service.http_errors import Problem
from lookalike.service.limits import opened
from lookalike.service.open_index import Live
from lookalike.service.state import Service, card
from lookalike.store import Condition, Record

Box = Annotated[str | None, fastapi.Query(max_length=100, description="x1,y1,x2,y2 as fractions from 0 to 1")]
Text = Annotated[str | None, fastapi.Query(max_length=500, description="A text, if `info.text` is true")]
P = ParamSpec("P")
T = TypeVar("T")
MIN_STORED_SIDE = 4  # pixels of a part of a stored upload, which is small: a part that was large enough has fewer there


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

    def search(self, service: Service, live: Live, k: int, where: Sequence[Condition]) -> Hits:
        """Search the open index.

        Args:
            service: The service, for its limits.
            live: The open index.
            k: Number of hits.
            where: Conditions that hits must meet.

        Returns:
            The hits.
        """
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

    async def run(self, service: Service, do: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Run a function in a thread: one of those for images if the model is needed."""
        threads = service.asking.run if self.box or self.q or self.text else run_in_threadpool
        return await threads(do, *args, **named)

    def resolve(self, live: Live) -> Examples:
        """Look up the rows and embed what has no vector yet."""
        start = time.monotonic()
        rows = [live.record(name) for name in ([self.like] if self.like else []) + self.more]
        less = [live.record(name) for name in self.less]
        vectors = [record.vector for record in rows if record.vector is not None]
        box = parse_box(self.box)
        identical: set[str] = set()
        description: dict[str, Any] = {"kind": "none", "id": None}
        if self.q:
            upload = live.queries.get(self.q)
            if box is None:
                vectors.insert(0, upload.vector)
                identical.add(upload.hash)
            else:
                part = uploads.cut(live.queries.image(self.q), box, live.side, least=MIN_STORED_SIDE)
                vectors.insert(0, live.encoder.encode(part))
            description = {"kind": "upload", "id": self.q, "ratio": upload.ratio}
        elif self.like:
            description = {"kind": "item", **card(rows[0])}
            if box is not None:
                with opened(live.index, rows[0]) as data:
                    part = uploads.cut(data, box, live.side, within=payload_box(rows[0].payload))
                vectors[0] = live.encoder.encode(part)
        elif self.text and self.text.strip():
            vectors.insert(0, live.index.embed_text(self.text))
            description = {"kind": "text", "id": None, "text": self.text}
        more = rows[1:] if self.like else rows
        return Examples(description, vectors, more, less, content_ids(rows + less), identical, start)


def content_ids(records: Sequence[Record]) -> list[str]:
    """Return the content ids of images."""
    return [str(record.payload["content_id"]) for record in records if record.payload.get("content_id")]


ByReference = Annotated[Reference, fastapi.Depends()]
