"""What every measure asks of its input: finite float32 rows, codes as labels, indices for masks."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lookalike.core.errors import LookalikeError

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def as_rows(vectors: Any, what: str = "embeddings") -> Floats:
    """Vectors as a C-contiguous float32 matrix; the first row that is not finite is named."""
    rows = np.ascontiguousarray(vectors, dtype=np.float32)
    if rows.ndim != 2:
        raise LookalikeError(f"The {what} must be a matrix with one row an image, not of shape {rows.shape}.")
    # A sum is finite only if every term is (or if the row overflows, which is no embedding either).
    bad = np.flatnonzero(~np.isfinite(rows.sum(axis=1, dtype=np.float64)))
    if len(bad):
        raise LookalikeError(
            f"{len(bad):,} of {len(rows):,} {what} hold NaN or infinite numbers, the first is row {bad[0]}: "
            "embed these images again or leave them out."
        )
    return rows


def as_codes(labels: Any, count: int, what: str = "labels") -> Ints:
    """One whole number a row for labels of any kind; None, NaN and negative numbers become −1 (no label)."""
    values = np.asarray(labels)
    if values.shape != (count,):
        raise LookalikeError(f"There are {count:,} rows but {what} of shape {values.shape}: one is needed for each.")
    if values.dtype.kind in "iub":
        codes = values.astype(np.int64)
        return np.where(codes < 0, -1, codes)
    missing = np.array([v is None or v != v for v in values.tolist()], dtype=bool)
    codes = np.full(count, -1, dtype=np.int64)
    if not missing.all():
        codes[~missing] = np.unique(values[~missing].astype(str), return_inverse=True)[1].reshape(-1)
    return codes


def as_common_codes(first: Any, second: Any, counts: tuple[int, int]) -> tuple[Ints, Ints]:
    """Codes for two sets of labels, the same for the same class on both sides."""
    one, two = np.asarray(first), np.asarray(second)
    for values, count, what in ((one, counts[0], "train labels"), (two, counts[1], "test labels")):
        if values.shape != (count,):
            raise LookalikeError(f"There are {count:,} rows but {what} of shape {values.shape}.")
    codes = as_codes(np.concatenate([one, two]), sum(counts))
    return codes[: counts[0]], codes[counts[0] :]


def as_index(chosen: Any, count: int, what: str) -> Ints:
    """Row numbers from a mask, from row numbers, or from None (all rows)."""
    if chosen is None:
        return np.arange(count)
    values = np.asarray(chosen)
    if values.dtype == bool:
        if values.shape != (count,):
            raise LookalikeError(f"The mask `{what}` has shape {values.shape}; there are {count:,} rows.")
        return np.flatnonzero(values)
    index = values.astype(np.int64).reshape(-1)
    if len(index) and (index.min() < 0 or index.max() >= count):
        raise LookalikeError(f"`{what}` names rows outside 0 to {count - 1}.")
    if len(np.unique(index)) < len(index):
        raise LookalikeError(f"`{what}` names a row more than once.")
    return index
