"""A question made of references: images of the index, a kept upload, a part of either, or words."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ParamSpec, TypeVar

import numpy as np
from fastapi import Depends, Query
from fastapi.concurrency import run_in_threadpool

from lookalike.searching import Hits
from lookalike.searching.payload import payload_box
from lookalike.searching.query import MOST, answer
from lookalike.service import uploads
from lookalike.service.api.common import Names, parse_box
from lookalike.service.http_errors import Problem
from lookalike.service.limits import opened
from lookalike.service.open_index import Live
from lookalike.service.state import Service, card
from lookalike.store import Condition, Record

Box = Annotated[str | None, Query(max_length=100, description="x1,y1,x2,y2 as shares from 0 to 1")]
P = ParamSpec("P")
T = TypeVar("T")
Words = Annotated[str | None, Query(max_length=500, description="Words, where `info.words` says that they are read")]
# What is kept of an upload is small: a part that had enough pixels when it was chosen has fewer there.
KEPT_LEAST = 4


@dataclass(frozen=True)
class Asked:
    """What is looked for, as vectors; without any there is no question."""

    query: dict[str, Any]
    vectors: list[np.ndarray]
    more: list[Record]
    less: list[Record]
    same: set[str]
    shown: list[str]  # contents that are on the screen already
    start: float

    def answer(self, service: Service, live: Live, k: int, where: list[Condition]) -> Hits:
        if not self.vectors:
            raise Problem(400, "Add one image to look for first.")
        if len(self.vectors) + len(self.less) > service.limits.examples:
            raise Problem(400, f"At most {service.limits.examples} images can be asked by at once.")
        negatives = [record.vector for record in self.less if record.vector is not None]
        return answer(
            live.index,
            np.stack(self.vectors),
            min(k, service.limits.hits, MOST),
            where,
            negative=np.stack(negatives) if negatives else None,
            same=self.same,
            without=self.shown,
            start=self.start,
            words=self.query["kind"] == "words",
        )


@dataclass(frozen=True)
class Reference:
    """The parameters of a question; nothing is looked up before the whole request was found to be in order."""

    more: Names
    less: Names
    like: str | None = None
    q: str | None = None
    text: Words = None
    box: Box = None

    async def run(self, service: Service, do: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """In a thread: of those for images, where the model is needed."""
        threads = service.asking.run if self.box or self.q or self.text else run_in_threadpool
        return await threads(do, *args, **named)

    def asked(self, live: Live) -> Asked:
        """What the parameters mean; `box` is the part of `like` or `q` that counts."""
        start = time.monotonic()
        examples = [live.record(name) for name in ([self.like] if self.like else []) + self.more]
        against = [live.record(name) for name in self.less]
        vectors = [record.vector for record in examples if record.vector is not None]
        region = parse_box(self.box)
        same: set[str] = set()
        query: dict[str, Any] = {"kind": "none", "id": None}
        if self.q:
            kept = live.queries.get(self.q)
            if region is None:
                vectors.insert(0, kept.vector)
                same.add(kept.hash)
            else:
                part = uploads.cut(live.queries.image(self.q), region, live.side, least=KEPT_LEAST)
                vectors.insert(0, live.encoder.encode(part))
            query = {"kind": "upload", "id": self.q, "ratio": kept.ratio}
        elif self.like:
            query = {"kind": "item", **card(examples[0])}
            if region is not None:
                own = payload_box(examples[0].payload)
                with opened(live.index, examples[0]) as data:
                    part = uploads.cut(data, region, live.side, within=own)
                vectors[0] = live.encoder.encode(part)
        elif self.text and self.text.strip():
            vectors.insert(0, live.index.embed_text(self.text))
            query = {"kind": "words", "id": None, "text": self.text}
        more = examples[1:] if self.like else examples
        return Asked(query, vectors, more, against, same, shown(examples + against), start)


def shown(records: list[Record]) -> list[str]:
    """The contents of images that are asked by: their copies are no hits."""
    return [str(record.payload["content_id"]) for record in records if record.payload.get("content_id")]


Asking = Annotated[Reference, Depends()]
