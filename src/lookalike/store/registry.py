"""Stores by name, from the entry-point group `lookalike.stores`: ours and those of other packages alike."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from lookalike.core.errors import choose
from lookalike.store.protocol import Store

GROUP = "lookalike.stores"


def stores() -> dict[str, EntryPoint]:
    """The known stores; nothing is imported."""
    return {point.name: point for point in entry_points(group=GROUP)}


def store_class(name: str) -> type[Store]:
    """The class behind a name, or behind the scheme of an address (`milvus://host:19530`)."""
    known = stores()
    found: type[Store] = known[choose(name.partition("://")[0], known, "a store")].load()
    return found
