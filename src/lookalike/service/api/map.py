"""The map of the whole collection."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from lookalike.service import tasks
from lookalike.service.api.common import Answering, Filters, Names, Serving, nothing, tagged
from lookalike.service.http_errors import Problem
from lookalike.service.map_data import Plane
from lookalike.service.open_index import Live
from lookalike.service.state import Service, card

router = APIRouter(prefix="/api/v1", tags=["map"])
IMMUTABLE = {"Cache-Control": "private, max-age=31536000, immutable"}
Points = Annotated[list[int], Query(default_factory=nothing, max_length=100)]


@router.get("/map")
def state(request: Request, service: Serving, live: Answering) -> Response:
    """What the map shows; where there is none yet, or images came, it is drawn in the background."""
    plane, job = live.plane, service.jobs.running("map")
    if job is None and not live.map_is_fresh:
        last = service.jobs.last("map")
        if last is None or last.state == "finished" or plane is not None:  # what failed is not tried again and again
            job = _draw(service, again=False)
    job = job or (service.jobs.last("map") if plane is None else None)
    document: dict[str, Any] = {"state": "drawing" if job else "none", "job": job.to_json() if job else None}
    if plane is not None:
        shown = plane.map
        names = plane.codes("label")[1]
        document |= {
            "state": "ready" if shown.method == "t-SNE" else "drawing",
            "gen": plane.number,
            "before": plane.before,
            "n": len(shown),
            "method": shown.method,
            "kept": list(shown.kept),
            "labels": names,
            "columns": [name for name in live.index.columns if name != "path"],
        }
    return tagged(request, document)


@router.post("/map/draw", status_code=202)
def draw(service: Serving) -> dict[str, Any]:
    """Draw the whole map again, from where the images are now."""
    return _draw(service, again=True).to_json()


def _draw(service: Service, *, again: bool) -> Any:
    return service.jobs.start("map", "Drawing the map", tasks.draw(service, again=again))


def plane_of(live: Live, gen: int) -> Plane:
    plane = live.plane
    if plane is None or plane.number != gen:
        raise Problem(410, "The map has been drawn anew since; load it again.")
    return plane


@router.get("/map/now.bin")
def now(request: Request, live: Answering) -> Response:
    """The points of the map that is shown now, whatever its number; 204 where there is none."""
    plane = live.plane
    if plane is None:
        return Response(status_code=204, headers={"Cache-Control": "no-store"})
    headers = {"ETag": f'"{plane.number}"', "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    return Response(plane.records, media_type="application/octet-stream", headers=headers)


@router.get("/map/{gen}.bin")
def binary(live: Answering, gen: int) -> Response:
    """A 64-byte header `LKMP`, then a record of 8 bytes an image: u16 x, u16 y, u8 color, u8 flags, u16 label."""
    return Response(plane_of(live, gen).records, media_type="application/octet-stream", headers=IMMUTABLE)


@router.get("/map/{gen}/from/{old}.bin")
def moved(live: Answering, gen: int, old: int) -> Response:
    """One i32 a point: which point of the map before it was, -1 where it was not there."""
    plane = plane_of(live, gen)
    if old != plane.before:
        raise Problem(410, "That map is no longer known; load the new one.")
    return Response(plane.was.tobytes(), media_type="application/octet-stream", headers=IMMUTABLE)


@router.get("/map/{gen}/codes/{column}.bin")
def codes(live: Answering, gen: int, column: str) -> Response:
    """A column as one u16 an image, numbers into the names of `/map/{gen}/codes/{column}`; 65535 is none."""
    live.index.check_columns([column])
    body = plane_of(live, gen).codes(column)[0].astype("<u2").tobytes()
    return Response(body, media_type="application/octet-stream", headers=IMMUTABLE)


@router.get("/map/{gen}/codes/{column}")
def names(live: Answering, gen: int, column: str) -> dict[str, Any]:
    """The values of a column, the most frequent first."""
    live.index.check_columns([column])
    return {"column": column, "names": plane_of(live, gen).codes(column)[1]}


@router.get("/map/{gen}/mask")
def mask(live: Answering, gen: int, f: Filters) -> Response:
    """A bit for each point, least significant first: whether it meets the filters."""
    return Response(plane_of(live, gen).mask(f), media_type="application/octet-stream")


@router.get("/map/{gen}/point/{i}")
def point(live: Answering, gen: int, i: int) -> dict[str, Any]:
    """The card of a point."""
    return card(live.record(plane_of(live, gen).name(i)))


@router.get("/map/{gen}/points")
def points(live: Answering, gen: int, i: Points) -> dict[str, Any]:
    """The cards of several points, in the order asked for; those that are gone are left out."""
    plane = plane_of(live, gen)
    asked = [plane.name(number) for number in i]
    found = {record.id: card(record) for record in live.records(asked)}
    rows = zip(i, asked, strict=True)
    return {"points": [{"i": number, **found[name]} for number, name in rows if name in found]}


@router.get("/map/{gen}/where")
def where(live: Answering, gen: int, id: Names) -> dict[str, Any]:  # noqa: A002 (the name in the address)
    """Where images lie: their points, x and y from 0 to 1."""
    plane = plane_of(live, gen)
    rows = [(name, plane.map.where[name]) for name in id if name in plane.map.where]
    return {
        "points": [{"id": name, "i": i, "x": float(plane.unit[i, 0]), "y": float(plane.unit[i, 1])} for name, i in rows]
    }


@router.get("/map/{gen}/tile/{z}/{x}/{y}.jpg")
async def tile(service: Serving, live: Answering, gen: int, z: int, x: int, y: int) -> Response:
    """8 × 8 small images of a part of the map."""
    return await service.showing.run(_tile, live, gen, z, x, y)


def _tile(live: Live, gen: int, z: int, x: int, y: int) -> Response:
    data, whole = plane_of(live, gen).tile(z, x, y)
    return Response(data, media_type="image/jpeg", headers=IMMUTABLE if whole else {"Cache-Control": "no-store"})
