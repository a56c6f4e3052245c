"""Vector stores: the ``Store`` protocol, the local store (SQLite and mapped vectors) and Milvus."""

from __future__ import annotations

from lookalike.store.protocol import ROW_ID, Condition, Damaged, Hit, Neighbors, Record, Store, Value, Where, direction
from lookalike.store.registry import create_store, remove_store, row_bytes, store_class, store_name, stores

__all__ = [
    "ROW_ID", "Condition", "Damaged", "Hit", "Neighbors", "Record", "Store", "Value", "Where", "create_store",
    "direction", "remove_store", "row_bytes", "store_class", "store_name", "stores",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
