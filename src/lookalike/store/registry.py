"""Stores by name, from the entry-point group ``lookalike.stores``: ours and those of other packages.

A store is named by its kind (``local``), or by an address whose scheme is the kind (``milvus://host:19530``).
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
META = "store.json"  # in a store's folder: its kind and, for a server, the address


def stores() -> dict[str, EntryPoint]:
    """List the known stores; nothing is imported.

    Returns:
        Entry points by name.

    Example:
        >>> {"local", "milvus"} <= set(stores())
        True
    """
    return {point.name: point for point in entry_points(group=GROUP)}


def store_class(name: str) -> type[Store]:
    """Return the class of a store.

    Args:
        name: Name of the store, or an address whose scheme is the name.

    Returns:
        The class.

    Raises:
        LookalikeError: If there is no such store.

    Example:
        >>> store_class("local").__name__
        'LocalStore'
    """
    known = stores()
    cls: type[Store] = known[choose(name.partition("://")[0], known, "a store")].load()
    return cls


def _on_server(kind: type[Store]) -> bool:
    return hasattr(kind, "create_at")


def store_name(text: str) -> str:
    """Return the canonical name or address of a store, without secrets.

    Args:
        text: What the user wrote.

    Returns:
        The name, or the complete address.

    Raises:
        LookalikeError: If there is no such store, or the address is wrong or missing.

    Example:
        >>> store_name("milvus://localhost")
        'milvus://localhost:19530'
    """
    cls, scheme = store_class(text), text.partition("://")[0]
    if not _on_server(cls):
        if scheme != text:
            raise LookalikeError(f"The store `{scheme}` is on this machine and takes no address: write `{scheme}`.")
        return text
    if scheme == text:
        raise LookalikeError(f"The store `{scheme}` is on a server: give its address, as in `{scheme}://host:19530`.")
    return cast(type[ServerStore], cls).address(text)


def row_bytes(name: str, dim: int) -> int:
    """Return a generous estimate of the local disk space per row.

    Args:
        name: Name or address of the store.
        dim: Embedding dimension.

    Returns:
        Bytes; rows on a server take only their line in the table.

    Example:
        >>> row_bytes("local", 512)
        3560
    """
    return 300 if _on_server(store_class(name)) else 5 * dim + 1_000  # vector and graph; payload and its indexes


def create_store(name: str, place: str | Path, dim: int) -> Store:
    """Create an empty store.

    Args:
        name: Name or address of the store.
        place: Folder of the store; for a server, of its address.
        dim: Embedding dimension.

    Returns:
        The store, open for writing.

    Example:
        >>> store = create_store("local", "vectors", 2)
        >>> store.upsert(["a", "b"], np.eye(2, dtype=np.float32), [{"label": "gull"}, {"label": "tern"}])
        >>> [hit.id for hit in store.query(np.array([1.0, 0.1]), 2)], store.facets("label")
        (['a', 'b'], [('gull', 1), ('tern', 1)])
        >>> store.close()
    """
    kind = store_class(name)
    if _on_server(kind):
        return cast(type[ServerStore], kind).create_at(store_name(name), str(place), dim)
    return kind.create(str(place), dim)


def remove_store(place: str | Path) -> None:
    """Delete a store, including its rows on a server; a missing one is not an error.

    Args:
        place: Folder of the store.

    Example:
        >>> remove_store("no-store-here")
    """
    meta: dict[str, Any] = {}
    if (Path(place) / META).exists():
        try:
            meta = read_json(Path(place) / META, "store")
        except LookalikeError as error:
            warn(f"{error} It is deleted; rows that it may have on a server cannot be found.")
    store_class(str(meta.get("store", "local"))).drop(str(place))  # type: ignore[attr-defined]
    shutil.rmtree(place, ignore_errors=True)
