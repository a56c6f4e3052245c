"""Stores by name, from the entry-point group `lookalike.stores`: ours and those of other packages alike.

A store is named by its kind (`qdrant`), or on a server by an address whose scheme is the kind (`milvus://host:19530`).
"""

from __future__ import annotations

import shutil
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, cast

from lookalike.core.errors import LookalikeError, choose
from lookalike.core.files import read_json
from lookalike.core.progress import warn
from lookalike.store.protocol import ServerStore, Store

GROUP = "lookalike.stores"
META = "store.json"  # what a store leaves in its place: its kind and, on a server, the address


def stores() -> dict[str, EntryPoint]:
    """The known stores; nothing is imported."""
    return {point.name: point for point in entry_points(group=GROUP)}


def store_class(name: str) -> type[Store]:
    """The class behind a name, or behind the scheme of an address."""
    known = stores()
    found: type[Store] = known[choose(name.partition("://")[0], known, "a store")].load()
    return found


def _on_server(kind: type[Store]) -> bool:
    return hasattr(kind, "drop")


def store_name(text: str) -> str:
    """What a user called a store, in one way of writing it and without secrets; a mistake in it is told."""
    kind, named = store_class(text), text.partition("://")[0]
    if not _on_server(kind):
        if named != text:
            raise LookalikeError(f"The store `{named}` is on this machine and takes no address: write `{named}`.")
        return text
    if named == text:
        raise LookalikeError(f"The store `{named}` is on a server: say where, as in `{named}://host:19530`.")
    return cast(type[ServerStore], kind).address(text)


def row_bytes(name: str, dim: int) -> int:
    """What a row takes of this machine's disk, amply: of a server's store, only its line in the table is here."""
    return 300 if _on_server(store_class(name)) else 8 * dim + 3_000  # vector and graph; payload, indexes, log


def create_store(name: str, place: str | Path, dim: int) -> Store:
    """A new, empty store."""
    kind = store_class(name)
    if _on_server(kind):
        return cast(type[ServerStore], kind).create_at(store_name(name), str(place), dim)
    return kind.create(str(place), dim)


def remove_store(place: str | Path) -> None:
    """Delete a store with all it has, on a server too; nothing there is no error."""
    meta: dict[str, Any] = {}
    if (Path(place) / META).exists():
        try:
            meta = read_json(Path(place) / META, "store")
        except LookalikeError as error:
            warn(f"{error} It is deleted; what it may have on a server cannot be found.")
    if "address" in meta:
        cast(type[ServerStore], store_class(str(meta["store"]))).drop(str(place))
    shutil.rmtree(place, ignore_errors=True)
