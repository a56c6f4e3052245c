"""Who may do what: a key in `Authorization`, a session's cookie, or nobody asked because this machine is trusted."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from starlette.requests import cookie_parser

from lookalike.service.keys import Keys

COOKIE = "lookalike_session"
# What anybody gets: the page itself, which then asks for a key; health, for whatever watches over the server.
OPEN = ("/static/", "/health", "/api/v1/session")
SCREENS = ("/", "/reports", "/map", "/duplicates", "/runs", "/settings", "/api")
DEEP = ("/duplicates/", "/runs/")  # screens with addresses below them


def rights_of(scope: Any) -> str:
    """none, read or write; decided once a request by `decide`."""
    return str(scope.get("rights", "none"))


def decide(keys: Keys, headers: dict[bytes, bytes]) -> tuple[str, str]:
    """(rights, who) of a request: who is the key's id, or nothing."""
    if not keys.required:
        return "write", ""
    scheme, _, secret = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    key = keys.check(secret.strip()) if scheme.lower() == "bearer" and secret else None
    if key is None and (token := _cookie(headers)):
        key = keys.session(token)
    return (key.rights, key.id) if key is not None else ("none", "")


def _cookie(headers: dict[bytes, bytes]) -> str:
    host, jar = (headers.get(name, b"").decode("latin-1") for name in (b"host", b"cookie"))
    return cookie_parser(jar).get(cookie_of(host), "")


def cookie_of(host: str) -> str:
    """The name of a server's cookie: browsers send the cookies of all ports of a host to each of them."""
    try:
        port = urlsplit(f"//{host}").port
    except ValueError:
        port = None
    return f"{COOKIE}_{port}" if port else COOKIE


def needed(method: str, path: str) -> str:
    """The right a request needs: none, read or write."""
    if method in ("GET", "HEAD") and (path in SCREENS or path.startswith(DEEP)):
        return "none"
    if path.startswith(OPEN):
        return "none"
    if path.startswith("/api/v1/keys"):
        return "write"
    asking = (method == "POST" and path in ("/api/v1/search", "/api/v1/nearest")) or path.startswith("/api/v1/queries/")
    if method in ("GET", "HEAD", "OPTIONS") or asking:
        return "read"
    return "write"
