"""Adapting a model to new pictures, with retrieved ones from outside, and never for the worse."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lookalike.core.lazy import lazily

if TYPE_CHECKING:
    from lookalike.adapting.forgetting import forget
    from lookalike.adapting.job import adapt
    from lookalike.adapting.protocols import protocol
    from lookalike.adapting.settings import AdaptSettings
    from lookalike.adapting.versions import rollback

__all__ = ["AdaptSettings", "adapt", "forget", "protocol", "rollback"]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "AdaptSettings": "settings",
        "adapt": "job",
        "forget": "forgetting",
        "protocol": "protocols",
        "rollback": "versions",
    },
)
