"""Decoded images of a table in one memory-mapped file, so that each is decoded once."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lookalike.core import artifacts
from lookalike.core.errors import LookalikeError
from lookalike.core.files import require_space
from lookalike.core.progress import Progress
from lookalike.data.decoding import DECODER, shrink
from lookalike.data.image_reader import ReadFailure, read_images
from lookalike.data.table import Table

_NAMED = 5  # unreadable images named in the error; a run of them stops the work


class PixelCache:
    """Decoded images of a table: `get(i)` is image i, RGB uint8, with a short side of at most `side`.

    They are named by what they were made from (ids, sizes and times of the images, side, decoder), so a changed
    table never meets old pixels, and checked when each is first read.

    Args:
        table: The images.
        side: Greatest short side in pixels.
        progress: Whether to show a progress bar.

    Raises:
        LookalikeError: The table is empty, or images cannot be read.

    Example:
        >>> cache = la.data.PixelCache(la.read_table("photos"), side=16)
        >>> len(cache), min(cache.get(0).shape[:2])
        (24, 16)
    """

    def __init__(self, table: Table, side: int, *, progress: bool = False) -> None:
        if len(table) == 0:
            raise LookalikeError("There are no images to decode: the table is empty.")
        key = {"table": table.fingerprint(), "rows": len(table), "side": side, "decoder": DECODER}
        path = artifacts.artifact("pixels", key, group=table.fingerprint())
        fill, about = partial(_fill, table=table, side=side, progress=progress), {**key, "name": table.name}
        self._open(artifacts.folder(path, fill, about=about, self_checked=["pixels.bin"]))

    def _open(self, folder: Path) -> None:
        self.folder = folder
        self.sizes = np.load(folder / "sizes.npy", allow_pickle=False)
        self.offsets = np.concatenate([[0], np.cumsum(self.sizes.astype(np.int64).prod(1) * 3)])
        self._pixels = np.memmap(folder / "pixels.bin", np.uint8, "r")
        self._checksums = np.load(folder / "checksums.npy", allow_pickle=False)
        self._checked = np.zeros(len(self.sizes), bool)

    def __len__(self) -> int:
        return len(self.sizes)

    def get(self, i: int) -> np.ndarray:
        """Return the pixels ``(H, W, 3)`` of image i, a read-only view of the file."""
        pixels = np.asarray(self._pixels[self.offsets[i] : self.offsets[i + 1]])
        if not self._checked[i]:
            if zlib.crc32(pixels.data) != self._checksums[i]:
                artifacts.delete(self.folder)
                raise LookalikeError("Cached images were damaged on disk and have been deleted: run the command again.")
            self._checked[i] = True
        return pixels.reshape(*self.sizes[i], 3)

    def __iter__(self) -> Iterator[np.ndarray]:
        return map(self.get, range(len(self)))

    # Sent to a worker process as a path: a pickled memory map would carry every pixel.
    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._open(state["folder"])


def _fill(folder: Path, table: Table, side: int, progress: bool) -> None:
    def load(i: int) -> np.ndarray:
        return np.ascontiguousarray(shrink(table.open_bytes(i), side, box=table.box(i)))

    # Photographs are 3:2 at the longest, as a rule.
    require_space(folder, len(table) * side * side * 9 // 2, "The cache of decoded images")
    bad: list[str] = []
    sizes, checksums = np.zeros((len(table), 2), np.int32), np.zeros(len(table), np.uint32)
    with (folder / "pixels.bin").open("wb") as file, Progress("Decoding", len(table), shown=progress) as bar:
        for i, pixels in enumerate(read_images(load, range(len(table)))):
            if isinstance(pixels, ReadFailure):
                bad.append(f"`{table.column('path')[i]}`, {pixels.reason}")
                if len(bad) == _NAMED:
                    break
            elif not bad:
                file.write(pixels.data)
                sizes[i], checksums[i] = pixels.shape[:2], zlib.crc32(pixels.data)
            bar.advance()
    if bad:
        more = ", and perhaps more" if len(bad) == _NAMED else ""
        raise LookalikeError(f"Images cannot be read: {'; '.join(bad)}{more}. Take them out of the table.")
    np.save(folder / "sizes.npy", sizes)
    np.save(folder / "checksums.npy", checksums)
