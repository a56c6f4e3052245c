"""Images for the empty screen: few, and as different from each other as the collection allows."""

from __future__ import annotations

import numpy as np

from lookalike.core.seeds import numpy_rng
from lookalike.searching import Index
from lookalike.store import Record, Where

SAMPLE = 400


def mosaic(index: Index, count: int, where: Where = ()) -> list[Record]:
    """Farthest-first over a random sample: each next image is the one least like those chosen."""
    if where:
        names = np.array([record.id for batch in index.store.scan(where=where) for record in batch], dtype=object)
    else:
        names = index.table.column("row_id")
    rng = numpy_rng(0, "mosaic")
    chosen = rng.choice(len(names), min(SAMPLE, len(names)), replace=False)
    found = [record for record in index.store.get([str(names[i]) for i in chosen], vectors=True) if record]
    records = list({record.payload.get("content_id", record.id): record for record in found}.values())
    if not records:
        return []
    vectors = np.stack([record.vector for record in records if record.vector is not None])
    order = [0]
    nearest = vectors @ vectors[0]
    while len(order) < min(count, len(records)):
        nearest[order[-1]] = np.inf
        order.append(int(np.argmin(nearest)))
        nearest = np.maximum(nearest, vectors @ vectors[order[-1]])
    return [records[place] for place in rng.permutation(order)]
