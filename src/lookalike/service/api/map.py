"""Endpoints of the map of all images."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from lookalike.service import tasks
from lookalike.service.api.common import IMMUTABLE, Filters, IndexDep, Names, ServiceDep, in_pool, nothing, tagged
from lookalike.service.http_errors import Problem
from lookalike.service.map_data import MapData
from lookalike.service.open_index import OpenIndex
from lookalike.service.state import Service, card

router = APIRouter(prefix="/api/v1", tags=["map"])
Points = Annotated[list[int], Query(default_factory=nothing, max_length=100)]


@router.get("/map")
def state(request: Request, service: ServiceDep, live: IndexDep) -> Response:
    """State and legend of the map; if it is missing or images were added, it is drawn in the background."""
    shown, job = live.map_data, service.jobs.running("map")
    if job is None and not live.map_is_current:
        last = service.jobs.last("map")
        if last is None or last.state == "finished" or shown is not None:  # do not retry a failure forever
            job = _draw(service, again=False)
    job = job or (service.jobs.last("map") if shown is None else None)
    document: dict[str, Any] = {"state": "drawing" if job else "none", "job": job.to_json() if job else None}
    if shown is not None:
        names = [name for name in live.index.generation.columns if name != "path"]
        document |= {"gen": shown.number, "previous": shown.previous, "n": len(shown.map), "method": shown.map.method}
        document |= {"labels": shown.codes("label")[1], "columns": names, "state": "drawing"}
        document |= {"neighbor_recall": list(shown.map.neighbor_recall)}
        if shown.map.method == "t-SNE":
            document["state"] = "ready"
    return tagged(request, document)


@router.post("/map/draw", status_code=202)
def draw(service: ServiceDep) -> dict[str, Any]:
    """Redraw the whole map, starting from the current positions."""
    return _draw(service, again=True).to_json()


def _draw(service: Service, *, again: bool) -> Any:
    return service.jobs.start("map", "Drawing the map", tasks.draw_map, service, again)


def map_of(live: OpenIndex, gen: int) -> MapData:
    """The map with a number; `Problem` 410 if another one is shown now."""
    shown = live.map_data
    if shown is None or shown.number != gen:
        raise Problem(410, "The map has been redrawn; load it again.")
    return shown


@router.get("/map/now.bin")
def now(request: Request, live: IndexDep) -> Response:
    """Points of the current map, whatever its number; 204 if there is none."""
    shown = live.map_data
    if shown is None:
        return Response(status_code=204, headers={"Cache-Control": "no-store"})
    headers = {"ETag": f'"{shown.number}"'}
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    return Response(shown.records, media_type="application/octet-stream", headers=headers)


@router.get("/map/{gen}.bin")
def binary(live: IndexDep, gen: int) -> Response:
    """A 64-byte header `LKMP`, then 8 bytes per image: u16 x, u16 y, u8 color, u8 flags, u16 label."""
    return Response(map_of(live, gen).records, media_type="application/octet-stream", headers=IMMUTABLE)


@router.get("/map/{gen}/from/{old}.bin")
def moved(live: IndexDep, gen: int, old: int) -> Response:
    """One i32 per point: its index in the previous map, -1 if it was not there."""
    shown = map_of(live, gen)
    if old != shown.previous:
        raise Problem(410, "The previous map is no longer available; load the new one.")
    return Response(shown.previous_points.tobytes(), media_type="application/octet-stream", headers=IMMUTABLE)


@router.get("/map/{gen}/codes/{column}.bin")
def codes(live: IndexDep, gen: int, column: str) -> Response:
    """Values of a column as one u16 per point, indices into `/map/{gen}/codes/{column}`; 65535: no value."""
    live.index.check_columns([column])
    body = map_of(live, gen).codes(column)[0].astype("<u2").tobytes()
    return Response(body, media_type="application/octet-stream", headers=IMMUTABLE)


@router.get("/map/{gen}/codes/{column}")
def names(live: IndexDep, gen: int, column: str) -> dict[str, Any]:
    """Names of a column's values, the most frequent first."""
    live.index.check_columns([column])
    return {"column": column, "names": map_of(live, gen).codes(column)[1]}


@router.get("/map/{gen}/mask")
@in_pool("scan_pool")
def mask(service: ServiceDep, live: IndexDep, gen: int, f: Filters) -> Response:
    """One bit per point, least significant first: whether it matches the filters."""
    return Response(map_of(live, gen).mask(f), media_type="application/octet-stream")


@router.get("/map/{gen}/point/{i}")
def point(live: IndexDep, gen: int, i: int) -> dict[str, Any]:
    """The card of a point."""
    return card(live.record(map_of(live, gen).name(i)))


@router.get("/map/{gen}/points")
def points(live: IndexDep, gen: int, i: Points) -> dict[str, Any]:
    """The cards of several points, in the requested order; missing images are left out."""
    shown = map_of(live, gen)
    names = [shown.name(number) for number in i]
    cards = {record.id: card(record) for record in live.records(names)}
    rows = zip(i, names, strict=True)
    return {"points": [{"i": number, **cards[name]} for number, name in rows if name in cards]}


@router.get("/map/{gen}/locate")
def locate(live: IndexDep, gen: int, id: Names) -> dict[str, Any]:  # noqa: A002 (name of the parameter)
    """Positions of images: their points, x and y from 0 to 1."""
    shown = map_of(live, gen)
    rows = [(name, shown.map.where[name]) for name in id if name in shown.map.where]
    return {
        "points": [{"id": name, "i": i, "x": float(shown.unit[i, 0]), "y": float(shown.unit[i, 1])} for name, i in rows]
    }


@router.get("/map/{gen}/tile/{z}/{x}/{y}.jpg")
@in_pool("image_pool")
def tile(service: ServiceDep, live: IndexDep, gen: int, z: int, x: int, y: int) -> Response:
    """A sheet of 8 × 8 thumbnails of a quad-tree tile."""
    data, complete = map_of(live, gen).tile(z, x, y)
    return Response(data, media_type="image/jpeg", headers=IMMUTABLE if complete else {"Cache-Control": "no-store"})
