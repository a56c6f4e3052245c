"""Pictures: where they are, what is known of them, and their pixels."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# Name -> module; imported on first use, so that importing this room costs nothing.
_LAZY = {
    "Audit": "auditing",
    "CentreView": "views",
    "PixelCache": "cache",
    "Preprocess": "decoding",
    "RandomView": "views",
    "Table": "table",
    "UnreadableImage": "decoding",
    "audit": "auditing",
    "check_classes": "classes",
    "content_id": "decoding",
    "decode": "decoding",
    "layouts": "readers",
    "make_shelf": "shelf",
    "prepare": "decoding",
    "read_table": "readers",
    "retrieval_split": "classes",
    "thumbnail": "thumbs",
}

if TYPE_CHECKING:
    from lookalike.data.auditing import Audit, audit
    from lookalike.data.cache import PixelCache
    from lookalike.data.classes import check_classes, retrieval_split
    from lookalike.data.decoding import Preprocess, UnreadableImage, content_id, decode, prepare
    from lookalike.data.readers import layouts, read_table
    from lookalike.data.shelf import make_shelf
    from lookalike.data.table import Table
    from lookalike.data.thumbs import thumbnail
    from lookalike.data.views import CentreView, RandomView

__all__ = [
    "Audit",
    "CentreView",
    "PixelCache",
    "Preprocess",
    "RandomView",
    "Table",
    "UnreadableImage",
    "audit",
    "check_classes",
    "content_id",
    "decode",
    "layouts",
    "make_shelf",
    "prepare",
    "read_table",
    "retrieval_split",
    "thumbnail",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        value = getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
