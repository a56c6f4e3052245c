"""Audit a data set before training: unreadable images, duplicates, leakage across splits, label conflicts."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa

from lookalike.core import artifacts
from lookalike.core.errors import LookalikeError
from lookalike.core.progress import Progress
from lookalike.data.decoding import DECODER, content_id, decode
from lookalike.data.image_reader import ReadFailure, read_images
from lookalike.data.near_duplicates import THUMB, flat, groups, near_pairs, perceptual_hash
from lookalike.data.table import Table, read_cached, write_cached


@dataclasses.dataclass(frozen=True, eq=False)
class Audit:
    """Result of `audit`. Row numbers refer to `table`, which has `content_id` and no unreadable rows.

    Args:
        table: The readable rows.
        unreadable: Row id and reason of every unreadable image.
        exact: Groups of rows with equal pixels.
        near: Pairs that connect the groups of near duplicates, with their correlation.
        across: Groups, exact or near, with rows in more than one split.
        conflicts: Groups of rows with equal pixels and different labels.
        flat: Number of images with too little contrast to search for near duplicates.
        unsearched: Number of images with too many similar hashes to be searched.

    Example:
        >>> result = la.data.audit(la.read_table("photos"))
        >>> result.across, result.conflicts
        ([], [])
    """

    table: Table
    unreadable: list[tuple[str, str]]
    exact: list[list[int]]
    near: list[tuple[int, int, float]]
    across: list[list[int]]
    conflicts: list[list[int]]
    flat: int
    unsearched: int

    def facts(self) -> dict[str, int]:
        """Return the counts, for the report and for `--json`."""
        exact = {row: number for number, group in enumerate(self.exact) for row in group}
        same = sum(len({exact.get(row) for row in group}) == 1 and group[0] in exact for group in self.across)
        return {
            "images": len(self.table),
            "unreadable": len(self.unreadable),
            "exact_groups": len(self.exact),
            "exact_copies": sum(len(group) - 1 for group in self.exact),
            "near_pairs": len(self.near),
            "near_groups": len(groups(len(self.table), self.near)),
            "across_exact": same,
            "across_near": len(self.across) - same,
            "label_conflicts": len(self.conflicts),
            "flat": self.flat,
            "unsearched": self.unsearched,
        }


def audit(table: Table, *, near: bool = True, max_bad: float = 0.05, progress: bool = False) -> Audit:
    """Decode every image once and report what is wrong with the data set.

    Args:
        table: The images.
        near: Whether to search for near duplicates, too.
        max_bad: Greatest fraction of unreadable images; above 0 a single one is never too many.
        progress: Whether to show a progress bar.

    Returns:
        What was detected; the result is cached for unchanged tables.

    Raises:
        LookalikeError: More than `max_bad` of the images are unreadable.

    Example:
        >>> result = la.data.audit(la.read_table("photos"))
        >>> len(result.table), result.unreadable, result.exact
        (24, [], [])
    """
    facts = _image_facts(table, progress)
    reasons = facts["reason"].to_pylist()
    bad = [i for i, reason in enumerate(reasons) if reason is not None]
    row_ids = table.column("row_id")
    unreadable = [(str(row_ids[i]), reasons[i]) for i in bad]
    if len(bad) > max(max_bad * len(table), max_bad > 0):
        named = "; ".join(f"`{row_id}`: {reason}" for row_id, reason in unreadable[:3])
        raise LookalikeError(
            f"{len(bad):,} of {len(table):,} images cannot be read, more than {max_bad:.0%} ({named}): "
            "repair or remove them."
        )
    good = np.setdiff1d(np.arange(len(table)), bad)
    facts = facts.take(good)
    clean = table.take(good).with_column("content_id", facts["content_id"])

    codes = clean.arrow["content_id"].combine_chunks().dictionary_encode().indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(codes[order])) + 1)
    exact = sorted(part.tolist() for part in parts if len(part) > 1)
    first = np.unique(codes, return_index=True)[1]  # one row a content is enough for the search
    pairs: list[tuple[int, int, float]] = []
    even, unsearched = 0, 0
    if near and len(clean):
        values = facts["thumb"].combine_chunks()
        start, width = values.offset, values.type.byte_width
        thumbs = np.frombuffer(values.buffers()[1], np.uint8).reshape(-1, width)[start : start + len(values)]
        level = flat(thumbs)
        rows = np.sort(first[~level[first]])
        near_rows, unsearched = near_pairs(facts["hash"].to_numpy()[rows], thumbs[rows])
        pairs = [(int(rows[i]), int(rows[j]), score) for i, j, score in near_rows]
        even = int(level.sum())
    links = [(group[0], row) for group in exact for row in group[1:]] + [(i, j) for i, j, _ in pairs]
    across = [group for group in groups(len(clean), links) if _values(clean, "split", group) > 1]
    conflicts = [group for group in exact if _values(clean, "label", group) > 1]
    return Audit(clean, unreadable, exact, pairs, across, conflicts, even, unsearched)


def _values(table: Table, column: str, rows: list[int]) -> int:
    """Return how many different values a column has in some rows, without missing ones."""
    if column not in table.names:
        return 0
    return len({str(value) for i in rows if (value := table.arrow[column][i].as_py()) is not None})


def _image_facts(table: Table, progress: bool) -> pa.Table:
    """Return content id, failure reason, hash and thumbnail of every row, from the cache if possible."""
    key = {"decoder": DECODER, "table": table.fingerprint(), "rows": len(table)}
    path = artifacts.artifact("audits", key, group=table.fingerprint())
    if (cached := read_cached(path)) is not None:
        return cached

    def examine(i: int) -> tuple[str | None, str | None, int, bytes]:
        pixels = decode(table.open_bytes(i), box=table.box(i))
        number, thumb = perceptual_hash(pixels)
        return content_id(pixels), None, number, thumb.tobytes()

    lasting = True  # a file that could not be opened may come back
    blank = bytes(THUMB * THUMB * 3)
    kinds = {"content_id": pa.string(), "reason": pa.string(), "hash": pa.uint64(), "thumb": pa.binary(len(blank))}
    rows = []
    with Progress("Checking images", len(table), shown=progress) as bar:
        for result in read_images(examine, range(len(table))):
            if isinstance(result, ReadFailure):
                lasting = lasting and not result.transient
                result = (None, result.reason, 0, blank)
            rows.append(result)
            bar.advance()
    columns = zip(*rows, strict=True) if rows else [()] * len(kinds)
    arrays = {name: pa.array(values, kind) for (name, kind), values in zip(kinds.items(), columns, strict=True)}
    facts = pa.table(arrays)
    if lasting:
        write_cached(path, facts)
    return facts
