"""Search an index that a running ``lookalike serve`` has open, through that service.

Some stores can be opened by one process only (docs/design/index-and-stores.md). The service leaves its
address in the index's folder while it runs; only services on this machine are contacted.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lookalike.core.errors import LookalikeError
from lookalike.core.files import read_json, write_json

if TYPE_CHECKING:
    from lookalike.searching.index_folder import Index

NAME = "serving.json"
SECONDS = 60.0


@contextlib.contextmanager
def announce(index: Path, host: str, port: int, key: str) -> Iterator[None]:
    """Leave the address of a service in the index's folder while the block runs.

    A kill leaves the file behind; nothing answers at that address then, or something without the right key.

    Args:
        index: Folder of the index.
        host: Host that the service listens on.
        port: Its port.
        key: A key that lets the owner, who alone may read the file, search a service that requires keys.
    """
    path = index / NAME
    with contextlib.suppress(LookalikeError):  # an index on a read-only disk is served all the same
        write_json(path, {"host": _loopback(host), "port": port, "key": key, "process": os.getpid()}, private=True)
    try:
        yield
    finally:
        with contextlib.suppress(LookalikeError):
            if read_json(path, "address")["process"] == os.getpid():
                path.unlink(missing_ok=True)


def _loopback(host: str) -> str:
    """The loopback address for a service that listens on all interfaces."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    return host if not address.is_unspecified else "127.0.0.1" if address.version == 4 else "::1"


@dataclass(frozen=True)
class RemoteIndex:
    """A running service that has an index open.

    Args:
        host: Host of the service.
        port: Its port.
        key: A key to search with.
    """

    host: str
    port: int
    key: str

    @classmethod
    def of(cls, index: Index) -> RemoteIndex | None:
        """Return the service of an index if it answers and serves the same model; its port may be in other use."""
        try:
            document = read_json(index.path / NAME, "address")
            service = cls(str(document["host"]), int(document["port"]), str(document["key"]))
            model = service._call("GET", "/api/v1/info")["model"]["fingerprint"]
        except (LookalikeError, KeyError, TypeError, ValueError):
            return None
        return service if model == index.generation.model.fingerprint else None

    def search(self, query: dict[str, Any]) -> dict[str, Any]:
        """Run a query (``Query.to_json``) and return the hits as JSON (``Hits.to_json``)."""
        return self._call("POST", "/api/v1/nearest", json.dumps(query))

    def _call(self, method: str, path: str, body: str | None = None) -> dict[str, Any]:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=SECONDS)
        try:
            headers = {"Authorization": f"Bearer {self.key}", "X-Lookalike": "1"}
            connection.request(method, path, body, headers | ({"Content-Type": "application/json"} if body else {}))
            response = connection.getresponse()
            document: dict[str, Any] = json.loads(response.read())
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise LookalikeError(
                f"The `lookalike serve` that holds this index does not answer at {self.host}:{self.port}: "
                "wait for it to end, or stop it."
            ) from error
        finally:
            connection.close()
        if response.status != 200:
            raise LookalikeError(str(document.get("error", {}).get("message", f"The service refused ({path}).")))
        return document
