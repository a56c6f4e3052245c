"""Adapting a model to new images, with retrieved ones from outside, and never for the worse."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lookalike.core.imports import lazy_exports

if TYPE_CHECKING:
    from lookalike.adaptation.adapt_command import adapt, forget, rollback
    from lookalike.adaptation.settings import AdaptSettings

__all__ = ["AdaptSettings", "adapt", "forget", "rollback"]

__getattr__, __dir__ = lazy_exports(__name__)
