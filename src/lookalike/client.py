"""A client of a server that `lookalike serve` runs; needs neither torch nor the index."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from pydantic import BaseModel

from lookalike.core.errors import LookalikeError
from lookalike.core.files import read_bytes
from lookalike.service.schemas import (
    Card,
    Facet,
    Facets,
    Folders,
    Indexes,
    Info,
    Items,
    Job,
    Keys,
    NewKey,
    Search,
    State,
)

A = TypeVar("A", bound=BaseModel)
RETRIES = 5  # of a request that the server is too busy for


class RequestRefused(LookalikeError):
    """An error message of the server.

    Args:
        status: HTTP status.
        message: The message.
        retry_after: Seconds after which the server may answer.
    """

    def __init__(self, status: int, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.status, self.retry_after = status, retry_after


class Client:
    """The HTTP API of a running server, with typed answers.

    Args:
        url: Address of the server.
        key: A key of `lookalike keys new`, where the server requires one.
        index: Name of one of several indexes; by default the first.
        timeout: Seconds to wait for an answer.

    Example:
        >>> from lookalike.client import Client
        >>> client = Client("http://127.0.0.1:8080")
        >>> client.search("query.jpg", filters=["label=gull"], k=5).hits[0].columns["path"]  # doctest: +SKIP
        'sea/gull-7.jpg'
    """

    def __init__(
        self, url: str = "http://127.0.0.1:8080", *, key: str = "", index: str = "", timeout: float = 60.0
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise LookalikeError(f"`{url}` is no address of a server: it begins with http:// or https://.")
        self.url, self.key, self.timeout = url.rstrip("/"), key, timeout
        self._index = f"/indexes/{quote(index, safe='')}" if index else ""

    def search(
        self,
        image: str | Path | bytes | None = None,
        *,
        like: str | None = None,
        upload: str | None = None,
        text: str | None = None,
        more: Sequence[str] = (),
        less: Sequence[str] = (),
        filters: Sequence[str] = (),
        box: Sequence[float] | None = None,
        k: int = 60,
        keep: bool = False,
    ) -> Search:
        """Search by an image, by images of the index, by an earlier upload, or by a text.

        Args:
            image: An image file or its content.
            like: Id of an image of the index.
            upload: Id of an earlier upload, the `query.id` of its answer.
            text: A text, if `info().text` is true.
            more: Ids of further images to look like.
            less: Ids of images to look unlike.
            filters: Conditions such as `label=gull` or `width>=1000`.
            box: The part of the image that counts: x1, y1, x2, y2 in pixels, or fractions if all are at most 1.
            k: Number of hits.
            keep: Keep an upload for some days, so that it can be searched by again.

        Returns:
            The hits, best first, with a verdict.
        """
        query = {"f": filters, "more": more, "less": less, "k": k, "like": like, "q": upload, "text": text}
        query["box"] = ",".join(map(str, box or ()))
        if image is None:
            return self._send(Search, "/search", query)
        data = image if isinstance(image, bytes) else read_bytes(Path(image).expanduser())
        boundary = uuid.uuid4().hex
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="image"; filename="image"\r\n\r\n'
        body = head.encode() + data + f"\r\n--{boundary}--\r\n".encode()
        kind = f"multipart/form-data; boundary={boundary}"
        return self._send(Search, "/search", query | {"keep": keep}, method="POST", body=body, kind=kind)

    def info(self) -> Info:
        """The index, its model, the limits of the server, and what this client may do."""
        return self._send(Info, "/info")

    def indexes(self) -> Indexes:
        """The indexes of the server."""
        return self._send(Indexes, "/indexes")

    def items(self, count: int = 24, *, filters: Sequence[str] = ()) -> list[Card]:
        """Some images, as different from each other as possible."""
        return self._send(Items, "/items", {"sample": count, "f": filters}).items

    def item(self, name: str) -> Card:
        """An image by its id."""
        return self._send(Card, f"/items/{quote(name)}")

    def facets(self, *, filters: Sequence[str] = ()) -> Facets:
        """The first values of every column with their numbers of images."""
        return self._send(Facets, "/facets", {"f": filters})

    def facet(self, column: str, *, filters: Sequence[str] = (), find: str = "", limit: int = 200) -> Facet:
        """The values of a column, with `find` only those that contain it."""
        return self._send(Facet, f"/facets/{quote(column, safe='')}", {"f": filters, "find": find, "limit": limit})

    def folders(self, under: str = "", *, filters: Sequence[str] = ()) -> Folders:
        """The folders one level below `under`."""
        return self._send(Folders, "/folders", {"under": under, "f": filters})

    def thumbnail(self, card: Card, side: int = 256) -> bytes:
        """A JPEG of an image, with a longer side of 96, 256, 512 or 1024 pixels."""
        return self._read("GET", f"{self._index}/thumb/{card.thumb}/{side}.jpg")

    def original(self, card: Card) -> bytes:
        """The file of an image, if this client may have it."""
        return self._read("GET", f"{self._index}/original/{quote(card.id)}")

    def forget(self, upload: str) -> None:
        """Delete an upload that was kept."""
        self._read("DELETE", self._address(f"/queries/{quote(upload)}", {}))

    def state(self) -> State:
        """The index and its jobs."""
        return self._send(State, "/state")

    def update(self) -> Job:
        """Update the index from its image folder, in the background; see `wait`."""
        return self._send(Job, "/index/update", method="POST")

    def wait(self, job: Job, *, every: float = 0.5) -> Job:
        """Wait until a job has ended; raises `LookalikeError` if the server does not know it any more."""
        while True:
            now = next((one for one in self.state().jobs if (one.id, one.kind) == (job.id, job.kind)), None)
            if now is None:
                raise LookalikeError(
                    f"The server at {self.url} does not know the job `{job.id}` any more: it was started again, or has "
                    "run many other jobs since. `state()` shows the index as it is now."
                )
            if now.state != "running":
                return now
            time.sleep(every)

    def keys(self) -> Keys:
        """The API keys, without their secrets."""
        return self._send(Keys, "/keys")

    def new_key(self, name: str, *, write: bool = False) -> NewKey:
        """Create an API key; its secret is `key` of the answer."""
        body = json.dumps({"name": name, "rights": "write" if write else "read"}).encode()
        return self._send(NewKey, "/keys", method="POST", body=body)

    def revoke_key(self, name: str) -> None:
        """Revoke an API key by its id or name."""
        self._read("DELETE", self._address(f"/keys/{quote(name, safe='')}", {}))

    def _address(self, path: str, query: dict[str, Any]) -> str:
        used = {name: value for name, value in query.items() if value not in (None, "")}
        return f"/api/v1{self._index}{path}{'?' if used else ''}{urlencode(used, doseq=True)}"

    def _send(
        self, answer: type[A], path: str, query: dict[str, Any] | None = None, *, method: str = "GET", **sent: Any
    ) -> A:
        return answer.model_validate_json(self._read(method, self._address(path, query or {}), **sent))

    def _read(self, method: str, address: str, body: bytes | None = None, kind: str = "application/json") -> bytes:
        headers = {"X-Lookalike": "1", "Content-Type": kind}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        request = urllib.request.Request(self.url + address, body, headers, method=method)
        for attempt in range(RETRIES):
            try:
                with urllib.request.urlopen(request, timeout=self.timeout) as answer:  # nosec B310
                    return bytes(answer.read())
            except urllib.error.HTTPError as error:
                refused = _refused(error)
                if refused.status not in (429, 503) or attempt == RETRIES - 1:
                    raise refused from None
                time.sleep(min(refused.retry_after or 1.0, 10.0))
            except OSError as error:
                raise LookalikeError(f"The server at {self.url} does not answer ({error}).") from error
        raise AssertionError("unreachable")


def _refused(error: urllib.error.HTTPError) -> RequestRefused:
    try:
        message = str(json.loads(error.read())["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = f"The server answered {error.code}."
    wait = error.headers.get("Retry-After") or "0"
    return RequestRefused(error.code, message, float(wait) if wait.isdigit() else 0.0)
