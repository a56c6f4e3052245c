"""The JSON API, version 1, below `/api/v1`; the full reference is `/openapi.json`.

A refused request is answered with `{"error": {"status", "message"}}`; 503 and 429 carry `Retry-After`. Requests that
change something (all but GET and `POST /search`) need the header `X-Lookalike: 1`; requests from other
sites are refused. Lists for polling carry an `ETag` and answer `If-None-Match` with 304.

- A **card** is an image: `{id, columns: {path, label, …}, thumb, ratio, color}`; its thumbnails are at
  `/thumb/{thumb}/{96|256|512|1024}.jpg`, the original at `/original/{id}`.
- A **job** runs in the background: `{id, kind, title, phase, done, total, seconds_left, state, message, result}`;
  `kind` is index, switch, map or duplicates; `state` is running, finished, stopped or failed. One job runs at a time;
  a second one of the same kind is refused with 409.
- A **filter** is `COLUMN:VALUE`, `COLUMN!:VALUE`, `COLUMN:PREFIX*`, or a region of the map, `area:GEN.xxxyyy…` with
  corners in hexadecimal from 0 to 4095.
- A **box** is a part of an image, `x1,y1,x2,y2` as fractions of width and height.

Modules: `search` (search, items, info), `browse` (the collection in order, tags, export, moves), `facets` (values and
folders to filter by), `jobs` (state, jobs, runs), `duplicates` (review and move), `map` (points, tiles, regions),
`admin` (models, sessions, keys).
"""

from __future__ import annotations

from lookalike.service.api import admin, browse, duplicates, facets, jobs, map, search  # noqa: A004

__all__ = ["ROUTERS"]

ROUTERS = [module.router for module in (search, browse, facets, jobs, duplicates, map, admin)]


def __dir__() -> list[str]:
    return __all__
