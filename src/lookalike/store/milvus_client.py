"""One collection of a Milvus server through pymilvus, with errors explained in one line."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from lookalike.core.errors import LookalikeError, Unavailable
from lookalike.store.milvus_filters import KEY, PLAIN_NAME, VECTOR

PORT = 19530
TOKEN = "LOOKALIKE_MILVUS_TOKEN"  # environment variable with USER:PASSWORD

CONNECT, SECONDS, BUILD = 10.0, 120.0, 3600.0  # timeouts in seconds
STRONG = "Strong"
NO_COLLECTION = 100  # error code of the server
# Reconnect at once when a server comes back: channels do not share their growing pauses between attempts.
RECONNECT = {"grpc.use_local_subchannel_pool": 1, "grpc.max_reconnect_backoff_ms": 2000}


@dataclass(frozen=True)
class Address:
    """Address of a Milvus server, such as ``milvus://host:19530/database?tls``.

    Args:
        host: Host name or IP address.
        port: Port.
        database: Name of the database; empty for the default one.
        tls: Whether to connect by TLS.
    """

    host: str
    port: int = PORT
    database: str = ""
    tls: bool = False

    @property
    def server(self) -> str:
        """Host and port."""
        return f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    @property
    def uri(self) -> str:
        """The address as pymilvus takes it."""
        return f"{'https' if self.tls else 'http'}://{self.server}"

    def __str__(self) -> str:
        return f"milvus://{self.server}{f'/{self.database}' * bool(self.database)}{'?tls' * self.tls}"


def parse_address(text: str) -> Address:
    """Parse an address as users write it.

    Args:
        text: ``milvus://HOST[:PORT][/DATABASE][?tls]``.

    Returns:
        The address.

    Raises:
        LookalikeError: If it is not an address, or contains a password (which would be stored and shown).

    Example:
        >>> str(parse_address("milvus://localhost"))
        'milvus://localhost:19530'
    """
    parts = urlsplit(text)
    if "@" in parts.netloc:
        raise LookalikeError(
            "An address must not contain a password, because it is stored and shown: leave out the part before the `@` "
            f"and set the environment variable {TOKEN}=USER:PASSWORD."
        )
    try:
        host, port = parts.hostname, parts.port or PORT
    except ValueError:
        host, port = None, PORT
    database = parts.path.strip("/")
    valid = (
        host and (not database or PLAIN_NAME.fullmatch(database)) and parts.query in ("", "tls") and not parts.fragment
    )
    if parts.scheme != "milvus" or not host or not valid:
        shown = f"{parts.scheme}://{parts.netloc}"  # the rest may contain a secret
        raise LookalikeError(f"`{shown}` is not the address of a Milvus server: write milvus://HOST:{PORT}[/DATABASE].")
    return Address(host, port, database, parts.query == "tls")


class Client:
    """The operations on a collection that :class:`MilvusStore` needs.

    Args:
        address: Address of the server.
        name: Name of the collection.
        client: A ``pymilvus.MilvusClient``.
    """

    def __init__(self, address: Address, name: str, client: Any) -> None:
        self.address, self.name, self._client = address, name, client

    def call(self, operation: str, *arguments: Any, timeout: float = SECONDS, **options: Any) -> Any:
        """Run an operation of pymilvus on the collection."""
        with explained(self.address, self.name):
            return getattr(self._client, operation)(self.name, *arguments, timeout=timeout, **options)

    def make(self, dim: int) -> None:
        """Create the collection with its graph index, and load it."""
        from pymilvus import DataType, MilvusClient

        schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=True)
        schema.add_field(KEY, DataType.VARCHAR, is_primary=True, max_length=36)
        schema.add_field(VECTOR, DataType.FLOAT_VECTOR, dim=dim)
        index = MilvusClient.prepare_index_params()
        graph = {"M": 16, "efConstruction": 200}
        index.add_index(VECTOR, index_type="HNSW", metric_type="IP", params=graph)  # of unit vectors: cosines
        self.call("create_collection", schema=schema, consistency_level=STRONG)
        self.call("create_index", index, sync=False)  # it is empty
        self.call("load_collection")

    def ready(self, dim: int) -> None:
        """Check that the collection exists with the right dimension, and load it."""
        fields = {field["name"]: field for field in self.call("describe_collection")["fields"]}
        width = fields.get(VECTOR, {}).get("params", {}).get("dim")
        if width is None or int(width) != dim:
            raise LookalikeError(
                f"The collection `{self.name}` at {self.address.server} has vectors of dimension {width}, not {dim}: "
                "it no longer belongs to this index. Purge the index and make it again."
            )
        self.call("load_collection")

    def query(self, expression: str, fields: list[str], limit: int | None = None) -> list[dict[str, Any]]:
        """Return rows that meet a filter, or their number (the field ``count(*)``)."""
        options: dict[str, Any] = {"output_fields": fields, "consistency_level": STRONG}
        options |= {"limit": limit} if limit else {}
        rows: list[dict[str, Any]] = self.call("query", expression, **options)
        return rows

    def build(self) -> None:
        """Close growing segments, and wait until all segments have their graph."""
        self.call("flush", timeout=BUILD)
        end = time.monotonic() + BUILD
        while rows := int(self.call("describe_index", VECTOR)["pending_index_rows"]):
            if time.monotonic() > end:
                raise Unavailable(
                    f"The Milvus server at {self.address.server} has not built the graph of {rows:,} rows within an "
                    "hour; nothing is lost: check its log, and index again."
                )
            time.sleep(0.2)
        self.call("refresh_load", timeout=BUILD)


@contextlib.contextmanager
def connected(address: Address, name: str, beside: Client | None = None) -> Iterator[Client]:
    """Open a connection, and close it at the end; or use that of another collection of the same server."""
    if beside is not None:
        yield Client(address, name, beside._client)
        return
    try:
        from pymilvus import MilvusClient
    except ImportError as error:
        raise LookalikeError("Milvus needs a client library: pip install 'lookalike[milvus]'.") from error
    for logger in ("pymilvus", "pymilvus.milvus_client"):  # pymilvus prints every error before raising it
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    with explained(address, name):
        options = {"timeout": CONNECT, "dedicated": True, "grpc_options": RECONNECT}
        client = MilvusClient(address.uri, token=os.environ.get(TOKEN, ""), db_name=address.database, **options)
    try:
        opened = Client(address, name, client)
        opened.call("has_collection")  # a wrong password or database is reported now
        yield opened
    finally:
        client.close()


@contextlib.contextmanager
def explained(address: Address, name: str) -> Iterator[None]:
    """Turn known errors of a server into one-line errors; others keep their traceback."""
    import grpc
    from pymilvus.exceptions import MilvusException

    try:
        yield
    except (MilvusException, grpc.RpcError) as error:
        known = _known_error(address, name, error)
        if known is None:
            raise
        raise known from error


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and its causes; pymilvus raises errors from themselves."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        yield error
        seen.append(error)
        error = error.__cause__ if error.__cause__ not in (None, error) else error.__context__


def _known_error(address: Address, name: str, error: BaseException) -> LookalikeError | None:
    """The meaning of an error, by the status of its root cause, else by the server's message."""
    import grpc

    text, code = str(error), grpc.StatusCode
    status = next((root.code() for root in _chain(error) if isinstance(root, grpc.RpcError)), None)
    at = f"The Milvus server at {address.server}"
    meanings: list[tuple[bool, type[LookalikeError], str]] = [
        (status in (code.UNAUTHENTICATED, code.PERMISSION_DENIED), LookalikeError,
         f"{at} rejects the user or the password: set {TOKEN}=USER:PASSWORD."),
        (status in (code.UNAVAILABLE, code.DEADLINE_EXCEEDED, code.UNIMPLEMENTED), Unavailable,
         f"No Milvus server answers at {address.server}: start it, or check the address."),
        ("not found" in text and "database" in text, LookalikeError,
         f"{at} has no database `{address.database}`: create it first."),
        (getattr(error, "code", None) == NO_COLLECTION, LookalikeError,
         f"{at} no longer has the collection `{name}`: purge the index and make it again, or restore a backup."),
        ("exceeds max length" in text or "larger than max" in text, LookalikeError,
         "The columns of an image exceed what Milvus stores per row (64 kB): leave out the longest column of the "
         "table."),
        ("quota exceeded" in text or "deny to write" in text, LookalikeError,
         f"{at} has no space left; stored images are safe. Give it more memory or disk, and run the command again."),
    ]  # fmt: skip
    return next((kind(meaning) for applies, kind, meaning in meanings if applies), None)
