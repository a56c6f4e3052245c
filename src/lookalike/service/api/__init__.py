"""The JSON API, version 1: everything under `/api/v1`. Described for programs at /openapi.json.

Every refusal is `{"error": {"status", "message"}}`; 503 and 429 carry `Retry-After`. Whatever changes something (all
but GET and `POST /search`) needs the header `X-Lookalike: 1`; pages of other sites are refused. Lists that are polled
carry an `ETag`; asked for again with `If-None-Match` they are answered by an empty 304.

A **card** is one image: `{id, columns: {path, label, …}, thumb, ratio, color}`; its images are at
`/thumb/{thumb}/{96|256|512|1024}.jpg`, the original (without its metadata) at `/original/{id}`.
A **job** is work in the background: `{id, kind, title, phase, done, total, seconds_left, state, message, result}`;
`kind` is index, switch, map or duplicates; `state` is running, finished, stopped or failed; `message` says how it
ended. One job runs at a time; the next one waits (409 if it is of the same kind).

Search (`api/search.py`)
    GET    /info                       index, model, columns, limits, what this caller may do (`rights`), `words`
    POST   /search                     by an upload (multipart `image`); `?f=&k=&box=x1,y1,x2,y2&more=&less=&keep=`
    GET    /search                     by reference: `like=ID`, `q=u.…`, `text=WORDS`, `more=ID`, `less=ID`, `box=`
    POST   /nearest                    by vectors of the index's model: `{positive, negative, k, where, same, exact}`
    GET    /items, /items/{id}         a mosaic of cards; one card
    DELETE /queries/{id}               forget an upload
    GET    /reports                    reports of runs, newest first
`box` is a part of the image, as shares of its width and height between 0 and 1.

Filters (`api/facets.py`)
    GET    /facets                     the first values of every column with counts under the other columns' filters
                                       (`f=`), how many there are (`total`), and the folders one step down; with a
                                       question (as GET /search) each value also says how many of the nearest images
                                       have it, and those come first
    GET    /facets/{column}?find=      one column alone, or its values that are called so
    GET    /facets/{column}/middle?value=      four images typical of a value
    GET    /folders?under=&find=       folders one step down with how many images each holds

State and jobs (`api/jobs.py`)
    GET    /state                      what moves: `{index: {…}, job, jobs, map, generation}`; ETag
    POST   /index/update               bring the index up to date with its folder; a job
    GET    /index/unreadable           files that could not be read, with the reason
    POST   /jobs/{id}/stop             stop it; what was finished is kept

Duplicates (`api/duplicates.py`)
    GET    /duplicates                 `{state: none|ready|running, job, when, images, counts: {identical|same|near:
                                       {groups, files, bytes}}, can_move, why, folder}`; ETag
    POST   /duplicates/find            look for them; a job
    GET    /duplicates/groups          `?kind=&offset=&limit=&prefer=FOLDER/` → `{kind, total, groups: [{id, kind, keep,
                                       reason, bytes, files: [card + {bytes, width, height, date, place, keep}]}]}`
    POST   /duplicates/move            `{groups: [{id, move: [row id, …]}]}` or `{kind, prefer, without: [group id]}`
                                       for every suggestion of a kind → a batch
    POST   /duplicates/dismiss         `{group}`: not duplicates, remembered; `{group, undo: true}` takes it back
    GET    /duplicates/history         `{batches: [{id, when, folder, files, bytes, state: moved|back|partly}]}`
    POST   /duplicates/history/{id}/back   move its files back → `{moved, left: [{path, why}]}`

Map (`api/map.py`)
    GET    /map                        `{state: none|drawing|ready, job, gen, n, method, kept: [10 of 10, 10 of 50],
                                       before, labels, columns}`; draws it in the background where it must be; ETag
    POST   /map/draw                   draw it again; a job
    GET    /map/{gen}.bin              64-byte header `LKMP`, then n records of 8 bytes (see `service/map_data.py`)
    GET    /map/now.bin                the same of the map that is shown now; 204 where there is none; ETag
    GET    /map/{gen}/from/{old}.bin   one i32 a point: where it was in the map before, -1 where it was not
    GET    /map/{gen}/codes/{column}   names of a column's values; with `.bin` one u16 a point into them
    GET    /map/{gen}/mask?f=          n bits, least significant first: which points meet the filters
    GET    /map/{gen}/point/{i}        the card of a point; /map/{gen}/points?i=&i= of several
    GET    /map/{gen}/where?id=        `{points: [{id, i, x, y}]}` of images, x and y from 0 to 1
    GET    /map/{gen}/tile/{z}/{x}/{y}.jpg     8 × 8 small images of a quad-tree tile
A filter `area:GEN.xxxyyy…` (corners in hexadecimal of 0 to 4095) means: what lies in that part of the map.

Runs (`api/runs.py`)
    GET    /runs, /runs/{name}         runs, newest first, with a small curve; one with all its curves; ETag

Settings (`api/settings.py`)
    GET    /generations                `{live, generations: [...], models: [...]}`: what answers, what could; ETag
    POST   /switch                     `{model}`: embed beside, compare, switch; a job. `{generation}`: switch (back);
                                       409 while that one is still in use, and it answers as soon as it is free
    DELETE /generations/{number}       delete a generation that does not answer
    GET    /session, POST, DELETE      `{rights, locked}`; trade a key (`{key}`) for a cookie; end it
    GET    /keys, POST /keys           `{keys: [{id, name, rights, created, used}]}`; `{name, rights}` → and `key`, once
    DELETE /keys/{id}                  revoke one
"""

from __future__ import annotations

from lookalike.service.api import admin, duplicates, facets, jobs, map, search  # noqa: A004

ROUTERS = [part.router for part in (search, facets, jobs, duplicates, map, admin)]
