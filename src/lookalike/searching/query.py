"""`search`: images in, hits with a verdict out."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lookalike.core.errors import LookalikeError
from lookalike.core.files import hash_bytes
from lookalike.core.locks import Locked
from lookalike.core.progress import warn
from lookalike.searching.filters import Filters, describe, parse
from lookalike.searching.hits import UNLIKE, WORDS, Hit, Hits
from lookalike.searching.index_folder import Index
from lookalike.searching.remote import RemoteIndex
from lookalike.searching.writer import check_model
from lookalike.store import Condition

if TYPE_CHECKING:
    from lookalike.models import Embedder
    from lookalike.store import Hit as StoreHit

MOST = 1000  # hits of one answer
NEIGHBORS = 52  # how many more are fetched, for the edge of the query's neighborhood (the calibration's 50th hit)
COPIES = 8  # how many where there is no calibration: some may be copies of others
SEVERAL = 0.05  # added to each side of the interval when several images ask: they were not checked for that


def search(
    *,
    query: Any = None,
    text: str | None = None,
    index: str | os.PathLike[str] | Index | None = None,
    k: int = 10,
    filters: Filters = None,
    all: bool = False,  # noqa: A002 (the command line's --all)
    more: Sequence[Any] = (),
    less: Sequence[Any] = (),
    box: Sequence[float] | None = None,
    model: str | os.PathLike[str] | Embedder | None = None,
    exact: bool = False,
    device: str = "auto",
) -> Hits | list[Hits]:
    """What an index holds that looks like an image, or that words describe.

    `query` is a path, bytes, a PIL image or an array, or `-` for an image on standard input; a folder asks for
    each of its images in turn and gives a list; those that cannot be read are told at the end. `text` asks by words,
    where the index's model reads them. `more` and `less` are further images to look like and unlike; `box` is the
    part of the query that counts (x1, y1, x2, y2 in pixels). `filters`: `label=gull`, `path=sea/*`, `domain!=sketch`.
    `all` shows weak hits too.
    """
    if not 1 <= k <= MOST:
        raise LookalikeError(f"`k` is {k}; it must lie between 1 and {MOST:,}.")
    with ExitStack() as stack:
        opened = index if isinstance(index, Index) else stack.enter_context(Index.open(index, device=device))
        check_model(opened.generation.model, model)
        where = parse(filters, opened.columns)
        opened.check_columns(condition.column for condition in where)
        service = _held(opened)
        if (query is None) == (text is None):
            raise LookalikeError("Give an image to search by, or words (`--text`), not both.")
        options: dict[str, Any] = {"show_all": all, "more": more, "less": less, "exact": exact, "service": service}
        if text is not None:
            if box is not None:
                raise LookalikeError("`--box` is a part of the image that asks; words have none: leave it out.")
            return ask(opened, None, k, where, words=text, **options)
        if isinstance(query, str) and query == "-":
            query = _standard_input()
        path = Path(query) if isinstance(query, (str, os.PathLike)) else None
        if path is not None and not path.exists():
            raise LookalikeError(f"There is no image `{query}`.")
        if path is None or not path.is_dir():
            return ask(opened, query, k, where, box=box, **options)
        if box is not None:
            raise LookalikeError("`--box` is a part of one image; leave it out to ask by a folder.")
        from lookalike.data import read_table

        table = read_table(path, layout="folder")
        if not len(table):
            raise LookalikeError(f"`{query}` holds no images.")
        files = [table.file(row) for row in range(len(table))]
        return _ask_each(opened, [file for file in files if file], k, where, **options)


def _ask_each(index: Index, files: Sequence[Path], k: int, where: Sequence[Condition], **options: Any) -> list[Hits]:
    """One answer for each image that can be read; what cannot is told at the end, not instead."""
    from lookalike.data import UnreadableImage

    vectors_of(index, [*options["more"], *options["less"]])  # one that cannot be read would spoil every answer
    found: list[Hits] = []
    failed: list[UnreadableImage] = []
    for file in files:
        try:
            found.append(ask(index, file, k, where, **options))
        except UnreadableImage as error:
            failed.append(error)
    if not found:
        raise failed[0]
    if failed:
        named = " ".join(str(error) for error in failed[:3]) + (" …" if len(failed) > 3 else "")
        warn(f"{len(failed):,} of {len(files):,} images could not be asked by. {named}")
    return found


def _held(index: Index) -> RemoteIndex | None:
    """The service that has the store to itself, if there is one; any other holder is an error."""
    try:
        index.store  # noqa: B018 (opened here, told here)
    except Locked:
        service = RemoteIndex.of(index)
        if service is None:
            raise
        return service
    return None


def ask(
    index: Index,
    query: Any,
    k: int,
    where: Sequence[Condition] = (),
    *,
    show_all: bool = False,
    more: Sequence[Any] = (),
    less: Sequence[Any] = (),
    box: Sequence[float] | None = None,
    exact: bool = False,
    service: RemoteIndex | None = None,
    words: str | None = None,
) -> Hits:
    """Search by images, the first of which may be `words`: embed them, then `answer`, or let a running service."""
    start = time.monotonic()
    same: set[str] = set()
    if words is None:
        name, image = _name_of(query), _loaded(query)
        same = {hash_bytes(image)} if isinstance(image, bytes) and box is None else same
        first, name = embed(index, [image], box, [name]), name or "image"
    else:
        name, first = words, index.embed_text(words)[None]
    positive, negative = np.concatenate([first, vectors_of(index, more)]), vectors_of(index, less)
    if service is not None:
        found = service.answer(positive, negative, k, where, same=same, exact=exact, words=words is not None)
        return Hits.from_json(found, name=name, index=str(index.path), show_all=show_all)
    return answer(
        index,
        positive,
        k,
        where,
        negative=negative,
        name=name,
        same=same,
        start=start,
        show_all=show_all,
        exact=exact,
        words=words is not None,
    )


def vectors_of(index: Index, images: Sequence[Any]) -> np.ndarray:
    """Unit vectors of examples."""
    if not images:
        return np.empty((0, index.generation.dim), np.float32)
    return embed(index, [_loaded(image) for image in images], None, [_name_of(image) for image in images])


def _name_of(image: Any) -> str:
    return str(image) if isinstance(image, (str, os.PathLike)) else ""


def _standard_input() -> bytes:
    data = sys.stdin.buffer.read()
    if not data:
        raise LookalikeError("There is no image on standard input: `lookalike search - < IMAGE`.")
    return data


def _loaded(image: Any) -> Any:
    """The bytes of a file, so that it is read once: for its vector and for telling an identical file."""
    if not isinstance(image, (str, os.PathLike)):
        return image
    from lookalike.data import UnreadableImage

    try:
        return Path(image).read_bytes()
    except OSError as error:
        raise UnreadableImage(str(error.strerror), image) from error


def embed(index: Index, images: Sequence[Any], box: Sequence[float] | None, names: Sequence[str]) -> np.ndarray:
    """Unit vectors of query images; `box` belongs to the first."""
    from lookalike.data import UnreadableImage

    if box is not None:
        from lookalike.data import decode

        images = [decode(images[0], box=tuple(box)), *images[1:]]
    rows, failures = index.embedder.encode(list(images), on_error="skip")
    for failure in failures:
        raise UnreadableImage(failure.reason, names[failure.index] or failure.name)
    return np.asarray(rows)


def answer(
    index: Index,
    positive: np.ndarray,
    k: int,
    where: Sequence[Condition] = (),
    *,
    negative: np.ndarray | None = None,
    name: str = "image",
    same: Collection[str] = (),
    without: Sequence[str] = (),
    start: float | None = None,
    show_all: bool = False,
    exact: bool = False,
    words: bool = False,
) -> Hits:
    """Search by vectors. `same` are hashes of files that count as identical, `without` contents to leave out.

    `words`: one of the vectors is that of words; nobody has checked how such scores read, so only the order is shown.
    """
    begin = time.monotonic() if start is None else start
    examples = np.atleast_2d(positive)
    negatives = negative if negative is not None and len(negative) else None
    others = [Condition("content_id", tuple(without), negate=True)] if without else []
    found = _folded(index, examples, negatives, k, [*where, *others], exact)
    # The neighborhood is that of the whole index: a filter must not make what is left look near.
    around = _folded(index, examples, negatives, 1, others, exact) if where else found
    for hit in (*found, *around):
        hit.identical = hit.payload.get("_hash") in same
    note = WORDS if words else _weigh(index, found, around, alone=len(examples) == 1 and negatives is None)
    return Hits(
        query=name,
        hits=found[:k],
        images=index.store.count(where),
        milliseconds=1000 * (time.monotonic() - begin),
        index=str(index.path),
        filters=describe(where),
        note=note,
        show_all=show_all,
    )


def _folded(
    index: Index,
    positive: np.ndarray,
    negative: np.ndarray | None,
    k: int,
    where: Sequence[Condition],
    exact: bool,
) -> list[Hit]:
    """At least the k best images, copies of the same pixels folded into the first of them."""
    wanted = k + (COPIES if index.scores.calibration is None else NEIGHBORS)
    while True:
        rows = index.store.query(positive, wanted, negative=negative, where=where, exact=exact)
        found = _fold(rows)
        if len(found) >= k or len(rows) < wanted:
            return found
        wanted *= 3


def _fold(rows: Sequence[StoreHit]) -> list[Hit]:
    found: dict[str, Hit] = {}
    for row in rows:
        content = str(row.payload.get("content_id") or row.id)
        if content in found:
            found[content].copies.append(str(row.payload.get("path", row.id)))
        else:
            found[content] = Hit(row.id, row.score, row.payload)
    return list(found.values())


def _weigh(index: Index, hits: list[Hit], around: list[Hit], *, alone: bool) -> str:
    """Give hits their probabilities, where the index has what it takes; what must be said if they are only rough.

    The query itself, found again, says nothing about its neighborhood and is left out of it.
    """
    scores = np.array([hit.score for hit in hits])
    if index.scores.background is not None:
        for hit, share in zip(hits, index.scores.background.share_below(scores), strict=True):
            hit.closer_than = float(share)
    calibration = index.scores.calibration
    if calibration is None or not hits:
        return ""
    near = [hit.score for hit in around if not hit.identical] or [hit.score for hit in around]
    level = calibration.level(np.array(near))
    spread = 0.0 if alone else SEVERAL
    for hit, p, low, high in zip(hits, *calibration.probability(scores, level), strict=True):
        hit.probability, hit.low, hit.high = float(p), max(float(low) - spread, 0.0), min(float(high) + spread, 1.0)
        if hit.identical:
            hit.probability = hit.low = hit.high = 1.0
    return " ".join(filter(None, [index.scores.note, "" if bool(calibration.within(level)) else UNLIKE]))
