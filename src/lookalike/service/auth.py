"""Authentication and rights: API keys, browser sessions, and the right each request needs."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import secrets
import sqlite3
import threading
import time
from dataclasses import asdict, astuple, dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from lookalike.core import folders
from lookalike.core.database import FILE, Database, user_database
from lookalike.core.errors import LookalikeError, choose

COOKIE = "lookalike_session"
RIGHTS = ("read", "write")
MAX_SESSIONS = 1_000
SESSION_SECONDS = 30 * 86_400
TIME = "%Y-%m-%dT%H:%M:%S%z"
SCHEMA = (
    "CREATE TABLE IF NOT EXISTS key(id TEXT PRIMARY KEY, name TEXT UNIQUE, rights TEXT, hash TEXT UNIQUE, "
    "created TEXT, used TEXT)"
)
# Open to everybody: the page itself, which then asks for a key, and the health check.
PUBLIC_PATHS = ("/static/", "/health", "/api/v1/session")
SCREENS = ("/", "/reports", "/map", "/browse", "/duplicates", "/runs", "/settings", "/api")
SCREEN_PREFIXES = ("/duplicates/", "/runs/")  # screens with addresses below them
QUERY_PATHS = ("/api/v1/search", "/api/v1/browse/export")


@dataclass
class Key:
    """An API key without its secret.

    Args:
        id: Short random id, for `lookalike keys revoke`.
        name: Name given by the user.
        rights: `read` or `write`.
        hash: SHA-256 of the secret; the secret has 32 random bytes, so no slower hash is needed.
        created: Time of creation.
        used: Time of the last use.
    """

    id: str
    name: str
    rights: str
    hash: str
    created: str
    used: str = ""

    def public(self) -> dict[str, str]:
        """All fields except the hash."""
        return {name: value for name, value in asdict(self).items() if name != "hash"}


class KeyStore:
    """The API keys of this user, stored as hashes in the user's database; a revoked key is refused at once.

    Args:
        required: Whether every client needs a key.
    """

    def __init__(self, *, required: bool = False) -> None:
        self.required = required
        self._lock = threading.RLock()
        self._database: Database | None = None  # open for reading
        self._used: dict[str, str] = {}
        self._sessions: dict[str, tuple[str, float]] = {}  # hash of the cookie -> key id, expiry

    def _keys(self) -> list[Key]:
        path = folders.home() / FILE
        with self._lock:
            if self._database is None and path.exists():
                self._database = Database(path)
            rows = self._database.fetch("SELECT * FROM key ORDER BY rowid", optional=True) if self._database else ()
            return [Key(*row) for row in rows]

    def _write(self, statement: str, *values: str) -> None:
        with contextlib.closing(user_database(SCHEMA)) as database, database.transaction() as connection:
            connection.execute(statement, values)

    def list(self) -> list[Key]:
        """All keys, with the time of their last use."""
        return [replace(key, used=max(key.used, self._used.get(key.id, ""))) for key in self._keys()]

    def create(self, name: str, rights: str = "read") -> tuple[Key, str]:
        """Create a key with a name of 1 to 60 characters; returns it with its secret, which is not stored."""
        choose(rights, RIGHTS, "a right of a key")
        name = " ".join(name.split())
        if not 1 <= len(name) <= 60 or not name.isprintable():
            raise LookalikeError("A key needs a name of 1 to 60 characters.")
        secret = f"lk_{secrets.token_urlsafe(32)}"
        key = Key(secrets.token_hex(4), name, rights, _hash(secret), time.strftime(TIME))
        try:
            self._write("INSERT INTO key VALUES (?, ?, ?, ?, ?, ?)", *astuple(key))
        except sqlite3.IntegrityError:
            raise LookalikeError("There is already a key of this name: choose another, or revoke that one.") from None
        return key, secret

    def revoke(self, name: str) -> Key:
        """Delete a key by its id or name, and return it."""
        keys = self._keys()
        match = next((key for key in keys if key.id == name), None) or next((k for k in keys if k.name == name), None)
        if match is None:
            raise LookalikeError(f"There is no key `{name}`: `lookalike keys ls` lists them with their ids.")
        self._write("DELETE FROM key WHERE id = ?", match.id)
        return match

    def verify(self, secret: str) -> Key | None:
        """The key of a secret, or None. All keys are compared in constant time, so timing reveals nothing."""
        digest = _hash(secret)
        matches = [key for key in self._keys() if hmac.compare_digest(digest, key.hash)]
        self._used |= {key.id: time.strftime(TIME) for key in matches}
        return matches[0] if matches else None

    def open_session(self, key: Key) -> str:
        """A cookie value that stands for a key until the server ends or the key is revoked."""
        token = secrets.token_urlsafe(32)
        with self._lock:
            now = time.time()
            self._sessions = {t: s for t, s in self._sessions.items() if s[1] > now}
            while len(self._sessions) >= MAX_SESSIONS:
                self._sessions.pop(next(iter(self._sessions)))
            self._sessions[_hash(token)] = (key.id, now + SESSION_SECONDS)
        return token

    def session_key(self, token: str) -> Key | None:
        """The key behind a session's cookie value, or None."""
        name, expires = self._sessions.get(_hash(token), ("", 0.0))
        return next((key for key in self._keys() if key.id == name), None) if expires > time.time() else None

    def close_session(self, token: str) -> None:
        """End a session."""
        self._sessions.pop(_hash(token), None)

    def close(self) -> None:
        """Store when keys were last used, and close the database."""
        with self._lock:
            for name, used in self._used.items():
                self._write("UPDATE key SET used = max(used, ?) WHERE id = ?", used, name)
            self._used.clear()
            if self._database is not None:
                self._database.close()
                self._database = None


def rights_of(scope: Any) -> str:
    """Rights of a request (`none`, `read` or `write`), as `authenticate` decided."""
    return str(scope.get("rights", "none"))


def authenticate(keys: KeyStore, headers: dict[bytes, bytes]) -> tuple[str, str]:
    """Rights of a request (`none`, `read` or `write`) by its key or session cookie, and the id of the key if any."""
    from starlette.requests import cookie_parser

    if not keys.required:
        return "write", ""
    scheme, _, secret = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    key = keys.verify(secret.strip()) if scheme.lower() == "bearer" and secret else None
    if key is None:
        host, jar = (headers.get(name, b"").decode("latin-1") for name in (b"host", b"cookie"))
        key = keys.session_key(cookie_parser(jar).get(cookie_name(host), ""))
    return (key.rights, key.id) if key is not None else ("none", "")


def cookie_name(host: str) -> str:
    """Name of a server's cookie; it contains the port, since browsers share cookies among all ports of a host."""
    try:
        port = urlsplit(f"//{host}").port
    except ValueError:
        port = None
    return f"{COOKIE}_{port}" if port else COOKIE


def required_rights(method: str, path: str) -> str:
    """The right that a request needs: `none`, `read` or `write`."""
    is_screen = method in ("GET", "HEAD") and (path in SCREENS or path.startswith(SCREEN_PREFIXES))
    if is_screen or path.startswith(PUBLIC_PATHS):
        return "none"
    if path.startswith("/api/v1/keys"):
        return "write"
    is_query = (method == "POST" and path in QUERY_PATHS) or path.startswith("/api/v1/queries/")
    return "read" if method in ("GET", "HEAD", "OPTIONS") or is_query else "write"


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
