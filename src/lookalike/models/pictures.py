"""Whatever `encode` is given, as a stream of pictures that worker threads can open."""

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
    """A picture that `on_error="skip"` left out."""

    index: int
    name: str
    reason: str

    def to_json(self) -> dict[str, Any]:
        return {"index": self.index, "name": self.name, "reason": self.reason}


@dataclass(frozen=True)
class Picture:
    index: int
    name: str
    load: Callable[[], Any]  # encoded bytes, a path, a PIL picture or an array; called in a worker thread
    box: tuple[int, int, int, int] | None = None


@dataclass
class Stream:
    items: Iterator[Picture]
    count: int | None  # None for a generator
    single: bool = False


def is_single(pictures: Any) -> bool:
    if isinstance(pictures, np.ndarray):
        return pictures.ndim in (2, 3) and pictures.dtype != object
    return isinstance(pictures, (str, os.PathLike, bytes, bytearray, memoryview, Image.Image))


def is_table(pictures: Any) -> bool:
    return hasattr(pictures, "open_bytes") and hasattr(pictures, "arrow")


def stream(pictures: Any) -> Stream:
    """One picture, a list, an array N×H×W×3, a `Table` or a generator, opened one by one and never all at once."""
    if is_single(pictures):
        if isinstance(pictures, (str, os.PathLike)) and Path(pictures).is_dir():
            raise LookalikeError(f"`{pictures}` is a folder, not a picture: read it with `lookalike.read_table` first.")
        return Stream(iter([_picture(0, pictures)]), 1, single=True)
    if is_table(pictures):
        return Stream(_rows(pictures), len(pictures))
    if not isinstance(pictures, Iterable) or isinstance(pictures, dict):
        raise LookalikeError(f"A {type(pictures).__name__} is no picture: give paths, bytes, PIL pictures or arrays.")
    count = len(pictures) if isinstance(pictures, Sized) else None
    return Stream((_picture(index, item) for index, item in enumerate(pictures)), count)


def _picture(index: int, item: Any) -> Picture:
    if isinstance(item, (str, os.PathLike)):
        return Picture(index, os.fspath(item), lambda: read(item))
    if isinstance(item, (bytes, bytearray, memoryview)):
        return Picture(index, f"picture {index}", lambda: bytes(item))
    if isinstance(item, (np.ndarray, Image.Image)):
        name = getattr(item, "filename", "") or f"picture {index}"
        return Picture(index, str(name), lambda: item)
    raise LookalikeError(
        f"Item {index} is a {type(item).__name__}: give paths, bytes, PIL pictures or arrays of height × width × 3."
    )


def _rows(table: Any) -> Iterator[Picture]:
    names = table.column("row_id")
    for index in range(len(table)):
        yield Picture(index, str(names[index]), _opener(table, index), table.box(index))


def _opener(table: Any, index: int) -> Callable[[], bytes]:
    return lambda: table.open_bytes(index)


def read(path: str | os.PathLike[str]) -> bytes:
    """A file's bytes, without what `Path.read_bytes` does besides."""
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123
        if os.fstat(file.fileno()).st_size > MAX_BYTES:
            raise OSError(f"larger than {MAX_BYTES // 10**9} GB")
        return file.read()


def peek(items: Iterator[Picture], count: int) -> tuple[bool, Iterator[Picture]]:
    """Whether at least `count` pictures wait, and the stream with nothing lost."""
    first = list(itertools.islice(items, count))
    return len(first) == count, itertools.chain(first, items)
