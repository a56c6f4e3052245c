"""What remembers between steps: the cross-batch memory and the rules that keep it up to date.

from lookalike.memory import CrossBatchMemory

memory = CrossBatchMemory(loss, 512, 29775, miner=miner, drift="axbn")
memory(embeddings, labels).backward()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lookalike.core.imports import lazy_exports

if TYPE_CHECKING:
    from lookalike.memory.cross_batch import CrossBatchMemory
    from lookalike.memory.moments import Moments
    from lookalike.memory.queue import Stale

__all__ = ["CrossBatchMemory", "Moments", "Stale"]

__getattr__, __dir__ = lazy_exports(__name__)
