"""The search over HTTP, and the page."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_LAZY = {"create_app": "app", "serve": "serving"}

if TYPE_CHECKING:
    from lookalike.service.app import create_app
    from lookalike.service.serving import serve

__all__ = ["create_app", "serve"]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        value = getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
