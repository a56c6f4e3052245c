"""Which training images ask and which are searched: the query set and the database of DMCAC."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lookalike.core import distributed
from lookalike.core.errors import LookalikeError
from lookalike.core.progress import warn
from lookalike.core.seeds import numpy_rng
from lookalike.data.table import Table

NAMED = 5  # classes that a message names


class Parted(NamedTuple):
    """Row numbers of the training table, ascending. Rows without a label are in neither."""

    queries: np.ndarray
    database: np.ndarray


def part(
    labels: np.ndarray,
    *,
    share: float,
    seed: int,
    table: Table | None = None,
    column: str | None = None,
    unanswered: bool = False,
    tell: bool = True,
) -> Parted:
    """By class, or as a column of the table says (`query`, `database`).

    Of n ≥ 2 images of a class share·n, rounded, at least one and at most all but one, are searched; a single one is
    searched only. A query class without a database row is an error unless `unanswered` allows it.
    """
    labels = np.asarray(labels)
    known = labels >= 0
    searched = _drawn(labels, share, seed) if column is None else _given(table, column)
    found = Parted(np.flatnonzero(known & ~searched), np.flatnonzero(known & searched))
    if not len(found.queries):
        raise LookalikeError(
            "No class has two images or more, so that one could ask and another be found: training with a database "
            "needs such classes."
            if column is None
            else f"No row of the column `{column}` is a `query`."
        )
    if not len(found.database):
        raise LookalikeError(f"No row of the column `{column}` is in the `database`.")
    single = np.setdiff1d(labels[found.database], labels[found.queries])
    tell = tell and distributed.is_main()
    if column is None and len(single) and tell:
        one = len(single) == 1
        what = "1 class has one image" if one else f"{len(single):,} classes have one image each"
        does = "asks nothing, but stands" if one else "ask nothing, but stand"
        warn(f"{what} and {does} in the database: {_names(single, labels, table)}.")
    lost = np.setdiff1d(labels[found.queries], labels[found.database])
    if len(lost) and not unanswered:
        raise LookalikeError(
            f"{len(lost):,} of {len(np.unique(labels[found.queries])):,} query classes have no image in the "
            f"database: {_names(lost, labels, table)}. Add some, or set `method.unanswered` to allow it."
        )
    if len(lost) and tell:
        count = np.isin(labels[found.queries], lost).sum()
        warn(
            f"{count / len(found.queries):.1%} of the queries have no image of their class in the database; "
            "attention cannot find it for them."
        )
    return found


def _drawn(labels: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Whether a row is searched: the first images of each class in a random order."""
    keys = numpy_rng(seed, "database").random(len(labels))
    order = np.lexsort((keys, labels))
    _, starts, place, counts = np.unique(labels[order], return_index=True, return_inverse=True, return_counts=True)
    wanted = np.clip(np.floor(share * counts + 0.5), 1, np.maximum(counts - 1, 1))
    out = np.zeros(len(labels), bool)
    out[order] = np.arange(len(labels)) - starts[place] < wanted[place]
    return out


def _given(table: Table | None, column: str) -> np.ndarray:
    if table is None or not table.has(column):
        raise LookalikeError(f"The images have no column `{column}` that parts queries from the database.")
    values = table.column(column)
    wrong = sorted({str(v) for v in values} - {"query", "database"})
    if wrong:
        raise LookalikeError(f"The column `{column}` holds `{wrong[0]}`; it must say `query` or `database`.")
    return np.asarray(values == "database")


def _names(codes: np.ndarray, labels: np.ndarray, table: Table | None) -> str:
    some = [int(np.flatnonzero(labels == code)[0]) for code in codes[:NAMED]]
    words = [f"`{table.column('label')[row]}`" if table is not None else f"class {labels[row]}" for row in some]
    return ", ".join(words) + (", …" if len(codes) > NAMED else "")
