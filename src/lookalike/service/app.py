"""The web application: API, images and page behind the middleware, and the HTTP server that runs it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import h11
import uvicorn
from anyio import to_thread
from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.middleware.gzip import GZipMiddleware
from fastapi.staticfiles import StaticFiles
from uvicorn.protocols.http.h11_impl import H11Protocol

from lookalike._version import __version__
from lookalike.service import api, limits
from lookalike.service.api.common import IMMUTABLE, IndexDep, ServiceDep, in_pool
from lookalike.service.auth import SCREEN_PREFIXES, SCREENS, rights_of
from lookalike.service.http_errors import Problem, install_error_handlers
from lookalike.service.image_files import original
from lookalike.service.middleware import REPORT_POLICY, Metrics, RequestGuard, RequestLog
from lookalike.service.schemas import describe
from lookalike.service.state import Service
from lookalike.service.uploads import MIN_BYTES_PER_SECOND

STATIC = Path(__file__).parent / "static"
HEALTH_SECONDS = 3.0  # a health check does not wait much longer
# Modules of the first view, preloaded in parallel with the page's own modules.
SEARCH = ("components/grid", "components/score", "views/search")
MAP = ("views/map", "map/points", "map/paint_cpu", "map/canvas", "map/tiles")
FACTS = ("info", "map", "map/now.bin")  # the data of the map's first paint
GRACE_SECONDS = 0.5  # of silence that a connection may have even if there are many
HEADER_SECONDS = 10.0  # for the header of a request, from the first byte or the start of the connection
WRITE_SECONDS = 30.0  # in which a client takes at least as many bytes of an answer as a slow line lets through
SHUTDOWN_SECONDS = 5  # for requests that are being answered; Docker waits for ten


def create_app(service: Service, *, hosts: frozenset[str] | None = None, cors: frozenset[str] = frozenset()) -> FastAPI:
    """Create the web application of a service.

    Args:
        service: The service.
        hosts: Host names that are answered; None answers all.
        cors: Origins of web pages elsewhere that may use the API.

    Returns:
        An ASGI application, for uvicorn or a test client.

    Example:
        >>> from lookalike.service import create_app
        >>> app = create_app(service)  # doctest: +SKIP
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        to_thread.current_default_thread_limiter().total_tokens = limits.max_threads(40)
        yield
        service.close()

    # FastAPI's own documentation pages load scripts from other sites; /openapi.json stays.
    app = FastAPI(title="lookalike", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan)
    described = app.openapi
    app.openapi = lambda: app.openapi_schema or describe(described())  # type: ignore[method-assign]
    app.router.redirect_slashes = False  # redirects would repeat the Host header
    app.state.service = service
    metrics = Metrics(service)
    install_error_handlers(app)
    for router in api.ROUTERS:
        app.include_router(router)
    _add_images(app)
    for screen in (*SCREENS, *(f"{prefix}{{rest:path}}" for prefix in SCREEN_PREFIXES)):
        app.add_api_route(screen, _index_page, methods=["GET", "HEAD"], include_in_schema=False)
    app.mount("/static", GZipMiddleware(StaticFiles(directory=STATIC)), name="static")

    @app.api_route("/health", methods=["GET", "HEAD"], include_in_schema=False)
    async def health() -> dict[str, Any]:
        try:
            async with asyncio.timeout(HEALTH_SECONDS):
                return {"status": "ok", "images": await service.health_pool.run(lambda: service.index.store.count())}
        except TimeoutError:
            raise Problem(503, "The index does not answer. Try again in 5 s.", retry_after=5) from None

    @app.get("/metrics", include_in_schema=False)
    def prometheus() -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")

    @app.get("/reports/{name}", include_in_schema=False)
    def report(name: str) -> Response:
        headers = {"Content-Security-Policy": REPORT_POLICY}
        return Response(service.reports.html(name), media_type="text/html", headers=headers)

    app.add_middleware(RequestGuard, service=service, hosts=hosts, cors=cors)
    app.add_middleware(RequestLog, metrics=metrics)
    return app


def _add_images(app: FastAPI) -> None:
    @app.get("/thumb/{content}/{side}.jpg", include_in_schema=False)
    async def thumbnail(request: Request, service: ServiceDep, live: IndexDep, content: str, side: int) -> Response:
        etag = f'"{content}-{side}"'
        headers = IMMUTABLE | {"ETag": etag}
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=304, headers=headers)
        cached = await run_in_threadpool(live.thumbnails.cached, content, side)
        jpeg = cached or await service.image_pool.run(live.thumbnails.get, content, side)
        return Response(jpeg, media_type="image/jpeg", headers=headers)

    @app.get("/query/{name}.jpg", include_in_schema=False)
    def query_image(live: IndexDep, name: str) -> Response:
        headers = {"Cache-Control": "private, max-age=3600"}
        return Response(live.queries.image(name), media_type="image/jpeg", headers=headers)

    @app.get("/original/{name:path}", include_in_schema=False)
    @in_pool("image_pool")
    def original_image(request: Request, service: ServiceDep, live: IndexDep, name: str) -> Response:
        if not service.originals and rights_of(request.scope) != "write":
            raise Problem(403, "Originals are not available to keys that can only read.")
        return original(request, live, name, keep_metadata=service.keep_metadata)


def _index_page(request: Request) -> Response:
    is_map = request.url.path == "/map"
    preload = [f'<link rel="preload" as="fetch" crossorigin href="/api/v1/{name}">' for name in FACTS if is_map]
    preload += [f'<link rel="modulepreload" href="/static/{name}.js">' for name in (MAP if is_map else SEARCH)]
    text = (STATIC / "index.html").read_text(encoding="utf-8").replace("<!-- first view -->", "\n".join(preload))
    return Response(text, media_type="text/html")


class Connection(H11Protocol):
    """uvicorn's HTTP connection with limits on their number and on clients that neither send nor read."""

    _timeout: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    last_data = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.last_data = self.loop.time()
        self._timeout = self.loop.call_later(HEADER_SECONDS, self.timeout_keep_alive_handler)
        if len(self.connections) > limits.max_connections():
            self._make_room()

    def _make_room(self) -> None:
        """Close a connection that waits for its client: of the client with most of them, the longest silent.

        A client that has just connected gets its time, until there are twice as many connections.
        """
        connections = [c for c in self.connections if isinstance(c, Connection)]
        crowded = len(connections) > 2 * limits.max_connections()
        silent_since = self.loop.time() - (0.0 if crowded else GRACE_SECONDS)
        waiting = [c for c in connections if c.conn.their_state in (h11.IDLE, h11.SEND_BODY)]
        waiting = [c for c in waiting if c.last_data <= silent_since]
        if not waiting and not crowded:
            return
        clients = Counter(c.client[0] if c.client else "" for c in connections)
        victim = max(waiting, key=lambda c: (clients[c.client[0] if c.client else ""], -c.last_data), default=self)
        victim.transport.close()

    def data_received(self, data: bytes) -> None:
        self.last_data = self.loop.time()
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            if self._timeout is None:
                self._timeout = self.loop.call_later(HEADER_SECONDS, self.timeout_keep_alive_handler)
        elif self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._end_if_unread(None)

    def resume_writing(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
        super().resume_writing()

    def _end_if_unread(self, before: int | None) -> None:
        """Close the connection of a client that does not take its answer, which stays in memory until then."""
        left = self.transport.get_write_buffer_size()
        if before is not None and left > before - WRITE_SECONDS * MIN_BYTES_PER_SECOND:
            self.transport.abort()
        else:
            self._unread = self.loop.call_later(WRITE_SECONDS, self._end_if_unread, left)

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._timeout, self._unread):
            if timer is not None:
                timer.cancel()
        if self.cycle is not None:
            self.cycle.scope["client_left"] = True  # type: ignore[typeddict-unknown-key]
        super().connection_lost(exc)


class Server(uvicorn.Server):
    """uvicorn's server, except that it does not send itself the signal that ended it.

    The command line counts Ctrl-Cs: a repeated signal would end the process before it has cleaned up. The signal is
    stored in `exit_signal`.

    Args:
        app: The ASGI application.
        shutdown_seconds: Seconds for requests that are being answered when the server ends.
        proxy: Address of a reverse proxy whose `X-Forwarded-For` and `X-Forwarded-Proto` are believed.
    """

    exit_signal: int | None = None

    def __init__(self, app: Any, *, shutdown_seconds: int = SHUTDOWN_SECONDS, proxy: str | None = None) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=Connection,
                ws="none",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=proxy is not None,  # uvicorn would believe every program on this machine
                forwarded_allow_ips=proxy,
                timeout_keep_alive=15,
                timeout_graceful_shutdown=shutdown_seconds,
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
        self.exit_signal = sig
        service = getattr(getattr(self.config.app, "state", None), "service", None)
        if service is not None:
            service.stop_scans()
        self.should_exit = True  # never `force_exit`, which leaves the index open: the command line counts signals
