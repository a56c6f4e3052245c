"""What can be filtered by: values with counts that follow the other filters and the question."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query

from lookalike.service.api.asked import Asking
from lookalike.service.api.common import Answering, Filters, Serving
from lookalike.service.live import Live
from lookalike.service.problems import Problem
from lookalike.service.state import card
from lookalike.store import Condition

router = APIRouter(prefix="/api/v1", tags=["search"])
Limit = Annotated[int, Query(ge=1, le=1000)]
Under = Annotated[str, Query(max_length=1000, description="A folder with its slash, `sea/`; empty: the uppermost")]
FOLDERS = 100  # shown at most
MIDDLE, SAMPLE = 4, 1000  # pictures that stand for a value, and of how many they are the middle


@router.get("/facets")
def all_facets(
    service: Serving, live: Answering, reference: Asking, f: Filters, limit: Limit = 12, under: Under = ""
) -> dict[str, Any]:
    """Every column with its values, each under the filters of the other columns, and the folders below `under`.

    With a question (`like`, `q`, … as of a search) values also say how many of the nearest pictures have them
    (`near`, of `nearest` in all), and those of most come first.
    """
    where, asked = live.where(f), reference.asked(live)
    found: dict[tuple[Condition, ...], Sequence[dict[str, Any]]] = {}

    def nearest(conditions: Sequence[Condition]) -> Sequence[dict[str, Any]]:
        """Payloads of the best hits; columns without a filter of their own share them."""
        key = tuple(conditions)
        if key not in found:
            found[key] = [hit.payload for hit in asked.answer(service, live, service.limits.hits, list(key))]
        return found[key]

    columns = []
    for column in (name for name in live.index.columns if name != "path"):
        others = _without(column, where)
        near = Counter(v for row in nearest(others) for v in _texts(row.get(column))) if asked.vectors else None
        columns.append(_facet(live, column, others, limit, near))
    return {
        "pictures": live.index.store.count(where),
        "nearest": len(nearest(where)) if asked.vectors else None,
        "facets": columns,
        "folders": _folders(live, under, _without("path", where)),
    }


@router.get("/facets/{column}")
def facets(live: Answering, column: str, f: Filters, limit: Limit = 200) -> dict[str, Any]:
    """The values of a column with how many pictures have each, under the other columns' filters."""
    live.index.check_columns([column])
    return _facet(live, column, _without(column, live.where(f)), limit, None)


@router.get("/facets/{column}/middle")
def middle(live: Answering, column: str, value: str) -> dict[str, Any]:
    """The four pictures nearest to the middle of those that have a value."""
    live.index.check_columns([column])
    records = []
    for batch in live.index.store.scan(where=[Condition(column, (value,))], vectors=True, batch=SAMPLE):
        records = [record for record in batch if record.vector is not None]
        break
    if not records:
        raise Problem(404, f"No picture has {column}: {value}.")
    vectors = np.stack([record.vector for record in records if record.vector is not None])
    order = np.argsort(-(vectors @ vectors.mean(axis=0)), kind="stable")
    return {"items": [card(records[place]) for place in order[:MIDDLE]]}


def _without(column: str, where: Sequence[Condition]) -> list[Condition]:
    return [condition for condition in where if condition.column != column]


def _facet(
    live: Live, column: str, where: Sequence[Condition], limit: int, near: Counter[str] | None
) -> dict[str, Any]:
    pairs = live.index.store.facets(column, where=where, limit=limit)
    if near is None:
        return {"column": column, "values": [{"value": value, "count": count} for value, count in pairs]}
    pairs = sorted(pairs, key=lambda pair: -near[pair[0]])
    return {"column": column, "values": [{"value": v, "count": count, "near": near[v]} for v, count in pairs]}


def _texts(value: Any) -> list[str]:
    return value if isinstance(value, list) else [value] if isinstance(value, str) else []


def _folders(live: Live, under: str, where: Sequence[Condition]) -> list[dict[str, Any]]:
    """The folders one step below `under` (which ends with a slash, or is empty), with how many pictures each holds."""
    if "path" not in live.index.columns:
        return []
    start = len(under)
    paths = live.index.table.column("path").tolist()
    below = {path[start : path.find("/", start) + 1] for path in paths if path.startswith(under)} - {""}
    rows = []
    for name in sorted(below)[:FOLDERS]:
        count = live.index.store.count([*where, Condition("path", (under + name,), prefix=True)])
        rows.append({"folder": under + name, "count": count})
    return [row for row in rows if row["count"]]
