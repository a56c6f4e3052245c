"""Middlewares that every request passes: whom we answer, how much we read, and what a browser may do with it."""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
import sys
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from fastapi.responses import JSONResponse
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from lookalike.service.auth import decide, needed
from lookalike.service.http_errors import Problem, problem
from lookalike.service.limits import Buckets, cost
from lookalike.service.uploads import Body, Receive, too_large

if TYPE_CHECKING:
    from lookalike.service.state import Service

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

UPLOAD = "/api/v1/search"
MOVE = "/api/v1/duplicates/move"
RANK = {"none": 0, "read": 1, "write": 2}
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
# A report is a file that anybody may have written: it gets an origin of its own, and no network.
REPORT_POLICY = (
    "sandbox allow-scripts; default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


def host_of(authority: str) -> str:
    """The name in a Host header, without its port."""
    try:
        return (urlsplit(f"//{authority}").hostname or "").rstrip(".")
    except ValueError:
        return ""


class Guard:
    """Whom we answer and how much we read; `scope["ending"]` holds what a request has until it is answered.

    A page of another site can make a browser send requests here, and a name it owns can be made to point at this
    machine: so the Host must be ours on loopback, and whatever changes something must come from our own page or from
    a program, which both send a header that a foreign page cannot.
    """

    def __init__(self, app: App, *, service: Service, hosts: frozenset[str] | None) -> None:
        self.app, self.service, self.hosts = app, service, hosts
        self.buckets = Buckets(service.limits.rate, service.limits.burst)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        limit = self.body_limit(scope["path"])
        body = Body(receive, limit)

        async def add_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                have = {name.lower() for name, _ in message["headers"]}
                extra = [(n.encode(), v.encode()) for n, v in HEADERS.items() if n.encode() not in have]
                message["headers"] = [*message["headers"], *extra]
            await send(message)

        async def guarded_send(message: MutableMapping[str, Any]) -> None:
            # Whatever the layers between make of a refused body, the client is told the true reason.
            if body.refusal is None:
                await add_headers(message)
            elif message["type"] == "http.response.start":
                await body.refusal(scope, receive, add_headers)

        with contextlib.ExitStack() as scope["ending"]:
            refusal, most = self._refusal(scope, limit), self.service.limits.document
            if refusal is None and scope["method"] == "POST" and scope["path"] == UPLOAD:
                try:
                    scope["ending"].enter_context(self.service.asking.place())
                except Problem as busy:
                    refusal, most = problem(busy.status, str(busy), retry_after=busy.retry_after), limit
            if refusal is None:
                await self.app(scope, body, guarded_send)
                return
        # Whoever is refused while still sending may see a broken connection in place of the sentence: what is small
        # is read before it is refused, and so is an image that may come again; the connection stays.
        await body.listen(most)
        await refusal(scope, receive, add_headers)

    def body_limit(self, path: str) -> int:
        """A multipart body is a little larger than the file in it; a thousand groups with long names are no less."""
        limits = self.service.limits
        return limits.upload + 100_000 if path in (UPLOAD, MOVE) else limits.document

    def _refusal(self, scope: Scope, limit: int) -> JSONResponse | None:
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        if self.hosts is not None and host_of(host) not in self.hosts:
            return problem(421, "This server answers only to its own name on this machine.")
        scope["rights"], scope["key"] = decide(self.service.keys, headers)
        # A key may be a family's: each of them has a rate of their own.
        client = f"{scope['key']} {(scope.get('client') or ('',))[0]}"
        wait = self.buckets.wait(client, cost(scope["path"]))
        if wait:
            seconds = max(1, round(wait))
            return problem(429, f"Too many requests at once. Try again in {seconds} s.", retry_after=seconds)
        changes = scope["method"] not in ("GET", "HEAD", "OPTIONS")
        origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site")
        foreign = (origin is not None and _netloc(origin) != host) or site not in (None, b"same-origin", b"none")
        # A link from elsewhere may lead to a screen or an image, but nobody else's page makes us work.
        if foreign and (changes or scope["path"].startswith("/api/")):
            return problem(403, "Requests from other sites are refused.")
        if changes and scope["path"] != UPLOAD and headers.get(b"x-lookalike") != b"1":
            return problem(403, "This request needs the header X-Lookalike: 1.")
        wanted = needed(scope["method"], scope["path"])
        if RANK[wanted] > RANK[scope["rights"]]:
            if scope["rights"] == "none":
                return problem(401, "This server asks for a key.")
            return problem(403, "This key may only read.")
        length = headers.get(b"content-length", b"0").decode("latin-1")
        if not (length.isascii() and length.isdigit()):
            return problem(400, "The request's length is not a number.")
        return problem(413, too_large(int(length), limit)) if int(length) > limit else None


def _netloc(origin: bytes) -> str:
    try:
        return urlsplit(origin.decode("latin-1")).netloc
    except ValueError:
        return ""


access = logging.getLogger("lookalike.access")
_PLAIN = set(logging.LogRecord("", 0, "", 0, "", None, None).__dict__) | {"message", "asctime", "taskName"}
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in record.__dict__.items() if name not in _PLAIN}
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def install(level: int = logging.WARNING) -> None:
    """Our loggers and the server's write JSON lines to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("lookalike", "uvicorn", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)


class Requests:
    """Outermost: counts and times every request, and logs it."""

    def __init__(self, app: App, *, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status, name = time.monotonic(), 500, secrets.token_hex(6)

        async def noted(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", name.encode())]
            await send(message)

        try:
            await self.app(scope, receive, noted)
        finally:
            seconds = time.monotonic() - start
            # The route's pattern, not the address: addresses hold file names, and are without number.
            route = getattr(scope.get("route"), "path", "other")
            method = scope["method"] if scope["method"] in METHODS else "other"
            self.metrics.observe(route, method, status, seconds)
            if access.isEnabledFor(logging.INFO):
                facts = {"id": name, "route": route, "method": method, "status": status}
                access.info("request", extra=facts | {"ms": round(1000 * seconds, 1), "key": scope.get("key", "")})


SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Metrics:
    def __init__(self, service: Service) -> None:
        self.registry = CollectorRegistry()
        labels = ["route", "method", "status"]
        self.requests = Counter("lookalike_requests", "Requests answered", labels, registry=self.registry)
        self.seconds = Histogram(
            "lookalike_request_seconds", "Time to answer", ["route"], registry=self.registry, buckets=SECONDS
        )
        self._gauge("lookalike_images", "Images in the index", lambda: service.index.store.count())
        self._gauge("lookalike_generation", "Generation that answers", lambda: service.index.generation.number)
        self._gauge("lookalike_waiting", "Images that wait for the model", lambda: service.encoder.waiting)
        self._gauge("lookalike_encoded", "Images embedded since the start", lambda: service.encoder.done)
        self._gauge("lookalike_batches", "Batches they went through the model in", lambda: service.encoder.batches)
        self._gauge("lookalike_jobs", "Jobs at work", lambda: int(service.jobs.running() is not None))

    def _gauge(self, name: str, words: str, value: Callable[[], float]) -> None:
        Gauge(name, words, registry=self.registry).set_function(value)

    def observe(self, route: str, method: str, status: int, seconds: float) -> None:
        self.requests.labels(route, method, str(status)).inc()
        self.seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        return bytes(generate_latest(self.registry))
