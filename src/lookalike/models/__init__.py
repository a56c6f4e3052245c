"""Models: backbones, pooling, head, `Embedder`, fast runtimes, feature caches, model folders."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# Name -> module; imported on first use, since torch and timm take seconds.
_LAZY = {
    "Embedder": "embedder",
    "Failure": "pictures",
    "features_for": "cache",
    "ImageEmbedder": "transformer",
    "embed": "embedding",
    "export": "exporting",
}

if TYPE_CHECKING:
    from lookalike.models.cache import features_for
    from lookalike.models.embedder import Embedder
    from lookalike.models.embedding import embed
    from lookalike.models.exporting import export
    from lookalike.models.pictures import Failure
    from lookalike.models.transformer import ImageEmbedder

__all__ = ["Embedder", "Failure", "ImageEmbedder", "embed", "export", "features_for"]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        value = getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
