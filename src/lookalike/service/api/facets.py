"""Endpoints of filters: values of columns with counts that follow the other filters and the query."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query

from lookalike.service.api.common import Filters, IndexDep, ServiceDep, in_pool
from lookalike.service.api.search import Examples, ReferenceDep
from lookalike.service.http_errors import Problem
from lookalike.service.limits import check_deadline
from lookalike.service.open_index import OpenIndex
from lookalike.service.state import Service, card
from lookalike.store import ROW_ID, Condition

router = APIRouter(prefix="/api/v1", tags=["search"])
Limit = Annotated[int, Query(ge=1, le=1000)]
Under = Annotated[str, Query(max_length=1000, description="A folder with its slash, `sea/`; empty for the top")]
Find = Annotated[str, Query(max_length=200, description="Only names that contain this")]
Payloads = Sequence[dict[str, Any]]
MAX_VALUES, MAX_FOLDERS = 100_000, 500  # values of a column, and folders, that are counted
RANGES = {"taken": "date", "latitude": "number", "longitude": "number"}  # columns that are filtered by bounds
TYPICAL, SAMPLE = 4, 1000  # typical images of a value, chosen among so many


@router.get("/facets")
async def all_facets(
    service: ServiceDep, live: IndexDep, reference: ReferenceDep, f: Filters, limit: Limit = 12, under: Under = ""
) -> dict[str, Any]:
    """The first values of every column under the other columns' filters, and the folders below `under`.

    `total` is the number of values. With a query (`like`, `q`, … as in a search) each value also has the number of
    nearest images with it (`near`, of `nearest` in total), and values with most come first.
    """

    def run() -> dict[str, Any]:
        where, examples = live.where(f), reference.resolve(live)

        @cache  # columns without a filter of their own share the conditions
        def nearest(*conditions: Condition) -> Payloads | None:
            return _nearest(service, live, examples, conditions)

        available = live.index.columns
        names = [name for name in available if name != "path" and name not in RANGES]
        columns = [_facet(live, name, where, limit, nearest(*_without(name, where))) for name in names]
        folders, total = _folders(live, under, where, limit)
        near = nearest(*where)
        return {
            "images": live.index.store.count(where),
            "nearest": None if near is None else len(near),
            "facets": columns,
            "ranges": [{"column": name, "kind": kind} for name, kind in RANGES.items() if name in available],
            "folders": folders,
            "folders_total": total,
        }

    return await reference.run(service, run, scans=True)


@router.get("/facets/{column}")
async def facets(
    service: ServiceDep,
    live: IndexDep,
    reference: ReferenceDep,
    column: str,
    f: Filters,
    limit: Limit = 200,
    find: Find = "",
) -> dict[str, Any]:
    """The values of a column, as in `/facets`; with `find` only those that contain it, of all values."""

    def run() -> dict[str, Any]:
        live.index.check_columns([column])
        where = live.where(f)
        near = _nearest(service, live, reference.resolve(live), _without(column, where))
        return _facet(live, column, where, limit, near, find)

    return await reference.run(service, run, scans=True)


@router.get("/folders")
@in_pool("scan_pool")
def folders(
    service: ServiceDep, live: IndexDep, f: Filters, limit: Limit = 200, under: Under = "", find: Find = ""
) -> dict[str, Any]:
    """Folders one level below `under` with their numbers of images; with `find` only those that contain it."""
    rows, total = _folders(live, under, live.where(f), limit, find)
    return {"folders": rows, "total": total}


@router.get("/facets/{column}/typical")
def typical(live: IndexDep, column: str, value: str) -> dict[str, Any]:
    """The four images closest to the mean of those with a value."""
    live.index.check_columns([column])
    where = live.index.tags.resolve([Condition(column, (value,))])
    records = next(live.scan(where, vectors=True, batch=SAMPLE), [])
    if not records:
        raise Problem(404, f"No image has {column}: {value}.")
    vectors = np.stack([record.vector for record in records if record.vector is not None])
    order = np.argsort(-(vectors @ vectors.mean(axis=0)), kind="stable")
    return {"items": [card(records[place]) for place in order[:TYPICAL]]}


def _without(column: str, where: Sequence[Condition]) -> list[Condition]:
    return [condition for condition in where if condition.column != column]


def _nearest(service: Service, live: OpenIndex, examples: Examples, where: Sequence[Condition]) -> Payloads | None:
    """Payloads of the best hits; None without a query."""
    if not examples.vectors:
        return None
    return [hit.payload for hit in examples.search(service, live, service.limits.hits, where)]


def _facet(
    live: OpenIndex, column: str, where: Sequence[Condition], limit: int, nearest: Payloads | None, find: str = ""
) -> dict[str, Any]:
    """Values with counts: those of most nearest images first, then the most frequent, then selected ones."""
    check_deadline()
    tags, store = live.index.tags, live.index.store
    if column == tags.column:
        nearest, others = None, _without(ROW_ID, where)
        by_tag = {tag: tags.resolve([Condition(column, (tag,))]) for tag in tags.names}
        counts = {tag: count for tag, own in by_tag.items() if (count := store.count([*others, *own]))}
    else:
        counts = dict(store.facets(column, where=_without(column, where), limit=MAX_VALUES))
    near = Counter(value for row in nearest or () for value in _texts(row.get(column)))
    named = [value for value in counts if _has(value, find)]
    values = sorted(named, key=lambda value: -near[value])[:limit]
    if not find:  # a selected value can be deselected, however rare it is
        own = [c for c in where if c.column == column and not c.prefix and not c.negate]
        values += dict.fromkeys(value for c in own for value in c.values if value not in values)
    rows = [{"value": v, "count": counts.get(v, 0)} | ({} if nearest is None else {"near": near[v]}) for v in values]
    return {"column": column, "total": max(len(named), len(rows)), "values": rows}


def _has(text: str, find: str) -> bool:
    """Whether a text contains another, ignoring case; underscores also match spaces."""
    return find.casefold() in text.casefold() or find.casefold() in text.casefold().replace("_", " ")


def _texts(value: Any) -> list[str]:
    return value if isinstance(value, list) else [value] if isinstance(value, str) else []


def _folders(
    live: OpenIndex, under: str, where: Sequence[Condition], limit: int, find: str = ""
) -> tuple[list[dict[str, Any]], int]:
    """Folders one level below `under` with their numbers of images, and the number of all such folders."""
    if "path" not in live.index.columns:
        return [], 0
    start, others = len(under), _without("path", where)
    paths = live.index.table.column("path").tolist()
    below = {path[start : path.find("/", start) + 1] for path in paths if path.startswith(under)} - {""}
    names = sorted(name for name in below if _has(name, find))
    first = names[: min(limit, MAX_FOLDERS)]
    counts = [live.index.store.count([*others, Condition("path", (under + name,), prefix=True)]) for name in first]
    rows = [{"folder": under + name, "count": count} for name, count in zip(first, counts, strict=True) if count]
    return rows, len(names) if len(names) > len(first) else len(rows)
