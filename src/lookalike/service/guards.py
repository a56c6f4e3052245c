"""Middlewares that every request passes: whom we answer, how much we read, and what a browser may do with it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from lookalike.core.files import human_bytes
from lookalike.service.access import decide, needed
from lookalike.service.limits import Buckets
from lookalike.service.problems import problem

if TYPE_CHECKING:
    from lookalike.service.state import Service

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

UPLOAD = "/api/v1/search"
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
    """Whom we answer and how much we read; a request that passes keeps one generation of the index to its end.

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

        read, over = 0, False

        async def add_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                have = {name.lower() for name, _ in message["headers"]}
                extra = [(n.encode(), v.encode()) for n, v in HEADERS.items() if n.encode() not in have]
                message["headers"] = [*message["headers"], *extra]
            await send(message)

        async def bounded_receive() -> MutableMapping[str, Any]:
            nonlocal read, over
            message = await receive()
            read += len(message.get("body", b""))
            if read > limit:
                over = True
                raise HTTPException(413)
            return message

        async def guarded_send(message: MutableMapping[str, Any]) -> None:
            # Whatever the layers between make of the refusal above, the client is told the true reason.
            if not over:
                await add_headers(message)
            elif message["type"] == "http.response.start":
                await problem(413, too_large(None, limit))(scope, receive, add_headers)

        refusal = self._refusal(scope, limit)
        if refusal is not None:
            await self._listen_to_the_end(receive)
            await refusal(scope, receive, add_headers)
            return
        with self.service.changing.lease() as scope["live"]:
            await self.app(scope, bounded_receive, guarded_send)

    async def _listen_to_the_end(self, receive: Receive) -> None:
        """Whoever is refused while still sending may see a broken connection in place of the sentence: what is small
        is read before it is refused, and the connection stays."""
        left, more = self.service.limits.document, True
        while more and left > 0:
            message = await receive()
            left -= len(message.get("body", b""))
            more = message.get("more_body", False)

    def body_limit(self, path: str) -> int:
        """A multipart body is a little larger than the file in it."""
        limits = self.service.limits
        return limits.upload + 100_000 if path == UPLOAD else limits.document

    def _refusal(self, scope: Scope, limit: int) -> JSONResponse | None:
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        if self.hosts is not None and host_of(host) not in self.hosts:
            return problem(421, "This server answers only to its own name on this machine.")
        scope["rights"], scope["key"] = decide(self.service.keys, headers)
        client = scope["key"] or (scope.get("client") or ("",))[0]
        wait = self.buckets.wait(client)
        if wait:
            seconds = max(1, round(wait))
            return problem(429, f"Too many requests at once. Try again in {seconds} s.", retry_after=seconds)
        if scope["method"] not in ("GET", "HEAD", "OPTIONS"):
            origin, site = headers.get(b"origin"), headers.get(b"sec-fetch-site")
            foreign = origin is not None and _netloc(origin) != host
            if foreign or site not in (None, b"same-origin", b"none"):
                return problem(403, "Requests from other sites are refused.")
            if scope["path"] != UPLOAD and headers.get(b"x-lookalike") != b"1":
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


def too_large(size: int | None, limit: int) -> str:
    what = f"This request has {human_bytes(size)}" if size else "This request is too large"
    return f"{what}; the limit here is {human_bytes(limit)}."
