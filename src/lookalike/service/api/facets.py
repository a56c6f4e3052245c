"""What can be filtered by: values with counts that follow the other filters and the question."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query

from lookalike.service.api.common import Answering, Filters, Serving
from lookalike.service.api.references import Asked, Asking, Reference
from lookalike.service.http_errors import Problem
from lookalike.service.open_index import Live
from lookalike.service.state import Service, card
from lookalike.store import Condition

router = APIRouter(prefix="/api/v1", tags=["search"])
Limit = Annotated[int, Query(ge=1, le=1000)]
Under = Annotated[str, Query(max_length=1000, description="A folder with its slash, `sea/`; empty: the uppermost")]
Find = Annotated[str, Query(max_length=200, description="Only what is called so, or in part")]
Payloads = Sequence[dict[str, Any]]
EVERY, FOLDERS = 100_000, 500  # values of a column and folders that are counted
MIDDLE, SAMPLE = 4, 1000  # images that stand for a value, and of how many they are the middle


@router.get("/facets")
async def all_facets(
    service: Serving, live: Answering, reference: Asking, f: Filters, limit: Limit = 12, under: Under = ""
) -> dict[str, Any]:
    """Every column with its first values, each under the filters of the other columns, and the folders below `under`.

    `total` is how many values there are. With a question (`like`, `q`, … as of a search) values also say how many of
    the nearest images have them (`near`, of `nearest` in all), and those of most come first.
    """
    return await reference.run(service, _all_facets, service, live, reference, f, limit, under)


def _all_facets(
    service: Service, live: Live, reference: Reference, f: list[str], limit: int, under: str
) -> dict[str, Any]:
    where, asked = live.where(f), reference.asked(live)
    found: dict[tuple[Condition, ...], Payloads | None] = {}

    def nearest(conditions: Sequence[Condition]) -> Payloads | None:
        """Columns without a filter of their own share them."""
        key = tuple(conditions)
        if key not in found:
            found[key] = _nearest(service, live, asked, key)
        return found[key]

    names = [name for name in live.index.columns if name != "path"]
    columns = [_facet(live, name, where, limit, nearest(_without(name, where))) for name in names]
    folders, total = _folders(live, under, where, limit)
    near = nearest(where)
    return {
        "images": live.index.store.count(where),
        "nearest": None if near is None else len(near),
        "facets": columns,
        "folders": folders,
        "folders_total": total,
    }


@router.get("/facets/{column}")
async def facets(
    service: Serving, live: Answering, reference: Asking, column: str, f: Filters, limit: Limit = 200, find: Find = ""
) -> dict[str, Any]:
    """The values of a column, as `/facets` has them; with `find` those that are called so, of all there are."""
    return await reference.run(service, _facets, service, live, reference, column, f, limit, find)


def _facets(
    service: Service, live: Live, reference: Reference, column: str, f: list[str], limit: int, find: str
) -> dict[str, Any]:
    live.index.check_columns([column])
    where = live.where(f)
    near = _nearest(service, live, reference.asked(live), _without(column, where))
    return _facet(live, column, where, limit, near, find)


@router.get("/folders")
def folders(live: Answering, f: Filters, limit: Limit = 200, under: Under = "", find: Find = "") -> dict[str, Any]:
    """The folders one step below `under` with how many images each holds; with `find` those that are called so."""
    rows, total = _folders(live, under, live.where(f), limit, find)
    return {"folders": rows, "total": total}


@router.get("/facets/{column}/middle")
def middle(live: Answering, column: str, value: str) -> dict[str, Any]:
    """The four images nearest to the middle of those that have a value."""
    live.index.check_columns([column])
    records = []
    for batch in live.index.store.scan(where=[Condition(column, (value,))], vectors=True, batch=SAMPLE):
        records = [record for record in batch if record.vector is not None]
        break
    if not records:
        raise Problem(404, f"No image has {column}: {value}.")
    vectors = np.stack([record.vector for record in records if record.vector is not None])
    order = np.argsort(-(vectors @ vectors.mean(axis=0)), kind="stable")
    return {"items": [card(records[place]) for place in order[:MIDDLE]]}


def _without(column: str, where: Sequence[Condition]) -> list[Condition]:
    return [condition for condition in where if condition.column != column]


def _nearest(service: Service, live: Live, asked: Asked, where: Sequence[Condition]) -> Payloads | None:
    """Payloads of the best hits, where something is asked."""
    if not asked.vectors:
        return None
    return [hit.payload for hit in asked.answer(service, live, service.limits.hits, list(where))]


def _facet(
    live: Live, column: str, where: Sequence[Condition], limit: int, nearest: Payloads | None, find: str = ""
) -> dict[str, Any]:
    """Values with their counts: those of most of the nearest first, then the most frequent, then what is chosen."""
    counts = dict(live.index.store.facets(column, where=_without(column, where), limit=EVERY))
    near = Counter(value for row in nearest or () for value in _texts(row.get(column)))
    named = [value for value in counts if _has(value, find)]
    values = sorted(named, key=lambda value: -near[value])[:limit]
    if not find:  # what is chosen can be taken back, however rare it is
        own = [c for c in where if c.column == column and not c.prefix and not c.negate]
        values += dict.fromkeys(value for c in own for value in c.values if value not in values)
    rows = [{"value": v, "count": counts.get(v, 0)} | ({} if nearest is None else {"near": near[v]}) for v in values]
    return {"column": column, "total": max(len(named), len(rows)), "values": rows}


def _has(text: str, find: str) -> bool:
    """Names of folders are often written with underscores, and seldom looked for with them."""
    return find.casefold() in text.casefold() or find.casefold() in text.casefold().replace("_", " ")


def _texts(value: Any) -> list[str]:
    return value if isinstance(value, list) else [value] if isinstance(value, str) else []


def _folders(
    live: Live, under: str, where: Sequence[Condition], limit: int, find: str = ""
) -> tuple[list[dict[str, Any]], int]:
    """The folders one step below `under` (which ends with a slash, or is empty) with how many images each holds.

    And how many folders there are, where these are only the first by name.
    """
    if "path" not in live.index.columns:
        return [], 0
    start, others = len(under), _without("path", where)
    paths = live.index.table.column("path").tolist()
    below = {path[start : path.find("/", start) + 1] for path in paths if path.startswith(under)} - {""}
    names = sorted(name for name in below if _has(name, find))
    first = names[: min(limit, FOLDERS)]
    counts = [live.index.store.count([*others, Condition("path", (under + name,), prefix=True)]) for name in first]
    rows = [{"folder": under + name, "count": count} for name, count in zip(first, counts, strict=True) if count]
    return rows, len(names) if len(names) > len(first) else len(rows)
