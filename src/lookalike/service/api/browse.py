"""Endpoints of Browse: the whole collection in order, and what can be done with a selection of it.

A **selection** names images by their places in an order: `{order, f, version, ranges: [[0, 12], [40, 41]]}`. `version`
is that of `GET /browse`, so that a selection never means other images after a change: it is refused with 409.
"""

from __future__ import annotations

import csv
import io
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pydantic
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import PlainTextResponse

from lookalike.core.files import hash_bytes, printable
from lookalike.searching import file_moves
from lookalike.service import tasks
from lookalike.service.api.common import Body, Filters, FilterText, IndexDep, ServiceDep, in_pool, tagged, with_tags
from lookalike.service.api.duplicates import batch_json
from lookalike.service.http_errors import Problem
from lookalike.service.open_index import OpenIndex
from lookalike.service.state import card
from lookalike.store import Record

router = APIRouter(prefix="/api/v1", tags=["browse"])
Order = Literal["date", "folder"]
Tag = Annotated[str, pydantic.Field(max_length=200)]
VIEWS = 4  # orders with their filters that are kept
NUMBERS = re.compile(r"(\d+)")


@dataclass(frozen=True)
class View:
    """The images of a collection in an order, in sections.

    Args:
        version: Changes with the images or their order.
        ids: The rows.
        ratios: Width by height of each, times 100.
        sections: Name and number of images of each section: a month (`2024-08`, or empty) or a folder.
    """

    version: str
    ids: list[str]
    ratios: np.ndarray
    sections: list[tuple[str, int]]


def view_of(live: OpenIndex, order: Order, filters: list[str], version: str) -> View:
    """The view with a version; `Problem` 409 if it has changed."""
    view = make_view(live, order, filters)
    if version != view.version:
        raise Problem(409, "The collection has changed meanwhile: load it again and repeat the selection.")
    return view


def make_view(live: OpenIndex, order: Order, filters: list[str]) -> View:
    """Order the images that meet filters: by date, the newest first, or by folder and name."""
    store, key = live.index.store, (order, *filters)
    state = (live.index.generation.writes, store.count(), live.tag_changes)
    views: dict[Any, tuple[Any, View]] = live.views
    if key in views and views[key][0] == state:
        return views[key][1]
    taken = "taken" in live.index.columns
    rows = [_sort_row(record, order, taken=taken) for part in live.scan(live.where(filters)) for record in part]
    rows.sort(reverse=order == "date")
    sections = [(name, len(list(part))) for name, part in groupby(row[-3] for row in rows)]
    ids, ratios = [row[-2] for row in rows], np.array([row[-1] for row in rows], dtype=np.uint16)
    view = View(hash_bytes("\0".join(ids).encode("utf-8", "surrogatepass"))[:16], ids, ratios, sections)
    views[key] = (state, view)
    while len(views) > VIEWS:
        views.pop(next(iter(views)), None)
    return view


def _sort_row(record: Record, order: Order, *, taken: bool) -> tuple[Any, ...]:
    """Sort key, section, id and ratio of an image; dates of files are not mixed with those of photos (`taken`)."""
    payload = record.payload
    ratio = round(100 * min(max(float(payload.get("_ratio") or 1), 0.3), 4))
    path = str(payload.get("path", record.id))
    if order == "folder":
        folder = path.rpartition("/")[0]
        return _natural(folder), _natural(path), folder, record.id, ratio
    date = str(payload.get("taken") or "")
    if not taken and payload.get("_mtime_ns"):
        date = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(int(payload["_mtime_ns"]) / 1e9))
    return date, _natural(path), date[:7], record.id, ratio


def _natural(path: str) -> list[tuple[int, str]]:
    """A key that sorts `2.jpg` before `10.jpg`."""
    return [(int(part), "") if part.isdecimal() else (-1, part.casefold()) for part in NUMBERS.split(path)]


class Selection(Body):
    """Images by their places in a view."""

    order: Order = "date"
    f: list[FilterText] = pydantic.Field(default_factory=list, max_length=50)
    version: Annotated[str, pydantic.Field(max_length=32)]
    ranges: list[tuple[pydantic.NonNegativeInt, pydantic.NonNegativeInt]] = pydantic.Field(
        min_length=1, max_length=10_000
    )

    def ids(self, live: OpenIndex) -> list[str]:
        """The selected rows; `Problem` 409 if the view has changed."""
        view = view_of(live, self.order, self.f, self.version)
        places = np.zeros(len(view.ids), dtype=bool)
        for start, stop in self.ranges:
            places[start:stop] = True
        if not places.any():
            raise Problem(422, "Nothing is selected.")
        return [view.ids[place] for place in np.flatnonzero(places)]


class TagChange(Selection):
    """Tags to add to a selection, and to remove from it."""

    add: list[Tag] = pydantic.Field(default_factory=list, max_length=20)
    remove: list[Tag] = pydantic.Field(default_factory=list, max_length=20)


class Export(Selection):
    """A selection to write out: a table with all columns, or the paths alone."""

    format: Literal["csv", "list"] = "csv"


class FolderMove(Selection):
    """A folder of the collection to move the files of a selection to."""

    folder: Annotated[str, pydantic.Field(max_length=500)]


@router.get("/browse")
@in_pool("scan_pool")
def browse(request: Request, service: ServiceDep, live: IndexDep, f: Filters, order: Order = "date") -> Response:
    """All images in order, as sections (months or folders) and aspect ratios (times 100); `version` names this state.

    Dates are those of EXIF where the index has them (`lookalike index FOLDER --exif`), else those of the files.
    """
    view = make_view(live, order, f)
    sections = [{"name": printable(name), "count": count} for name, count in view.sections]
    about = {"version": view.version, "taken": "taken" in live.index.columns}
    return tagged(request, about | {"sections": sections, "ratios": view.ratios})


@router.get("/browse/items")
@in_pool("scan_pool")
def browse_items(
    service: ServiceDep,
    live: IndexDep,
    f: Filters,
    version: Annotated[str, Query(max_length=32)],
    order: Order = "date",
    offset: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=500)] = 100,
) -> dict[str, Any]:
    """A page of the images in order."""
    names = view_of(live, order, f, version).ids[offset : offset + limit]
    records = {record.id: record for record in live.records(names)}
    return {"items": with_tags(live, [card(records.get(name) or Record(name, {})) for name in names])}


@router.get("/tags")
def tags(live: IndexDep) -> dict[str, Any]:
    """All tags, and the name of the column to filter by them."""
    return {"column": live.index.tags.column, "tags": live.index.tags.names}


@router.post("/browse/tags")
@in_pool("scan_pool")
def change_tags(service: ServiceDep, live: IndexDep, body: TagChange) -> dict[str, Any]:
    """Add tags to a selection, and remove tags from it."""
    count = live.index.tags.change(body.ids(live), add=body.add, remove=body.remove)
    live.tag_changes += 1
    return {"images": count, "tags": live.index.tags.names}


@router.post("/browse/export", response_class=PlainTextResponse)
@in_pool("scan_pool")
def export(service: ServiceDep, live: IndexDep, body: Export) -> Response:
    """A selection as CSV (id and all columns, lists separated by `|`) or as a list of paths, one a line."""
    names = body.ids(live)
    if body.format == "list":
        text = "".join(f"{printable(str(r.payload.get('path', r.id)))}\n" for r in _records(live, names))
        return Response(text, media_type="text/plain; charset=utf-8")
    columns, tags = live.index.columns, live.index.tags
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow(["id", *columns])
    own = tags.of(names)
    for record in _records(live, names):
        line = record.payload | ({tags.column: own[record.id]} if record.id in own else {})
        values = (line.get(name, "") for name in columns)
        texts = ("|".join(value) if isinstance(value, list) else str(value) for value in values)
        writer.writerow([printable(text) for text in (record.id, *texts)])
    return Response(file.getvalue(), media_type="text/csv; charset=utf-8")


@router.post("/browse/move")
@in_pool("scan_pool")
def move(service: ServiceDep, live: IndexDep, body: FolderMove) -> dict[str, Any]:
    """Move the files of a selection to a folder of the collection; undone as a batch of `/duplicates/history`.

    Nothing is overwritten; the index is updated in the background and keeps the vectors.
    """
    root = live.index.root.resolve()
    parts = [part for part in body.folder.replace("\\", "/").split("/") if part]
    if not parts or any(part in (".", "..") or part.startswith(".") or not part.isprintable() for part in parts):
        raise Problem(422, "Name a folder of the collection, such as 2024/holiday.")
    target = root.joinpath(*parts)
    if not target.resolve().is_relative_to(root):
        raise Problem(422, "This folder lies outside the collection.")
    if not os.access(root, os.W_OK):
        raise Problem(409, "This folder is read-only: moving is off.")

    files = list(dict.fromkeys(_files(root, _records(live, body.ids(live)))))
    if not files:
        raise Problem(422, "These images are not files of their own, or their files are gone.")
    batch = file_moves.move(root, files, target, within=True)
    tasks.start_update(service)
    return batch_json(batch)


def _records(live: OpenIndex, names: Sequence[str]) -> Iterator[Record]:
    for start in range(0, len(names), 1000):
        yield from live.records(list(names[start : start + 1000]))


def _files(root: Path, records: Iterator[Record]) -> Iterator[file_moves.FileToMove]:
    """The files of images that are not parts of archives."""
    for record in records:
        spelling = record.payload.get("_raw_path")
        path = os.fsdecode(bytes.fromhex(spelling)) if spelling else str(record.payload.get("path", ""))
        if path and not record.payload.get("_shard") and (root / path).is_file():
            status = (root / path).stat()
            yield file_moves.FileToMove(path, status.st_size, status.st_mtime)
