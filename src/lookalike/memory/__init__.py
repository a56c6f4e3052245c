"""What remembers between steps: the cross-batch memory and the rules that keep it up to date.

from lookalike.memory import CrossBatchMemory

memory = CrossBatchMemory(loss, 512, 29775, miner=miner, drift="axbn")
memory(embeddings, labels).backward()
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# Name -> module; imported on first use, since torch takes a second.
_LAZY = {"CrossBatchMemory": "cross_batch", "Moments": "moments", "Stale": "rows"}

if TYPE_CHECKING:
    from lookalike.memory.cross_batch import CrossBatchMemory
    from lookalike.memory.moments import Moments
    from lookalike.memory.rows import Stale

__all__ = ["CrossBatchMemory", "Moments", "Stale"]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        value = getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
