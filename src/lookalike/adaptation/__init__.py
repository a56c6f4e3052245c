"""Adaptation of a model to new images, with images retrieved from a pool, guarded by a gate against harm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lookalike.core.imports import lazy_exports

if TYPE_CHECKING:
    from lookalike.adaptation.adapt_command import adapt, forget, promote, rollback
    from lookalike.adaptation.settings import AdaptSettings

__all__ = ["AdaptSettings", "adapt", "forget", "promote", "rollback"]

__getattr__, __dir__ = lazy_exports(__name__)
