"""An index that a running `lookalike serve` has to itself can still be asked: through that service.

Some stores let only one process open them (docs/decisions/0071). The service leaves its address in the index's
folder while it runs; nothing but this machine is ever talked to.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import json
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lookalike.core.errors import LookalikeError
from lookalike.core.files import read_json, write_json

if TYPE_CHECKING:
    import numpy as np

    from lookalike.searching.index_folder import Index
    from lookalike.store import Condition

NAME = "serving.json"
SECONDS = 60.0


@contextlib.contextmanager
def announce(index: Path, host: str, port: int, key: str) -> Iterator[None]:
    """Leave word of a service in the index's folder while the block runs; a kill leaves a word nobody answers to.

    `key` lets whoever may read this file, the owner, search where others need a key of their own.
    """
    place = index / NAME
    with contextlib.suppress(LookalikeError):  # an index that cannot be written to is served all the same
        write_json(place, {"host": _own(host), "port": port, "key": key, "process": os.getpid()}, private=True)
    try:
        yield
    finally:
        with contextlib.suppress(LookalikeError):
            if read_json(place, "address")["process"] == os.getpid():
                place.unlink(missing_ok=True)


def _own(host: str) -> str:
    """A service that listens everywhere is asked at home."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    return host if not address.is_unspecified else "127.0.0.1" if address.version == 4 else "::1"


@dataclass(frozen=True)
class RemoteIndex:
    host: str
    port: int
    key: str

    @classmethod
    def of(cls, index: Index) -> RemoteIndex | None:
        """The service of an index, if one answers; a port may since have become somebody else's."""
        try:
            document = read_json(index.path / NAME, "address")
            service = cls(str(document["host"]), int(document["port"]), str(document["key"]))
            model = service._call("GET", "/api/v1/info")["model"]["fingerprint"]
        except (LookalikeError, KeyError, TypeError, ValueError):
            return None
        return service if model == index.generation.model.fingerprint else None

    def answer(
        self,
        positive: np.ndarray,
        negative: np.ndarray,
        k: int,
        where: Sequence[Condition],
        *,
        same: Collection[str],
        exact: bool,
        words: bool = False,
    ) -> dict[str, Any]:
        """The hits of a question in vectors, as the service's JSON."""
        question = {
            "positive": positive.tolist(),
            "negative": negative.tolist(),
            "k": k,
            "where": [asdict(condition) for condition in where],
            "same": sorted(same),
            "exact": exact,
            "words": words,
        }
        return self._call("POST", "/api/v1/nearest", json.dumps(question))

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
