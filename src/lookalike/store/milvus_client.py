"""One collection of one Milvus server through pymilvus, with its errors as sentences."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator
from typing import Any

from lookalike.core.errors import LookalikeError, Unavailable
from lookalike.store.milvus_filters import KEY, TOKEN, VECTOR, Address

CONNECT, SECONDS, BUILD = 10.0, 120.0, 3600.0  # how long an answer may take
STRONG = "Strong"
NO_COLLECTION = 100  # the server's number for it
# A server that comes back is found at once: channels do not share the growing pauses between their attempts.
RECONNECT = {"grpc.use_local_subchannel_pool": 1, "grpc.max_reconnect_backoff_ms": 2000}


class Client:
    """What `MilvusStore` asks of its collection."""

    def __init__(self, address: Address, name: str, client: Any) -> None:
        self.address, self.name, self._client = address, name, client

    def probe(self) -> None:
        """Ask for anything: a wrong password or database is told now."""
        with self._explained():
            self._client.has_collection(self.name, timeout=SECONDS)

    def make(self, dim: int) -> None:
        """Create the collection with its graph's index, and load it."""
        from pymilvus import DataType, MilvusClient

        schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=True)
        schema.add_field(KEY, DataType.VARCHAR, is_primary=True, max_length=36)
        schema.add_field(VECTOR, DataType.FLOAT_VECTOR, dim=dim)
        index = MilvusClient.prepare_index_params()
        graph = {"M": 16, "efConstruction": 200}
        index.add_index(VECTOR, index_type="HNSW", metric_type="IP", params=graph)  # rows have length 1: cosines
        with self._explained():
            self._client.create_collection(self.name, schema=schema, consistency_level=STRONG, timeout=SECONDS)
            self._client.create_index(self.name, index, timeout=SECONDS, sync=False)  # there is nothing to wait for yet
            self._client.load_collection(self.name, timeout=SECONDS)

    def ready(self, dim: int) -> None:
        """Check that the collection is there and ours, and have it loaded."""
        with self._explained():
            fields = {
                field["name"]: field for field in self._client.describe_collection(self.name, timeout=SECONDS)["fields"]
            }
            width = fields.get(VECTOR, {}).get("params", {}).get("dim")
            if width is None or int(width) != dim:
                raise LookalikeError(
                    f"The collection `{self.name}` at {self.address.server} holds vectors of {width} numbers, not of "
                    f"{dim}: it is not this index's any more. Purge the index and make it again."
                )
            self._client.load_collection(self.name, timeout=SECONDS)

    def drop(self) -> None:
        with self._explained():
            self._client.drop_collection(self.name, timeout=SECONDS)

    def upsert(self, rows: list[dict[str, Any]]) -> None:
        with self._explained():
            self._client.upsert(self.name, rows, timeout=SECONDS)

    def delete(self, expression: str) -> None:
        with self._explained():
            self._client.delete(self.name, filter=expression, timeout=SECONDS)

    def query(self, expression: str, fields: list[str], limit: int) -> list[dict[str, Any]]:
        with self._explained():
            found: list[dict[str, Any]] = self._client.query(
                self.name, expression, output_fields=fields, limit=limit, consistency_level=STRONG, timeout=SECONDS
            )
        return found

    def count(self, expression: str) -> int:
        with self._explained():
            found = self._client.query(
                self.name, expression, output_fields=["count(*)"], consistency_level=STRONG, timeout=SECONDS
            )
        return int(found[0]["count(*)"])

    def search(self, queries: list[Any], expression: str, k: int, width: int) -> Any:
        with self._explained():
            return self._client.search(
                self.name,
                queries,
                filter=expression,
                limit=k,
                output_fields=["$meta"],
                search_params={"metric_type": "IP", "params": {"ef": width}},
                consistency_level=STRONG,
                timeout=SECONDS,
            )

    def build(self) -> None:
        """Close the segments that are still growing, and wait until all of them have their graph."""
        with self._explained():
            self._client.flush(self.name, timeout=BUILD)
            end = time.monotonic() + BUILD
            while rows := int(self._client.describe_index(self.name, VECTOR)["pending_index_rows"]):
                if time.monotonic() > end:
                    raise Unavailable(
                        f"The Milvus server at {self.address.server} has not built the graph of {rows:,} rows in an "
                        "hour; nothing is lost: look at its log, and index again."
                    )
                time.sleep(0.2)
            self._client.refresh_load(self.name, timeout=BUILD)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        with explained(self.address, self.name):
            yield


@contextlib.contextmanager
def connected(address: Address, name: str) -> Iterator[Client]:
    """A connection of its own, closed in the end."""
    try:
        from pymilvus import MilvusClient
    except ImportError as error:
        raise LookalikeError("A Milvus server needs a client here: pip install 'lookalike[milvus]'.") from error
    for logger in ("pymilvus", "pymilvus.milvus_client"):  # it prints every error before it raises it
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    with explained(address, name):
        client = MilvusClient(
            address.uri,
            token=os.environ.get(TOKEN, ""),
            db_name=address.database,
            timeout=CONNECT,
            dedicated=True,
            grpc_options=RECONNECT,
        )
    try:
        yield Client(address, name, client)
    finally:
        client.close()


@contextlib.contextmanager
def explained(address: Address, name: str) -> Iterator[None]:
    """Errors that are no bug of ours as sentences; the rest keeps its traceback."""
    import grpc
    from pymilvus.exceptions import MilvusException

    try:
        yield
    except (MilvusException, grpc.RpcError) as error:
        found = _sentence(address, name, error)
        if found is None:
            raise
        raise found from error


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and what it came from; pymilvus raises errors from themselves."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        yield error
        seen.append(error)
        error = error.__cause__ if error.__cause__ not in (None, error) else error.__context__


def _sentence(address: Address, name: str, error: BaseException) -> LookalikeError | None:
    """What an error means, by the status at its root, else by the server's words."""
    import grpc

    server, text = address.server, str(error)
    status = next((root.code() for root in _chain(error) if isinstance(root, grpc.RpcError)), None)
    if status in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        return LookalikeError(
            f"The Milvus server at {server} refuses the user or the password: set {TOKEN}=USER:PASSWORD."
        )
    if status in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNIMPLEMENTED):
        return Unavailable(f"No Milvus server answers at {server}: start it, or check the address.")
    if "not found" in text and "database" in text:
        return LookalikeError(f"The Milvus server at {server} has no database `{address.database}`: make it first.")
    if getattr(error, "code", None) == NO_COLLECTION:
        return LookalikeError(
            f"The Milvus server at {server} does not have the collection `{name}` any more: purge the index and make "
            "it again, or restore a backup."
        )
    if "exceeds max length" in text or "larger than max" in text:
        return LookalikeError(
            "The columns of an image take more room than a Milvus server stores for one row (64 kB): leave out the "
            "longest column of the table."
        )
    if "quota exceeded" in text or "deny to write" in text:
        return LookalikeError(
            f"The Milvus server at {server} has no room left; what was stored before is safe. Give it more memory or "
            "disk, and go on."
        )
    return None
