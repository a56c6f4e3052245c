"""Reading ahead: while the model works on one batch, the next one's files are hashed and looked at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from lookalike.core.files import hash_bytes

if TYPE_CHECKING:
    from lookalike.data import Table

BATCH = 512  # pictures acknowledged at a time: what a kill costs at most

# Copies are told by their pixels. A picture much larger than this is compared at reduced size: decoding it whole
# would take longer than embedding it, and equal files still give equal pixels.
SHORT_SIDE = 1024


@dataclass(frozen=True)
class Facts:
    """What only reading a picture tells."""

    hash: str  # of the encoded bytes
    content: str  # of the decoded pixels
    ratio: float  # width by height
    colour: str  # the mean, to paint before the picture is there

    def payload(self) -> dict[str, Any]:
        return {"_hash": self.hash, "content_id": self.content, "_ratio": self.ratio, "_colour": self.colour}


@dataclass
class Batch:
    rows: Sequence[int]
    facts: dict[int, Facts] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)


def look(table: Table, row: int) -> Facts:
    """Read one picture; raises what a picture that cannot be read raises."""
    from lookalike.data import content_id, decode

    data = table.open_bytes(row)
    pixels = decode(data, box=table.box(row), min_side=SHORT_SIDE)
    height, width = pixels.shape[:2]
    mean = pixels[:: max(1, height // 16), :: max(1, width // 16)].reshape(-1, 3).mean(axis=0)
    colour = "#" + "".join(f"{int(c):02x}" for c in np.clip(mean, 0, 255))
    return Facts(hash_bytes(data), content_id(pixels), round(width / height, 4), colour)


def _look_at(table: Table, rows: Sequence[int]) -> Batch:
    from lookalike.data import UnreadableImage

    batch = Batch(rows)
    for row in rows:
        try:
            batch.facts[row] = look(table, row)
        except UnreadableImage as error:
            batch.failed[row] = error.reason
        except OSError as error:
            batch.failed[row] = (error.strerror or str(error)).lower()
    return batch


def batches(table: Table, rows: Sequence[int]) -> Iterator[Batch]:
    """The rows in batches, one looked at ahead of the one in hand."""
    parts = [rows[start : start + BATCH] for start in range(0, len(rows), BATCH)]
    with ThreadPoolExecutor(1, thread_name_prefix="lookalike-look") as pool:
        waiting = [pool.submit(_look_at, table, part) for part in parts[:1]]
        for number in range(len(parts)):
            batch = waiting.pop().result()
            if number + 1 < len(parts):
                waiting.append(pool.submit(_look_at, table, parts[number + 1]))
            yield batch
