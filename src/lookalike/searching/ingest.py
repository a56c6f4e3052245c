"""Reading ahead: while the model works on one batch, the next one's files are read, hashed and decoded, each once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from lookalike.core.device import threads
from lookalike.core.files import hash_bytes

if TYPE_CHECKING:
    from lookalike.data import Table

BATCH = 256  # images acknowledged at a time: a kill costs two of them at most
FIRST = 32  # the first batches are smaller: the model waits for them
LARGE = 100_000  # bytes of a file from which on several threads that decode help each other

Square = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Facts:
    """What only reading an image tells."""

    hash: str  # of the encoded bytes
    content: str  # of the decoded pixels
    ratio: float  # width by height
    color: str  # the mean, to paint before the image is there
    square: np.ndarray | None = field(default=None, compare=False)  # what the model is fed with

    def payload(self) -> dict[str, Any]:
        return {"_hash": self.hash, "content_id": self.content, "_ratio": self.ratio, "_color": self.color}


@dataclass
class Batch:
    rows: Sequence[int]
    facts: dict[int, Facts] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)


def look(table: Table, row: int, side: float, square: Square | None = None) -> Facts:
    """Read one image; raises what an image that cannot be read raises.

    Copies are told by their pixels, decoded to a short side of at least `side`, as small as the model may have them:
    equal files still give equal pixels, and decoding a photograph whole would take longer than embedding it
    (docs/decisions/0074). `square` makes of them what the model is fed with.
    """
    from lookalike.data import content_id, decode

    data = table.open_bytes(row)
    pixels = decode(data, box=table.box(row), min_side=side)
    height, width = pixels.shape[:2]
    mean = pixels[:: max(1, height // 16), :: max(1, width // 16)].reshape(-1, 3).mean(axis=0)
    color = "#" + "".join(f"{int(c):02x}" for c in np.clip(mean, 0, 255))
    fed = square(pixels) if square is not None else None
    return Facts(hash_bytes(data), content_id(pixels), round(width / height, 4), color, fed)


def _parts(rows: Sequence[int]) -> Iterator[Sequence[int]]:
    start, size = 0, min(FIRST, BATCH)
    while start < len(rows):
        yield rows[start : start + size]
        start, size = start + size, min(2 * size, BATCH)


def batches(table: Table, rows: Sequence[int], side: float, square: Square | None = None) -> Iterator[Batch]:
    """The rows in batches, one looked at ahead of the one in hand."""
    from lookalike.data import UnreadableImage

    def one(row: int) -> Facts | str:
        try:
            return look(table, row, side, square)
        except UnreadableImage as error:
            return error.reason
        except OSError as error:
            return (error.strerror or str(error)).lower()

    def all_of(part: Sequence[int]) -> Batch:
        batch = Batch(part)
        for row, found in zip(part, crew.map(one, part) if crew is not None else map(one, part), strict=True):
            if isinstance(found, Facts):
                batch.facts[row] = found
            else:
                batch.failed[row] = found
        return batch

    parts = list(_parts(rows))
    # Threads that decode small images mostly hand the interpreter to each other.
    large = table.has("size") and float(np.nanmean(table.column("size"))) > LARGE
    crew = ThreadPoolExecutor(threads(), thread_name_prefix="lookalike-decode") if large else None
    with ThreadPoolExecutor(1, thread_name_prefix="lookalike-look") as pool:
        try:
            waiting = [pool.submit(all_of, part) for part in parts[:1]]
            for number in range(len(parts)):
                batch = waiting.pop().result()
                if number + 1 < len(parts):
                    waiting.append(pool.submit(all_of, parts[number + 1]))
                yield batch
        finally:
            if crew is not None:
                crew.shutdown(cancel_futures=True)
