"""Models: backbones, pooling, heads, ``Embedder``, model folders, the feature cache and inference."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lookalike.core.imports import lazy_exports

if TYPE_CHECKING:
    from lookalike.models.embedder import Embedder
    from lookalike.models.embedding import embed
    from lookalike.models.exporting import export
    from lookalike.models.feature_cache import features_for
    from lookalike.models.inference.inputs import Failure
    from lookalike.models.model_list import list_models

__all__ = ["Embedder", "Failure", "embed", "export", "features_for", "list_models"]

__getattr__, __dir__ = lazy_exports(__name__)
