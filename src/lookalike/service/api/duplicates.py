"""Duplicates: look for them, go through them, move copies away and back."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pydantic
from fastapi import APIRouter, Query, Request, Response

from lookalike.core.errors import LookalikeError
from lookalike.core.files import printable
from lookalike.searching import file_moves
from lookalike.searching.duplicate_groups import Group
from lookalike.searching.find_duplicates import file_json
from lookalike.service import tasks
from lookalike.service.api.common import Answering, Body, Filters, Serving, tagged
from lookalike.service.http_errors import Problem
from lookalike.service.open_index import Live
from lookalike.service.state import card
from lookalike.store import Record

router = APIRouter(prefix="/api/v1", tags=["duplicates"])
Kind = Literal["identical", "same", "near"]
Name = Annotated[str, pydantic.Field(max_length=4_000)]
Prefer = Annotated[str, pydantic.Field(max_length=1_000)]


class Picked(Body):
    id: Name
    move: Annotated[list[Name], pydantic.Field(min_length=1, max_length=10_000)]


class Move(Body):
    """Either picked files of groups, or every suggestion of a kind."""

    groups: Annotated[list[Picked], pydantic.Field(max_length=10_000)] | None = None
    kind: Kind | None = None
    prefer: Prefer = ""
    without: list[Name] = pydantic.Field(default_factory=list, max_length=100_000)


class Dismiss(Body):
    group: Name
    undo: bool = False


@router.get("/duplicates")
def duplicates(request: Request, service: Serving, live: Answering) -> Response:
    """What was found last, by kind; `can_move` and `why` say whether files can be moved."""
    document = service.desk.summary(live.index.root)
    job = service.jobs.running("duplicates")
    return tagged(
        request, document | {"job": job.to_json()} | {"state": "running"} if job else document | {"job": None}
    )


@router.post("/duplicates/find", status_code=202)
def find(service: Serving) -> dict[str, Any]:
    """Look for duplicates in the background; what was looked at before is not read again."""
    return service.jobs.start("duplicates", "Looking for duplicates", tasks.duplicates(service)).to_json()


@router.get("/duplicates/groups")
def groups(
    service: Serving,
    live: Answering,
    f: Filters,
    kind: Kind = "identical",
    offset: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    prefer: Annotated[str, Query(max_length=1_000)] = "",
) -> dict[str, Any]:
    """Groups of a kind, the largest gain first, each with the file that is suggested to stay and the reason."""
    where = live.where(f)
    among = {record.id for part in live.index.store.scan(where=where) for record in part} if where else None
    total, found = service.desk.page(kind, offset, limit, prefer, among)
    names = [image.id for one in found for image in one.files]
    records = {record.id: record for record in live.records(names)}
    return {"kind": kind, "total": total, "groups": [_group(live, one, records) for one in found]}


def _group(live: Live, one: Group, records: dict[str, Record]) -> dict[str, Any]:
    files: list[dict[str, Any]] = []
    for place, image in enumerate(one.files):
        record = records.get(image.id) or Record(image.id, {"path": image.path})
        files.append(card(record) | file_json(image) | {"keep": place == one.keep})
    return {
        "id": one.id,
        "kind": one.kind,
        "keep": one.files[one.keep].id,
        "reason": one.reason,
        "bytes": one.bytes,
        "files": files,
    }


@router.post("/duplicates/move")
def move(service: Serving, live: Answering, wanted: Move) -> dict[str, Any]:
    """Move files away: picked ones, or all suggested of a kind. Nothing is deleted; the answer is a batch."""
    if (wanted.groups is None) == (wanted.kind is None):
        raise Problem(422, "Give either `groups` or `kind`.")
    if why := file_moves.cannot_move(live.index.root):
        raise Problem(409, why)
    if wanted.kind is not None:
        picked = service.desk.suggested(wanted.kind, wanted.prefer, wanted.without)
    else:
        picked = [(one.id, one.move) for one in wanted.groups or []]
    batch, gone = service.desk.move(picked)
    service.leave(gone)
    return _batch(batch)


@router.post("/duplicates/dismiss")
def dismiss(service: Serving, wanted: Dismiss) -> dict[str, Any]:
    """These are no duplicates: remembered, and not shown again."""
    service.desk.dismiss(wanted.group, undo=wanted.undo)
    return {"group": wanted.group, "dismissed": not wanted.undo}


@router.get("/duplicates/history")
def history(live: Answering) -> dict[str, Any]:
    """Batches of files that were moved away, newest first."""
    return {"batches": [_batch(batch) for batch in file_moves.history(live.index.root)]}


@router.post("/duplicates/history/{name}/back")
def back(service: Serving, live: Answering, name: str) -> dict[str, Any]:
    """Move a batch back to where it came from; the index follows in the background."""
    try:
        batch = file_moves.back(live.index.root, name)
    except LookalikeError as error:
        raise Problem(404, str(error)) from None
    if not service.jobs.running("index"):
        service.jobs.start("index", "Bringing the index up to date", tasks.update(service))
    return {"moved": batch.files, "left": _left(batch)}


def _batch(batch: file_moves.Batch) -> dict[str, Any]:
    document = batch.to_json()
    del document["root"]  # a path of this machine; so is the folder, of which its end says enough
    document["folder"] = printable("/".join(batch.folder.replace("\\", "/").rsplit("/", 3)[-3:]))
    return document | {"left": _left(batch)}


def _left(batch: file_moves.Batch) -> list[dict[str, str]]:
    return [{name: printable(text) for name, text in line.items()} for line in batch.left]
