"""The app: the API, images, the page, and the guards around them."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles

from lookalike._version import __version__
from lookalike.service import api, errors
from lookalike.service.access import DEEP, SCREENS, rights_of
from lookalike.service.api.common import Answering
from lookalike.service.errors import Problem
from lookalike.service.guards import REPORT_POLICY, Guard
from lookalike.service.logs import Requests
from lookalike.service.metrics import Metrics
from lookalike.service.originals import original
from lookalike.service.state import Service

STATIC = Path(__file__).parent / "static"
HEALTH = 3.0  # seconds: whatever watches over the server waits for little longer
# What each first view is made of is fetched beside the page's own modules, not after them.
SEARCH = ("parts/grid", "parts/score", "views/search")
MAP = ("views/map", "map/buffer", "map/paint-cpu", "map/stage", "map/tiles")
FACTS = ("info", "map", "map/now.bin")  # and what the map's first points are drawn from
IMMUTABLE = "private, max-age=31536000, immutable"


def create_app(service: Service, *, hosts: frozenset[str] | None = None) -> FastAPI:
    """An app around a service; `hosts` are the names it answers to (None: any)."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        service.close()

    # FastAPI's own documentation pages load scripts from elsewhere; /openapi.json stays.
    app = FastAPI(title="lookalike", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan)
    app.state.service = service
    metrics = Metrics(service)
    errors.install(app)
    for router in api.ROUTERS:
        app.include_router(router)
    _images(app, service)
    _page(app)

    @app.api_route("/health", methods=["GET", "HEAD"], include_in_schema=False)
    async def health() -> dict[str, Any]:
        try:
            async with asyncio.timeout(HEALTH):
                return {"status": "ok", "images": await service.health.run(lambda: service.index.store.count())}
        except TimeoutError:
            raise Problem(503, "The index does not answer. Try again in 5 s.", retry_after=5) from None

    @app.get("/metrics", include_in_schema=False)
    def prometheus() -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")

    @app.get("/reports/{name}", include_in_schema=False)
    def report(name: str) -> Response:
        headers = {"Content-Security-Policy": REPORT_POLICY, "Cache-Control": "no-cache"}
        return Response(service.reports.html(name), media_type="text/html; charset=utf-8", headers=headers)

    app.add_middleware(Guard, service=service, hosts=hosts)
    app.add_middleware(Requests, metrics=metrics)
    return app


def _images(app: FastAPI, service: Service) -> None:
    @app.get("/thumb/{content}/{side}.jpg", include_in_schema=False)
    async def thumb(request: Request, live: Answering, content: str, side: int) -> Response:
        mark = f'"{content}-{side}"'
        headers = {"Cache-Control": IMMUTABLE, "ETag": mark}
        if request.headers.get("if-none-match") == mark:
            return Response(status_code=304, headers=headers)
        jpeg = await run_in_threadpool(live.thumbs.kept, content, side)
        if jpeg is None:
            jpeg = await service.showing.run(live.thumbs.get, content, side)
        return Response(jpeg, media_type="image/jpeg", headers=headers)

    @app.get("/query/{name}.jpg", include_in_schema=False)
    def query(live: Answering, name: str) -> Response:
        headers = {"Cache-Control": "private, max-age=3600"}
        return Response(live.queries.image(name), media_type="image/jpeg", headers=headers)

    @app.get("/original/{name:path}", include_in_schema=False)
    async def whole(request: Request, live: Answering, name: str) -> Response:
        if not service.originals and rights_of(request.scope) != "write":
            raise Problem(403, "Originals are not given out to keys that only read.")
        return await service.showing.run(original, request, live, name, keep_metadata=service.keep_metadata)


def _page(app: FastAPI) -> None:
    for screen in (*SCREENS, *(f"{start}{{rest:path}}" for start in DEEP)):
        app.add_api_route(screen, _index, methods=["GET", "HEAD"], include_in_schema=False)
    app.mount("/static", _Static(directory=STATIC), name="static")


def _index(request: Request) -> Response:
    of_map = request.url.path == "/map"
    early = [f'<link rel="preload" as="fetch" crossorigin href="/api/v1/{name}">' for name in FACTS if of_map]
    early += [f'<link rel="modulepreload" href="/static/{name}.js">' for name in (MAP if of_map else SEARCH)]
    text = (STATIC / "index.html").read_text(encoding="utf-8").replace("<!-- first view -->", "\n".join(early))
    return Response(text, media_type="text/html", headers={"Cache-Control": "no-cache"})


class _Static(StaticFiles):
    """Files of the page: asked for again each time, answered with "not modified" as long as they are the same."""

    def file_response(self, full_path: Any, stat_result: Any, scope: Any, status_code: int = 200) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers["Cache-Control"] = "no-cache"
        packs = any(name == b"accept-encoding" and b"gzip" in value for name, value in scope["headers"])
        if not packs or not isinstance(response, FileResponse):
            return response
        kept = {name: value for name, value in response.headers.items() if name != "content-length"}
        body = _packed(str(full_path), stat_result.st_mtime_ns)
        return Response(body, headers={**kept, "Content-Encoding": "gzip", "Vary": "Accept-Encoding"})


@lru_cache(maxsize=200)
def _packed(path: str, _changed: int) -> bytes:
    return gzip.compress(Path(path).read_bytes(), mtime=0)
