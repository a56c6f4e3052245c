"""Whatever `encode` is given, as a stream of images that worker threads can open."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from lookalike.core.errors import LookalikeError
from lookalike.data.decoding import MAX_BYTES


@dataclass(frozen=True)
class Failure:
    """An image that `on_error="skip"` left out."""

    index: int
    name: str
    reason: str

    def to_json(self) -> dict[str, Any]:
        return {"index": self.index, "name": self.name, "reason": self.reason}


@dataclass(frozen=True)
class ImageInput:
    index: int
    name: str
    load: Callable[[], Any]  # encoded bytes, a path, a PIL image or an array; called in a worker thread
    box: tuple[int, int, int, int] | None = None


@dataclass
class Stream:
    items: Iterator[ImageInput]
    count: int | None  # None for a generator
    single: bool = False


def is_single(images: Any) -> bool:
    if isinstance(images, np.ndarray):
        return images.ndim in (2, 3) and images.dtype != object
    return isinstance(images, (str, os.PathLike, bytes, bytearray, memoryview, Image.Image))


def is_table(images: Any) -> bool:
    return hasattr(images, "open_bytes") and hasattr(images, "arrow")


def stream(images: Any) -> Stream:
    """One image, a list, an array N×H×W×3, a `Table` or a generator, opened one by one and never all at once."""
    if is_single(images):
        if isinstance(images, (str, os.PathLike)) and Path(images).is_dir():
            raise LookalikeError(f"`{images}` is a folder, not an image: read it with `lookalike.read_table` first.")
        return Stream(iter([_image_input(0, images)]), 1, single=True)
    if is_table(images):
        return Stream(_rows(images), len(images))
    if not isinstance(images, Iterable) or isinstance(images, dict):
        raise LookalikeError(f"A {type(images).__name__} is no image: give paths, bytes, PIL images or arrays.")
    count = len(images) if isinstance(images, Sized) else None
    return Stream((_image_input(index, item) for index, item in enumerate(images)), count)


def _image_input(index: int, item: Any) -> ImageInput:
    if isinstance(item, (str, os.PathLike)):
        return ImageInput(index, os.fspath(item), lambda: read(item))
    if isinstance(item, (bytes, bytearray, memoryview)):
        return ImageInput(index, f"image {index}", lambda: bytes(item))
    if isinstance(item, (np.ndarray, Image.Image)):
        name = getattr(item, "filename", "") or f"image {index}"
        return ImageInput(index, str(name), lambda: item)
    raise LookalikeError(
        f"Item {index} is a {type(item).__name__}: give paths, bytes, PIL images or arrays of height × width × 3."
    )


def _rows(table: Any) -> Iterator[ImageInput]:
    names = table.column("row_id")
    for index in range(len(table)):
        yield ImageInput(index, str(names[index]), _opener(table, index), table.box(index))


def _opener(table: Any, index: int) -> Callable[[], bytes]:
    return lambda: table.open_bytes(index)


def read(path: str | os.PathLike[str]) -> bytes:
    """A file's bytes, without what `Path.read_bytes` does besides."""
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123
        if os.fstat(file.fileno()).st_size > MAX_BYTES:
            raise OSError(f"larger than {MAX_BYTES // 10**9} GB")
        return file.read()


def peek(items: Iterator[ImageInput], count: int) -> tuple[bool, Iterator[ImageInput]]:
    """Whether at least `count` images wait, and the stream with nothing lost."""
    first = list(itertools.islice(items, count))
    return len(first) == count, itertools.chain(first, items)
