"""Pictures: where they are, what is known of them, and their pixels."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

# Name -> module; imported on first use, so that importing this room costs nothing.
_LAZY = {
    "Audit": "audit",
    "CentreView": "views",
    "PixelCache": "cache",
    "Preprocess": "decode",
    "RandomView": "views",
    "Table": "table",
    "UnreadableImage": "decode",
    "audit": "audit",
    "check_classes": "classes",
    "content_id": "decode",
    "decode": "decode",
    "layouts": "readers",
    "make_shelf": "shelf",
    "prepare": "decode",
    "read_table": "readers",
    "retrieval_split": "classes",
    "thumbnail": "thumbs",
}

if TYPE_CHECKING:
    from lookalike.data.audit import Audit, audit
    from lookalike.data.cache import PixelCache
    from lookalike.data.classes import check_classes, retrieval_split
    from lookalike.data.decode import Preprocess, UnreadableImage, content_id, decode, prepare
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


class _Room(ModuleType):
    """`decode` and `audit` are functions named like the modules they live in; the function keeps the name.

    Python binds a freshly imported submodule on its package, which would hide the function from
    whoever imports it afterwards.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType) and _LAZY.get(name) == name:
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Room


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        value = getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
