"""Images: reading data sets into a `Table`, decoding, augmentation, sampling, synthetic demo images."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lookalike.core.imports import lazy_exports

if TYPE_CHECKING:
    from lookalike.data.auditing import Audit, audit
    from lookalike.data.augmentation import CenterView, RandomView
    from lookalike.data.class_split import check_classes, retrieval_split
    from lookalike.data.decoding import Preprocess, UnreadableImage, content_id, decode, prepare
    from lookalike.data.pixel_cache import PixelCache
    from lookalike.data.readers import layouts, read_table
    from lookalike.data.readers.columns import with_columns
    from lookalike.data.strip_metadata import thumbnail
    from lookalike.data.synthetic import make_demo_images
    from lookalike.data.table import Table

__all__ = [
    "Audit",
    "CenterView",
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
    "make_demo_images",
    "prepare",
    "read_table",
    "retrieval_split",
    "thumbnail",
    "with_columns",
]

__getattr__, __dir__ = lazy_exports(__name__)
