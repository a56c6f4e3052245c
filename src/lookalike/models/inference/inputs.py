"""Inputs of ``Embedder.encode``: paths, bytes, PIL images, arrays, tables and generators as one stream of images."""

from __future__ import annotations

import functools
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
from lookalike.core.storage import is_url

IMAGE_KEYS = ("image", "images", "pixel_values", "img")


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
        remote: Whether the images lie in a bucket.
    """

    items: Iterator[ImageInput]
    count: int | None
    single: bool = False
    remote: bool = False

    def has_at_least(self, count: int) -> bool:
        """Whether at least ``count`` images are left; the stream loses none by looking."""
        first = list(itertools.islice(self.items, count))
        self.items = itertools.chain(first, self.items)
        return len(first) == count


def is_tensor(images: Any) -> bool:
    """Whether ``images`` is a tensor of torch (checked without importing torch)."""
    return hasattr(images, "detach") and hasattr(images, "permute")


def is_single(images: Any) -> bool:
    """Whether ``images`` is one image and not a collection of them."""
    if isinstance(images, np.ndarray):
        return images.ndim in (2, 3) and images.dtype != object
    if is_tensor(images):
        return images.ndim == 3
    return isinstance(images, (str, os.PathLike, bytes, bytearray, memoryview, Image.Image))


def is_table(images: Any) -> bool:
    """Whether ``images`` is a ``Table`` (checked without importing Arrow)."""
    return hasattr(images, "open_bytes") and hasattr(images, "arrow")


def image_stream(images: Any) -> ImageStream:
    """Open one image, a batch, a sequence, a ``Table``, or any iterable of images or batches as a stream.

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
        return ImageStream(_table_rows(images), len(images), remote=is_url(images.root))
    images = iterable(images)
    if not isinstance(images, Iterable) or isinstance(images, dict):
        raise LookalikeError(f"A {type(images).__name__} is not an image: pass paths, bytes, PIL images or arrays.")
    shape = tuple(getattr(images, "shape", ()))
    if is_tensor(images) and len(shape) != 4:
        raise LookalikeError(f"A tensor of shape {shape} is not images: pass (N, 3, H, W).")
    plain = isinstance(images, np.ndarray) or is_tensor(images)
    if isinstance(images, (list, tuple)):
        plain = all(is_single(item) for item in images)
    count = len(images) if plain and isinstance(images, Sized) else None
    items = images if plain else itertools.chain.from_iterable(map(batch_items, images))
    return ImageStream((_image_input(index, item) for index, item in enumerate(items)), count)


def iterable(images: Any) -> Any:
    """A ``Dataset`` of torch, which has only ``len()`` and ``[i]``, as a generator; others unchanged."""
    if isinstance(images, Iterable) or not (isinstance(images, Sized) and hasattr(images, "__getitem__")):
        return images
    return map(images.__getitem__, range(len(images)))


def batch_items(item: Any) -> Iterable[Any]:
    """The images of what an iterable yields: an image, a batch, or either with labels, as data loaders give them."""
    if isinstance(item, dict):
        key = next((key for key in IMAGE_KEYS if key in item), None)
        if key is None:
            raise LookalikeError(f"A batch with {', '.join(map(str, item))} has no images: they are under `image`.")
        return batch_items(item[key])
    if isinstance(item, (list, tuple)) and item:
        named = isinstance(item[-1], str) and not isinstance(item[0], str)
        if _holds_pairs(item):
            return [part[0] for part in item]
        if named or not all(is_single(part) for part in item):
            return batch_items(item[0])  # (images, labels)
    return [item] if is_single(item) or not isinstance(item, Iterable) else item


def _holds_pairs(batch: Any) -> bool:
    """Whether a batch is a list of (image, label), not a pair of images and labels."""
    return isinstance(batch, list) and all(
        isinstance(part, tuple) and len(part) > 1 and is_single(part[0]) and not isinstance(part[1], type(part[0]))
        for part in batch
    )


def _image_input(index: int, item: Any) -> ImageInput:
    if isinstance(item, (str, os.PathLike)):
        return ImageInput(index, os.fspath(item), lambda: read_bytes(item))
    if isinstance(item, (bytes, bytearray, memoryview)):
        return ImageInput(index, f"image {index}", lambda: bytes(item))
    if isinstance(item, (np.ndarray, Image.Image)):
        name = getattr(item, "filename", "") or f"image {index}"
        return ImageInput(index, str(name), lambda: item)
    if is_tensor(item):
        return ImageInput(index, f"image {index}", lambda: _pixels(item))
    raise LookalikeError(
        f"Item {index} is a {type(item).__name__}: pass paths, bytes, PIL images or arrays of height × width × 3."
    )


def _pixels(tensor: Any) -> np.ndarray:
    """A tensor (3, H, W) as an array (H, W, 3)."""
    tensor = tensor.detach().cpu()
    if tensor.is_floating_point():
        tensor = tensor.float()
        if tensor.numel() and (tensor.min() < 0 or tensor.max() > 1):
            raise LookalikeError(
                "The tensors hold values below 0 or above 1: pass uint8, or floats from 0 to 1, or normalized=True for "
                "those that are normalized already."
            )
    return tensor.permute(1, 2, 0).numpy()


def _table_rows(table: Any) -> Iterator[ImageInput]:
    for index, row_id in enumerate(table.column("row_id")):
        yield ImageInput(index, str(row_id), functools.partial(table.open_bytes, index), table.box(index))
