"""Where vectors live: the `Store` protocol, exact search, and Qdrant Edge."""

from __future__ import annotations

from lookalike.store.protocol import Condition, Hit, Record, Store, Value, Where, direction
from lookalike.store.registry import store_class, stores

__all__ = ["Condition", "Hit", "Record", "Store", "Value", "Where", "direction", "store_class", "stores"]
