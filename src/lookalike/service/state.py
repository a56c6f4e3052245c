"""What the service holds while it runs."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lookalike.core import folders
from lookalike.core.files import hash_bytes
from lookalike.searching import Hits, Index
from lookalike.searching.asking import MOST, answer
from lookalike.searching.filters import parse
from lookalike.searching.rows import public
from lookalike.service.encoder import Encoder
from lookalike.service.problems import Problem
from lookalike.service.queries import Queries
from lookalike.service.reports import Reports
from lookalike.service.thumbs import Thumbs
from lookalike.store import Condition, Record


@dataclass(frozen=True)
class Limits:
    upload: int = 20_000_000
    hits: int = 600
    examples: int = 20


@dataclass
class Service:
    """An index with all that answers need; one for each running app."""

    index: Index
    runs: list[Path]
    keep_days: float = 7.0
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        self.encoder = Encoder(self.index)
        self.thumbs = Thumbs(self.index)
        kept = folders.home() / "queries" / hash_bytes(str(self.index.path))[:12]
        self.queries = Queries(kept, days=self.keep_days, model=self.index.generation.model.fingerprint)
        self.reports = Reports(self.runs)

    def warm(self) -> None:
        """Load the model beside the first requests, so that the first search does not wait for it."""
        threading.Thread(target=self.encoder.warm, name="lookalike-warm", daemon=True).start()

    def close(self) -> None:
        self.encoder.close()
        self.index.close()

    def record(self, name: str) -> Record:
        found = self.index.store.get([name], vectors=True)[0]
        if found is None:
            raise Problem(404, f"There is no picture `{name}` in the index `{self.index.name}`.")
        return found

    def where(self, filters: list[str]) -> list[Condition]:
        """`label:gull`, `label!:gull`, `path:sea/*` as the page writes them."""
        conditions = parse([text.replace(":", "=", 1) for text in filters])
        self.index.check_columns(condition.column for condition in conditions)
        return conditions

    def ask(
        self,
        positive: list[np.ndarray],
        negative: list[np.ndarray],
        k: int,
        filters: list[str],
        *,
        same: set[str],
        without: list[str],
        start: float | None = None,
    ) -> Hits:
        if not positive:
            raise Problem(400, "Add one picture to look for first.")
        if len(positive) + len(negative) > self.limits.examples:
            raise Problem(400, f"At most {self.limits.examples} pictures can be asked by at once.")
        return answer(
            self.index,
            np.stack(positive),
            min(k, self.limits.hits, MOST),
            self.where(filters),
            negative=np.stack(negative) if negative else None,
            same=same,
            without=without,
            start=start,
        )


def card(record: Record) -> dict[str, Any]:
    """What the page needs to show a picture."""
    return {"id": record.id, "columns": public(record.payload), **shape(record.payload)}


def shape(payload: dict[str, Any]) -> dict[str, Any]:
    """Where its thumbnail is, and what stands in its place until it is there."""
    return {
        "thumb": payload.get("content_id", ""),
        "ratio": payload.get("_ratio", 1.0),
        "colour": payload.get("_colour", "#888888"),
    }
