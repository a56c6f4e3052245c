"""Losses: tensors in, scalar out; one loss per file, no state between steps, no files, no device moves.

The losses of pytorch-metric-learning are in :mod:`lookalike.losses.pml`, our own in a module each. Formulas that have
a fused kernel come with a plain reference form in the same file.

Example:
    >>> from lookalike.losses import SupConLoss
    >>> SupConLoss(temperature=0.1)(torch.randn(4, 8), torch.tensor([0, 0, 1, 1])).ndim
    0
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lookalike.core.imports import lazy_exports

if TYPE_CHECKING:
    from lookalike.losses.carp import CARPLoss
    from lookalike.losses.margin import MarginLoss
    from lookalike.losses.pml import (
        ActiveMultiSimilarityLoss,
        ArcFaceLoss,
        ContrastiveLoss,
        MultiSimilarityLoss,
        NormSoftmaxLoss,
        PMLLoss,
        ProxyAnchorLoss,
        SupConLoss,
        TripletLoss,
    )

__all__ = [
    "ActiveMultiSimilarityLoss",
    "ArcFaceLoss",
    "CARPLoss",
    "ContrastiveLoss",
    "MarginLoss",
    "MultiSimilarityLoss",
    "NormSoftmaxLoss",
    "PMLLoss",
    "ProxyAnchorLoss",
    "SupConLoss",
    "TripletLoss",
]

__getattr__, __dir__ = lazy_exports(__name__)
