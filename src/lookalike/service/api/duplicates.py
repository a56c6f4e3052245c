"""Endpoints of duplicates: search, review, move files away and back."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pydantic
from fastapi import APIRouter, Query, Request, Response

from lookalike.core.files import printable
from lookalike.searching import file_moves
from lookalike.searching.duplicate_groups import Group
from lookalike.searching.find_duplicates import file_json
from lookalike.service import tasks
from lookalike.service.api.common import Body, Filters, IndexDep, ServiceDep, fields, in_pool, tagged
from lookalike.service.http_errors import Problem, answered_with
from lookalike.service.state import card
from lookalike.store import Record

router = APIRouter(prefix="/api/v1", tags=["duplicates"])
Kind = Literal["identical", "same", "near"]
Name = Annotated[str, pydantic.Field(max_length=4_000)]
Prefer = Annotated[str, pydantic.Field(max_length=1_000)]


class PickedFiles(Body):
    """Files of a group to move."""

    id: Name
    move: Annotated[list[Name], pydantic.Field(min_length=1, max_length=10_000)]


class Move(Body):
    """Either picked files of groups, or every suggestion of a kind except some groups."""

    groups: Annotated[list[PickedFiles], pydantic.Field(max_length=10_000)] | None = None
    kind: Kind | None = None
    prefer: Prefer = ""
    exclude: set[Annotated[str, pydantic.Field(max_length=100)]] = pydantic.Field(
        default_factory=set, max_length=100_000
    )


class Dismiss(Body):
    """A group that is not a group of duplicates."""

    group: Name
    undo: bool = False


@router.get("/duplicates")
def duplicates(request: Request, service: ServiceDep, live: IndexDep) -> Response:
    """Result of the last search by kind; `can_move` and `reason` say whether files can be moved."""
    document = service.duplicates.summary(live.index.root)
    job = service.jobs.running("duplicates")
    running = {"job": job.to_json(), "state": "running"} if job else {"job": None}
    return tagged(request, document | running)


@router.post("/duplicates/find", status_code=202)
def find(service: ServiceDep) -> dict[str, Any]:
    """Search for duplicates in the background; unchanged files are not read again."""
    return service.jobs.start("duplicates", "Searching for duplicates", tasks.find_duplicates, service).to_json()


@router.get("/duplicates/groups")
@in_pool("scan_pool")
def groups(
    service: ServiceDep,
    live: IndexDep,
    f: Filters,
    kind: Kind = "identical",
    offset: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    prefer: Annotated[str, Query(max_length=1_000)] = "",
) -> dict[str, Any]:
    """Groups of a kind, the largest gain first, each with the file suggested to be kept and the reason."""
    where = live.where(f)
    among = {record.id for part in live.scan(where) for record in part} if where else None
    total, page = service.duplicates.page(kind, offset, limit, prefer, among)
    names = [image.id for group in page for image in group.files]
    records = service.duplicates.moved | {record.id: record for record in live.records(names)}
    return {"kind": kind, "total": total, "groups": [_group(group, records) for group in page]}


def _group(group: Group, records: dict[str, Record]) -> dict[str, Any]:
    files: list[dict[str, Any]] = []
    for place, image in enumerate(group.files):
        record = records.get(image.id) or Record(image.id, {"path": image.path})
        files.append(card(record) | file_json(image) | {"keep": place == group.keep})
    return fields(group, "id", "kind", "reason", "bytes") | {"keep": group.files[group.keep].id, "files": files}


@router.post("/duplicates/move")
def move(service: ServiceDep, live: IndexDep, body: Move) -> dict[str, Any]:
    """Move files away: picked ones, or all suggestions of a kind. Nothing is deleted; returns a batch."""
    if (body.groups is None) == (body.kind is None):
        raise Problem(422, "Give either `groups` or `kind`.")
    if reason := file_moves.cannot_move(live.index.root):
        raise Problem(409, reason)
    if body.kind is not None:
        picked = service.duplicates.suggested(body.kind, body.prefer, body.exclude)
    else:
        picked = [(one.id, one.move) for one in body.groups or []]
    batch, gone = service.duplicates.move(picked)
    service.duplicates.moved |= {record.id: record for record in live.records(gone)}
    service.remove_rows(gone)
    return batch_json(batch)


@router.post("/duplicates/dismiss")
def dismiss(service: ServiceDep, body: Dismiss) -> dict[str, Any]:
    """Mark a group as not being duplicates: remembered, and not shown again."""
    service.duplicates.dismiss(body.group, undo=body.undo)
    return {"group": body.group, "dismissed": not body.undo}


@router.get("/duplicates/history")
def history(live: IndexDep) -> dict[str, Any]:
    """Batches of files that were moved away, newest first."""
    return {"batches": [batch_json(batch) for batch in file_moves.history(live.index.root)]}


@router.post("/duplicates/history/{name}/undo")
def undo(service: ServiceDep, live: IndexDep, name: str) -> dict[str, Any]:
    """Move a batch back to where it came from; the index is updated in the background."""
    with answered_with(404):
        batch = file_moves.back(live.index.root, name)
    service.duplicates.restore(name)
    tasks.start_update(service)
    return {"moved": batch.files, "left": _left(batch)}


def batch_json(batch: file_moves.Batch) -> dict[str, Any]:
    """A batch without absolute paths."""
    document = batch.to_json()
    del document["root"]  # absolute paths are not disclosed; the end of the folder says enough
    document["folder"] = printable("/".join(batch.folder.replace("\\", "/").rsplit("/", 3)[-3:]))
    return document | {"left": _left(batch)}


def _left(batch: file_moves.Batch) -> list[dict[str, str]]:
    return [{name: printable(text) for name, text in line.items()} for line in batch.left]
