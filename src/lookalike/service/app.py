"""The app: the API, images, the page, and the guards around them."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles
from uvicorn.protocols.http.h11_impl import H11Protocol

from lookalike._version import __version__
from lookalike.service import api
from lookalike.service.api.common import Answering
from lookalike.service.auth import SCREEN_PREFIXES, SCREENS, rights_of
from lookalike.service.http_errors import Problem, install_error_handlers
from lookalike.service.image_files import original
from lookalike.service.middleware import REPORT_POLICY, Metrics, RequestGuard, RequestLog
from lookalike.service.state import Service

STATIC = Path(__file__).parent / "static"
HEALTH = 3.0  # seconds: whatever watches over the server waits for little longer
# What each first view is made of is fetched beside the page's own modules, not after them.
SEARCH = ("components/grid", "components/score", "views/search")
MAP = ("views/map", "map/points", "map/paint_cpu", "map/canvas", "map/tiles")
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
    install_error_handlers(app)
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

    app.add_middleware(RequestGuard, service=service, hosts=hosts)
    app.add_middleware(RequestLog, metrics=metrics)
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
    for screen in (*SCREENS, *(f"{start}{{rest:path}}" for start in SCREEN_PREFIXES)):
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


HEAD = 30.0  # seconds for the head of a request, from the first byte or the beginning of the connection
CONNECTIONS = 500  # a process has about a thousand files and sockets in all
ENDING = 5  # seconds for the requests that are being answered when the server is to end; Docker waits for ten


class Connection(H11Protocol):
    """uvicorn's, but nobody keeps it who does not ask."""

    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS:
            transport.close()
        else:
            self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._wait()
        else:
            self._heard()

    def connection_lost(self, exc: Exception | None) -> None:
        self._heard()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self._waiting is None:
            self._waiting = self.loop.call_later(HEAD, self.timeout_keep_alive_handler)

    def _heard(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None


class Server(uvicorn.Server):
    """uvicorn's, but it does not send itself the signal again that ended it: to whoever counts Ctrl-Cs
    (core/interrupts.py) that was a second one, and the process ended before anything was tidied up."""

    struck: int | None = None

    def __init__(self, app: Any, *, ending: int = ENDING) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=Connection,
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=15,
                timeout_graceful_shutdown=ending,
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: Any) -> None:
        self.struck = sig
        super().handle_exit(sig, frame)
