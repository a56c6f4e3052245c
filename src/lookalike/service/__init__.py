"""Serve an index over HTTP: a JSON API and a web page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lookalike.core.imports import lazy_exports

if TYPE_CHECKING:
    from lookalike.service.app import create_app
    from lookalike.service.server import serve

__all__ = ["create_app", "serve"]

__getattr__, __dir__ = lazy_exports(__name__)
