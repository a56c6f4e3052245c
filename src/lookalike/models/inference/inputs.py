"""Inputs of ``Embedder.encode``: paths, bytes, PIL images, arrays, tables and generators as one stream of images."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from lookalike.core.errors import LookalikeError
from lookalike.core.files import read_bytes


@dataclass(frozen=True)
class Failure:
    """An image that ``on_error="skip"`` left out.

    Args:
        index: Position among the images passed to ``encode``.
        name: Path, row id or number of the image.
        reason: Why it cannot be read, as a short phrase.

    Example:
        >>> model = la.Embedder.from_pretrained("resnet10_small", weights="random")
        >>> vectors, failures = model.encode([b"no image"], on_error="skip")
        >>> failures
        [Failure(index=0, name='image 0', reason='it holds text, not pixels')]
    """

    index: int
    name: str
    reason: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class ImageInput:
    """One image to encode: its position, its name for messages, how to load it, and the box to cut out."""

    index: int
    name: str
    load: Callable[[], Any]  # returns bytes, a path, a PIL image or an array; called in a decoding thread
    box: tuple[int, int, int, int] | None = None


@dataclass
class ImageStream:
    """The images of one call, opened one by one.

    Args:
        items: The images.
        count: Their number; ``None`` for a generator.
        single: Whether the caller passed one image, not a collection.
    """

    items: Iterator[ImageInput]
    count: int | None
    single: bool = False

    def has_at_least(self, count: int) -> bool:
        """Whether at least ``count`` images are left; the stream loses none by looking."""
        first = list(itertools.islice(self.items, count))
        self.items = itertools.chain(first, self.items)
        return len(first) == count


def is_single(images: Any) -> bool:
    """Whether ``images`` is one image and not a collection of them."""
    if isinstance(images, np.ndarray):
        return images.ndim in (2, 3) and images.dtype != object
    return isinstance(images, (str, os.PathLike, bytes, bytearray, memoryview, Image.Image))


def is_table(images: Any) -> bool:
    """Whether ``images`` is a ``Table`` (checked without importing Arrow)."""
    return hasattr(images, "open_bytes") and hasattr(images, "arrow")


def image_stream(images: Any) -> ImageStream:
    """Open one image, a sequence, an array ``(N, H, W, 3)``, a ``Table`` or a generator as a stream.

    Args:
        images: The images. Nothing is read before it is needed.

    Returns:
        The stream.

    Raises:
        LookalikeError: If ``images`` is a folder, or of a type that holds no images.

    Example:
        >>> image_stream(np.zeros((5, 8, 8, 3), np.uint8)).count
        5
    """
    if is_single(images):
        if isinstance(images, (str, os.PathLike)) and Path(images).is_dir():
            raise LookalikeError(f"`{images}` is a folder, not an image: read it with `lookalike.read_table` first.")
        return ImageStream(iter([_image_input(0, images)]), 1, single=True)
    if is_table(images):
        return ImageStream(_table_rows(images), len(images))
    if not isinstance(images, Iterable) or isinstance(images, dict):
        raise LookalikeError(f"A {type(images).__name__} is not an image: pass paths, bytes, PIL images or arrays.")
    count = len(images) if isinstance(images, Sized) else None
    return ImageStream((_image_input(index, item) for index, item in enumerate(images)), count)


def _image_input(index: int, item: Any) -> ImageInput:
    if isinstance(item, (str, os.PathLike)):
        return ImageInput(index, os.fspath(item), lambda: read_bytes(item))
    if isinstance(item, (bytes, bytearray, memoryview)):
        return ImageInput(index, f"image {index}", lambda: bytes(item))
    if isinstance(item, (np.ndarray, Image.Image)):
        name = getattr(item, "filename", "") or f"image {index}"
        return ImageInput(index, str(name), lambda: item)
    raise LookalikeError(
        f"Item {index} is a {type(item).__name__}: pass paths, bytes, PIL images or arrays of height × width × 3."
    )


def _table_rows(table: Any) -> Iterator[ImageInput]:
    row_ids = table.column("row_id")
    for index in range(len(table)):
        yield ImageInput(index, str(row_ids[index]), _opener(table, index), table.box(index))


def _opener(table: Any, index: int) -> Callable[[], bytes]:
    return lambda: table.open_bytes(index)
