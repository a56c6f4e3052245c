"""State that training keeps between steps: cross-batch memory with drift correction, and retrieval databases.

Example:
    >>> from lookalike.losses import SupConLoss
    >>> from lookalike.memory import CrossBatchMemory
    >>> memory = CrossBatchMemory(SupConLoss(0.1), embedding_size=8, memory_size=64, drift="axbn")
    >>> memory(torch.randn(4, 8), torch.tensor([0, 0, 1, 1])).ndim
    0
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lookalike.core.imports import lazy_exports

if TYPE_CHECKING:
    from lookalike.memory.cross_batch import CrossBatchMemory
    from lookalike.memory.queue import WatchedRows
    from lookalike.memory.xbn import Moments, xbn_update

__all__ = ["CrossBatchMemory", "Moments", "WatchedRows", "xbn_update"]

__getattr__, __dir__ = lazy_exports(__name__)
