"""Who may do what: a key in `Authorization`, a session's cookie, or nobody asked because this machine is trusted."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import cookie_parser

from lookalike.core import folders
from lookalike.core.errors import LookalikeError, choose
from lookalike.core.files import read_json, write_json

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


RIGHTS = ("read", "write")
SESSIONS = 1_000
SESSION_SECONDS = 30 * 86_400


@dataclass
class Key:
    id: str
    name: str
    rights: str
    hash: str  # SHA-256; a key is 32 random bytes, so nothing slower is needed
    created: str
    used: str = ""

    def public(self) -> dict[str, str]:
        return {name: value for name, value in asdict(self).items() if name != "hash"}


class Keys:
    """The keys of this user, in `keys.json`; a key revoked by another process is refused at once."""

    def __init__(self, path: Path | None = None, *, required: bool = False) -> None:
        self.path = path or folders.home() / "keys.json"
        self.required = required
        self.house = f"lk_{secrets.token_urlsafe(32)}"  # for the owner's own `lookalike search`, while we run
        self._guard = threading.RLock()
        self._keys: list[Key] = []
        self._stamp: tuple[int, int] | None = None
        self._used: dict[str, str] = {}
        self._sessions: dict[str, tuple[str, float]] = {}  # hash of the cookie -> key id, when it ends

    def list(self) -> list[Key]:
        with self._guard:
            self._load()
            for key in self._keys:
                key.used = max(key.used, self._used.get(key.id, ""))
            return list(self._keys)

    def new(self, name: str, rights: str = "read") -> tuple[Key, str]:
        """A new key and its secret, which is not kept."""
        choose(rights, RIGHTS, "a right of a key")
        name = " ".join(name.split())
        if not 1 <= len(name) <= 60 or not name.isprintable():
            raise LookalikeError("A key needs a name of 1 to 60 characters, to know it by later.")
        secret = f"lk_{secrets.token_urlsafe(32)}"
        with self._guard:
            self._load()
            key = Key(secrets.token_hex(4), name, rights, _hash(secret), time.strftime("%Y-%m-%dT%H:%M:%S%z"))
            self._keys.append(key)
            self._save()
        return key, secret

    def revoke(self, name: str) -> Key:
        """By its id, or by its name if only one has it."""
        with self._guard:
            self._load()
            found = [key for key in self._keys if name in (key.id, key.name)]
            if len(found) != 1:
                what = "There is no key" if not found else "More than one key is called"
                raise LookalikeError(f"{what} `{name}`: `lookalike keys ls` lists them with their ids.")
            self._keys.remove(found[0])
            self._save()
            return found[0]

    def check(self, secret: str) -> Key | None:
        """The key behind a secret. Every key is compared, each in constant time: nothing is learned from the clock."""
        with self._guard:
            self._load()
            mine, found = _hash(secret), None
            if hmac.compare_digest(mine, _hash(self.house)):
                return Key("house", "this machine", "read", "", "")
            for key in self._keys:
                if hmac.compare_digest(mine, key.hash):
                    found = key
            if found is not None:
                self._used[found.id] = time.strftime("%Y-%m-%dT%H:%M:%S%z")
            return found

    def open_session(self, key: Key) -> str:
        """A cookie's value that stands for the key until the server ends or the key is revoked."""
        token = secrets.token_urlsafe(32)
        with self._guard:
            now = time.time()
            self._sessions = {t: s for t, s in self._sessions.items() if s[1] > now}
            while len(self._sessions) >= SESSIONS:
                self._sessions.pop(next(iter(self._sessions)))
            self._sessions[_hash(token)] = (key.id, now + SESSION_SECONDS)
        return token

    def session(self, token: str) -> Key | None:
        with self._guard:
            self._load()
            name, ends = self._sessions.get(_hash(token), ("", 0.0))
            return next((key for key in self._keys if key.id == name and ends > time.time()), None)

    def close_session(self, token: str) -> None:
        with self._guard:
            self._sessions.pop(_hash(token), None)

    def note_used(self) -> None:
        """Write down when keys were last used."""
        with self._guard:
            if self._used and self.list():
                self._save()
                self._used.clear()

    def _load(self) -> None:
        try:
            stat = self.path.stat()
        except FileNotFoundError:
            self._keys, self._stamp = [], None
            return
        stamp = (stat.st_mtime_ns, stat.st_size)
        if stamp != self._stamp:
            document: dict[str, Any] = read_json(self.path, "file of keys")
            self._keys = [Key(**row) for row in document["keys"]]
            self._stamp = stamp

    def _save(self) -> None:
        folders.private_folder(self.path.parent)
        write_json(self.path, {"format": 1, "keys": [asdict(key) for key in self._keys]}, private=True)
        stat = self.path.stat()
        self._stamp = (stat.st_mtime_ns, stat.st_size)


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
