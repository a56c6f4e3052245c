"""Middleware around every request: the security guard, the access log, and Prometheus metrics."""

from __future__ import annotations

import collections
import contextlib
import json
import logging
import random
import re
import sys
import time
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from ipaddress import ip_address
from typing import Any
from urllib.parse import quote, urlsplit

from fastapi.responses import JSONResponse, Response
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from lookalike.core.errors import LookalikeError
from lookalike.service.auth import authenticate, required_rights
from lookalike.service.http_errors import error_response
from lookalike.service.limits import MAX_REQUESTS, RateLimiter, request_cost
from lookalike.service.state import Service
from lookalike.service.uploads import Receive, RequestBody, too_large

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

INDEX_PATH = re.compile(r"(/api/v1)?/indexes/([^/]+)(/.*)")
UPLOAD_PATH = "/api/v1/search"
MOVE_PATH = "/api/v1/duplicates/move"
RANK = {"none": 0, "read": 1, "write": 2}
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
ANY_ADDRESS = "*"  # among the host names: any IP address, which no foreign domain name can be made to look like
MAX_REPEATS, REPEAT_SECONDS = 5, 30.0  # of one message in the log
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
LATENCY_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)  # seconds

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
# A report is a file that anybody may have written: it gets an origin of its own and no network.
REPORT_POLICY = (
    "sandbox allow-scripts; default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = [  # of answers that have no others of these names
    (b"cache-control", b"no-cache"),
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
]

CORS_HEADERS = [  # of answers that have no others of these names
    (b"cache-control", b"no-cache"),
    (b"access-control-allow-methods", b"GET, POST, DELETE"),
    (b"access-control-allow-headers", b"authorization, content-type, x-lookalike"),
    (b"access-control-expose-headers", b"retry-after, x-request-id"),
    (b"access-control-max-age", b"3600"),
    (b"vary", b"Origin"),
]

access_log, log = logging.getLogger("lookalike.access"), logging.getLogger("lookalike.service")
_STANDARD_FIELDS = set(logging.LogRecord("", 0, "", 0, "", None, None).__dict__) | {"message", "asctime", "taskName"}


class RequestGuard:
    """Checks every request before the API sees it: host, rate, origin, rights, and size of the body.

    A page of another site can make a browser send requests here, and a foreign domain name can be made to resolve to
    this machine. Therefore the `Host` must be ours, and whatever changes something must carry the header
    `X-Lookalike`, which a foreign page cannot set. `scope["exit_stack"]` holds what a request uses until it is
    answered. Pages of the origins in `cors` may use the API as programs do, with a key but without cookies.
    """

    def __init__(
        self, app: App, *, service: Service, hosts: frozenset[str] | None, cors: frozenset[str] = frozenset()
    ) -> None:
        self.app, self.service, self.hosts, self.cors = app, service, hosts, cors
        self.rate_limiter = RateLimiter(service.limits.rate, service.limits.burst)
        self.active: collections.Counter[str] = collections.Counter()  # requests of each client now

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        self._choose_index(scope)
        limit = self.body_limit(scope["path"])
        body = RequestBody(receive, limit)
        origin = dict(scope["headers"]).get(b"origin", b"")
        named = origin.decode("latin-1") in self.cors
        shared = [*CORS_HEADERS, (b"access-control-allow-origin", origin)] if named else []

        async def add_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                headers = [*message["headers"], *shared]
                if self.cors:  # also images, which are fetched without an origin
                    headers.append((b"cross-origin-resource-policy", b"cross-origin"))
                present = {name.lower() for name, _ in headers}
                message["headers"] = headers + [pair for pair in HEADERS if pair[0] not in present]
            await send(message)

        async def guarded_send(message: MutableMapping[str, Any]) -> None:
            # Whatever other layers make of a refused body, the client gets the true reason.
            if body.refusal is None:
                await add_headers(message)
            elif message["type"] == "http.response.start":
                await body.refusal(scope, receive, add_headers)

        with contextlib.ExitStack() as scope["exit_stack"]:
            try:
                preflight = bool(shared) and scope["method"] == "OPTIONS"
                refusal = Response(status_code=204) if preflight else self._refusal(scope, limit)
            except LookalikeError as error:
                log.error("the keys cannot be read", extra={"reason": str(error)})
                refusal = error_response(503, "The keys of this server cannot be read; its log says more.")
            if refusal is None:
                client = _address(scope)
                self.active[client] += 1
                try:
                    await self.app(scope, body, guarded_send)
                finally:
                    self.active[client] -= 1
                    if not self.active[client]:
                        del self.active[client]
                return
        # A client that is refused while still sending may see a broken connection instead of the message: small
        # bodies are read before they are refused, and the connection stays open.
        if "connection" not in refusal.headers:
            await body.drain(self.service.limits.document)
        await refusal(scope, receive, add_headers)

    def _choose_index(self, scope: Scope) -> None:
        """Address one of several indexes: `/api/v1/indexes/NAME/search` is `/api/v1/search` of that index."""
        match = INDEX_PATH.fullmatch(scope["path"])
        if match and (service := self.service.services.get(match[2])):
            scope["service"], scope["path"] = service, f"{match[1] or ''}{match[3]}"
            scope["raw_path"] = quote(scope["path"]).encode()

    def body_limit(self, path: str) -> int:
        """Bytes of a body: a multipart upload, or a list of files to move, may be as large as an image."""
        limits = self.service.limits
        return limits.upload + 100_000 if path in (UPLOAD_PATH, MOVE_PATH) else limits.document

    def _is_ours(self, host: str) -> bool:
        try:
            return self.hosts is None or host in self.hosts or (ANY_ADDRESS in self.hosts and bool(ip_address(host)))
        except ValueError:
            return False

    def _refusal(self, scope: Scope, limit: int) -> JSONResponse | None:
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        if not self._is_ours(host_of(host)):
            message = "This server answers only to its own name; `lookalike serve --host-name` adds one."
            return error_response(421, message)
        if b"transfer-encoding" in headers and b"content-length" in headers:  # a proxy may read it differently
            refusal = error_response(400, "A request has either Transfer-Encoding or Content-Length.")
            refusal.headers["Connection"] = "close"
            return refusal
        scope["rights"], scope["key"] = authenticate(self.service.keys, headers)
        # Several people may share a key: each address has a rate of its own.
        address = _address(scope)
        if self.active[address] >= MAX_REQUESTS and address not in LOOPBACK and scope["path"] != "/health":
            return error_response(429, "Too many requests at the same time. Try again in 1 s.", retry_after=1)
        if wait := self.rate_limiter.wait(f"{scope['key']} {address}", request_cost(scope["path"])):
            seconds = max(1, round(wait))
            return error_response(429, f"Too many requests. Try again in {seconds} s.", retry_after=seconds)
        changes = scope["method"] not in ("GET", "HEAD", "OPTIONS")
        origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site")
        foreign = (origin is not None and _netloc(origin) != host) or site not in (None, b"same-origin", b"none")
        foreign = foreign and (origin or b"").decode("latin-1") not in self.cors
        # A link from another site may lead to a screen or an image, but must not cause work.
        if foreign and (changes or scope["path"].startswith("/api/")):
            return error_response(403, "Requests from other sites are refused.")
        if changes and scope["path"] != UPLOAD_PATH and headers.get(b"x-lookalike") != b"1":
            return error_response(403, "This request needs the header X-Lookalike: 1.")
        if RANK[required_rights(scope["method"], scope["path"])] > RANK[scope["rights"]]:
            if scope["rights"] == "none":
                return error_response(401, "This server requires a key.")
            return error_response(403, "This key can only read.")
        length = headers.get(b"content-length", b"0").decode("latin-1")
        if not (length.isascii() and length.isdigit()):
            return error_response(400, "The header Content-Length is not a number.")
        return error_response(413, too_large(int(length), limit)) if int(length) > limit else None


class Throttle(logging.Filter):
    """Drops warnings and errors that repeat too often; the next one that passes says how many were `dropped`."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        key = (record.name, str(record.msg)[:100])
        start, count = self._counts.get(key, (record.created, 0))
        if record.created - start > REPEAT_SECONDS:
            if count > MAX_REPEATS:
                record.dropped = count - MAX_REPEATS
            start, count = record.created, 0
        if len(self._counts) > 1_000:
            self._counts.clear()
        self._counts[key] = (start, count + 1)
        return count < MAX_REPEATS


def host_of(authority: str) -> str:
    """The host name of a `Host` header, without its port."""
    try:
        return (urlsplit(f"//{authority}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _address(scope: Scope) -> str:
    return str((scope.get("client") or ("",))[0])


def _netloc(origin: bytes) -> str:
    try:
        return urlsplit(origin.decode("latin-1")).netloc
    except ValueError:
        return ""


class JsonFormatter(logging.Formatter):
    """Formats a log record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in record.__dict__.items() if name not in _STANDARD_FIELDS}
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def install_logging(level: int = logging.WARNING) -> None:
    """Write our log and the server's to stderr, one line of JSON per record."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    handler.addFilter(Throttle())
    for name in ("lookalike", "uvicorn", "uvicorn.error", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)


class RequestLog:
    """Outermost middleware: times, counts and logs every request.

    Addresses contain file names and search texts, headers contain keys: neither is logged. A line has the pattern of
    the route, method, status, time, and an id that the answer carries as `X-Request-Id`.
    """

    def __init__(self, app: App, *, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status, request_id = time.monotonic(), 500, f"{random.getrandbits(48):012x}"

        async def send_with_id(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            await self.app(scope, receive, send_with_id)
        finally:
            seconds = time.monotonic() - start
            route = getattr(scope.get("route"), "path", "other")
            method = scope["method"] if scope["method"] in METHODS else "other"
            self.metrics.observe(route, method, status, seconds)
            line = {"id": request_id, "route": route, "method": method, "status": status}
            access_log.info("request", extra=line | {"ms": round(1000 * seconds, 1), "key": scope.get("key", "")})


class Metrics:
    """Prometheus metrics of a service, in a registry of their own so that two apps can run in one process."""

    def __init__(self, service: Service) -> None:
        self.registry = CollectorRegistry()
        labels = ["route", "method", "status"]
        self.requests = Counter("lookalike_requests", "Requests answered", labels, registry=self.registry)
        self.seconds = Histogram(
            "lookalike_request_seconds", "Time to answer", ["route"], registry=self.registry, buckets=LATENCY_BUCKETS
        )
        gauges: dict[str, tuple[str, Callable[[Service], float]]] = {
            "images": ("Images in the index", lambda service: service.index.store.count()),
            "generation": ("Live generation", lambda service: service.index.generation.number),
            "waiting": ("Images waiting for the model", lambda service: service.encoder.waiting),
            "encoded": ("Images embedded since the start", lambda service: service.encoder.encoded),
            "batches": ("Batches embedded since the start", lambda service: service.encoder.batches),
            "jobs": ("Jobs running", lambda service: int(service.jobs.running() is not None)),
        }
        for name, (help_text, value) in gauges.items():
            gauge = Gauge(f"lookalike_{name}", help_text, ["index"], registry=self.registry)
            for index, one in service.services.items():
                gauge.labels(index).set_function(partial(value, one))

    def observe(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count a request and its duration."""
        self.requests.labels(route, method, str(status)).inc()
        self.seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return bytes(generate_latest(self.registry))
