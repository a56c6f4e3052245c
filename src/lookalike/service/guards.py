"""Middlewares that every request passes: whom we answer, how much we read, and what a browser may do with it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException

from lookalike.core.files import human_bytes
from lookalike.service.problems import problem

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

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


def _header(scope: Scope, name: bytes) -> str | None:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), None)


def host_of(authority: str) -> str:
    """The name in a Host header, without its port."""
    try:
        return (urlsplit(f"//{authority}").hostname or "").rstrip(".")
    except ValueError:
        return ""


class Guard:
    """Refuses foreign hosts (loopback only) and cross-site writes, bounds bodies, adds the security headers.

    A page of another site can make a browser send requests here, and a name it owns can be made to point at this
    machine: so the Host must be ours, and whatever changes something must come from our own page or from a program.
    """

    def __init__(self, app: App, *, hosts: frozenset[str] | None, body_limit: int) -> None:
        self.app, self.hosts, self.body_limit = app, hosts, body_limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

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
            if read > self.body_limit:
                over = True
                raise HTTPException(413)
            return message

        async def guarded_send(message: MutableMapping[str, Any]) -> None:
            # Whatever the layers between make of the refusal above, the client is told the true reason.
            if not over:
                await add_headers(message)
            elif message["type"] == "http.response.start":
                await problem(413, too_large(None, self.body_limit))(scope, receive, add_headers)

        refusal = self._refusal(scope)
        if refusal is not None:
            await problem(*refusal)(scope, receive, add_headers)
        else:
            await self.app(scope, bounded_receive, guarded_send)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        host = _header(scope, b"host") or ""
        if self.hosts is not None and host_of(host) not in self.hosts:
            return 421, "This server answers only to its own name on this machine."
        if scope["method"] not in ("GET", "HEAD", "OPTIONS"):
            origin, site = _header(scope, b"origin"), _header(scope, b"sec-fetch-site")
            if (origin is not None and urlsplit(origin).netloc != host) or site not in (None, "same-origin", "none"):
                return 403, "Requests from other sites are refused."
        length = _header(scope, b"content-length") or "0"
        if not length.isdigit():
            return 400, "The request's length is not a number."
        if int(length) > self.body_limit:
            return 413, too_large(int(length), self.body_limit)
        return None


def too_large(size: int | None, limit: int) -> str:
    what = f"This picture has {human_bytes(size)}" if size else "This picture is too large"
    return f"{what}; the limit here is {human_bytes(limit)}."
