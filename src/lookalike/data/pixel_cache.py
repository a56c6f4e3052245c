"""Decoded images of a table in one memory-mapped file, so that each is decoded once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lookalike.core import folders
from lookalike.core.errors import LookalikeError
from lookalike.core.files import FORMAT_VERSIONS, atomic_folder, hash_bytes, require_space, stamp
from lookalike.core.progress import Progress
from lookalike.data.decoding import DECODER, shrink
from lookalike.data.image_reader import ReadFailure, read_images

if TYPE_CHECKING:
    from lookalike.data.table import Table

_NAMED = 5  # unreadable images named in the error; a run of them stops the work


class PixelCache:
    """Decoded images of a table: `get(i)` is image i, RGB uint8, with a short side of at most `side`.

    The entry is named by what it was made from (ids, sizes and times of the images, side, decoder), so a changed
    table never meets old pixels. It is written completely or not at all.

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
        key = hash_bytes(
            "pixels", str(FORMAT_VERSIONS["cache"]), DECODER, str(side), table.fingerprint(), str(len(table))
        )
        folder = folders.cache("pixels") / key
        if not _whole(folder, len(table)):
            _fill(folder, table, side, progress)
            folders.trim_cache()
        self._open(folder)

    def _open(self, folder: Path) -> None:
        folders.touch(folder)
        self.folder = folder
        self.sizes = np.load(folder / "sizes.npy", allow_pickle=False)
        self.offsets = _offsets(self.sizes)
        self._pixels = np.memmap(folder / "pixels.bin", np.uint8, "r")

    def __len__(self) -> int:
        return len(self.sizes)

    def get(self, i: int) -> np.ndarray:
        """Return the pixels ``(H, W, 3)`` of image i, a read-only view of the file."""
        height, width = self.sizes[i]
        return np.asarray(self._pixels[self.offsets[i] : self.offsets[i + 1]]).reshape(height, width, 3)

    def __iter__(self) -> Iterator[np.ndarray]:
        return map(self.get, range(len(self)))

    # Sent to a worker process as a path: a pickled memory map would carry every pixel.
    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._open(state["folder"])


def _offsets(sizes: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(sizes.astype(np.int64).prod(1) * 3)])


def _whole(folder: Path, count: int) -> bool:
    """Whether an entry is there and complete; a damaged one is made again."""
    try:
        about = json.loads((folder / "about.json").read_bytes())
        sizes = np.load(folder / "sizes.npy", allow_pickle=False)
        long_enough = (folder / "pixels.bin").stat().st_size == _offsets(sizes)[-1]
        return bool(about["format"] == FORMAT_VERSIONS["cache"] and len(sizes) == count and long_enough)
    except (OSError, ValueError, KeyError):
        return False


def _fill(folder: Path, table: Table, side: int, progress: bool) -> None:
    def load(i: int) -> np.ndarray:
        return np.ascontiguousarray(shrink(table.open_bytes(i), side, box=table.box(i)))

    # Photographs are 3:2 at the longest, as a rule.
    require_space(folder, len(table) * side * side * 9 // 2, "The cache of decoded images")
    bad: list[str] = []
    sizes = np.zeros((len(table), 2), np.int32)
    with (
        atomic_folder(folder, private=True) as part,
        (part / "pixels.bin").open("wb") as file,
        Progress("Decoding", len(table), shown=progress) as bar,
    ):
        for i, pixels in enumerate(read_images(load, range(len(table)))):
            if isinstance(pixels, ReadFailure):
                bad.append(f"`{table.column('path')[i]}`, {pixels.reason}")
                if len(bad) == _NAMED:
                    break
            elif not bad:
                file.write(pixels.data)
                sizes[i] = pixels.shape[:2]
            bar.advance()
        if bad:
            more = ", and perhaps more" if len(bad) == _NAMED else ""
            raise LookalikeError(f"Images cannot be read: {'; '.join(bad)}{more}. Take them out of the table.")
        np.save(part / "sizes.npy", sizes)
        about = stamp(
            "cache",
            {"what": "pixels", "name": table.name, "table": table.fingerprint(), "side": side, "decoder": DECODER},
        )
        (part / "about.json").write_text(json.dumps(about), encoding="utf-8")
