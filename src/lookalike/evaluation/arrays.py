"""Array types, checked conversion of a metric's input, and exact scores of single pairs."""

from __future__ import annotations

import functools
import unicodedata
from typing import Any

import numpy as np
import numpy.typing as npt

from lookalike.core.errors import LookalikeError
from lookalike.core.progress import warn

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

PAIR_CHUNK = 512


def as_rows(vectors: Any, what: str = "embeddings") -> Floats:
    """Convert vectors to a C-contiguous float32 matrix of finite values.

    Raises:
        LookalikeError: If the array is not a matrix, or a row holds NaN or infinity.
    """
    rows = np.ascontiguousarray(vectors, dtype=np.float32)
    if rows.ndim != 2:
        raise LookalikeError(f"The {what} must be a matrix with one row per image, not an array of shape {rows.shape}.")
    # A sum is finite only if every term is (or if the row overflows, which is no embedding either).
    bad = np.flatnonzero(~np.isfinite(rows.sum(axis=1, dtype=np.float64)))
    if len(bad):
        raise LookalikeError(
            f"{len(bad):,} of {len(rows):,} {what} hold NaN or infinite values, the first is row {bad[0]}: "
            "embed these images again or leave them out."
        )
    return rows


def as_unit_rows(vectors: Any, what: str = "embeddings") -> Floats:
    """Convert vectors as :func:`as_rows`; warns once in a process if their lengths are not 1."""
    rows = as_rows(vectors, what)
    lengths = np.einsum("ij,ij->i", rows, rows)
    if len(rows) and float(np.abs(lengths - 1).max()) > 0.01:
        _warn_of_lengths(what)
    return rows


@functools.cache
def _warn_of_lengths(what: str) -> None:
    warn(f"The {what} are not of length 1: dot products compare them, which is the cosine only for unit vectors.")


def as_codes(labels: Any, count: int, what: str = "labels") -> Ints:
    """Convert labels of any type to integer codes; None, NaN and negative numbers become −1 (no label).

    Integer labels keep their values; others are numbered in sorted order.
    """
    values = _as_array(labels)
    if values.shape != (count,):
        raise LookalikeError(f"There are {count:,} rows but {what} of shape {values.shape}: one is needed for each.")
    if values.dtype.kind in "ib" or (values.dtype.kind == "u" and values.max(initial=0) < 2**63):
        codes = values.astype(np.int64)
        return np.where(codes < 0, -1, codes)
    # NaN, NaT and pandas.NA: what does not equal itself
    missing = np.array([v is None or str(v == v) != "True" for v in values.tolist()], dtype=bool)
    codes = np.full(count, -1, dtype=np.int64)
    if not missing.all():
        names = values[~missing].astype(str)
        if values.dtype.kind not in "fc":  # the two spellings of an accented letter are one class
            names = np.array([unicodedata.normalize("NFC", name) for name in names.tolist()])
        codes[~missing] = np.unique(names, return_inverse=True)[1].reshape(-1)
    return codes


def as_common_codes(train_labels: Any, test_labels: Any, counts: tuple[int, int]) -> tuple[Ints, Ints]:
    """Convert two sets of labels to codes that are the same for the same class in both."""
    both = [_as_array(train_labels), _as_array(test_labels)]
    for values, count, what in zip(both, counts, ("train labels", "test labels"), strict=True):
        if values.shape != (count,):
            raise LookalikeError(f"There are {count:,} rows but {what} of shape {values.shape}.")
    codes = as_codes(np.concatenate(both), sum(counts))
    return codes[: counts[0]], codes[counts[0] :]


def _as_array(labels: Any) -> npt.NDArray[Any]:
    values = np.asarray(labels)
    if isinstance(labels, (list, tuple)) and values.dtype.kind in "US":
        return np.asarray(labels, dtype=object)  # NumPy writes NaN among texts as "nan"
    return values


def as_index(rows: Any, count: int, what: str) -> Ints:
    """Convert a boolean mask, row indices, or None (all rows) to row indices."""
    if rows is None:
        return np.arange(count)
    values = np.asarray(rows)
    if values.dtype == bool:
        if values.shape != (count,):
            raise LookalikeError(f"The mask `{what}` has shape {values.shape}; there are {count:,} rows.")
        return np.flatnonzero(values)
    index = values.astype(np.int64).reshape(-1)
    if len(index) and (index.min() < 0 or index.max() >= count):
        raise LookalikeError(f"`{what}` has rows outside 0 to {count - 1}.")
    if len(np.unique(index)) < len(index):
        raise LookalikeError(f"`{what}` has a row more than once.")
    return index


def pair_scores(rows: Floats, i: Ints, j: Ints, others: Floats | None = None) -> Doubles:
    """Compute dot products of rows ``i`` with rows (or ``others``) ``j`` in double precision.

    Each product is summed in the same order whatever else is computed, so equal rows give equal bits.
    """
    others = rows if others is None else others
    out = np.empty(len(i), np.float64)
    for start in range(0, len(i), PAIR_CHUNK):
        part = slice(start, start + PAIR_CHUNK)
        out[part] = np.einsum("ij,ij->i", rows[i[part]].astype(np.float64), others[j[part]].astype(np.float64))
    return out


def equal_pairs(left: Ints, right: Ints) -> tuple[Ints, Ints]:
    """Find every ``(i, j)`` with ``left[i] == right[j] >= 0``, ordered by i and then j."""
    order = np.argsort(right, kind="stable")
    ranked = right[order]
    first, last = np.searchsorted(ranked, left, "left"), np.searchsorted(ranked, left, "right")
    count = np.where(left >= 0, last - first, 0)
    i = np.repeat(np.arange(len(left)), count)
    offset = np.arange(len(i)) - np.repeat(np.cumsum(count) - count, count)
    return i, order[np.repeat(first, count) + offset]
