"""The ``search`` command and ``Query``, the one model of a search for Python, the command line and the HTTP API."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lookalike.core.errors import LookalikeError
from lookalike.core.files import MAX_BYTES, format_bytes, hash_bytes, read_bytes
from lookalike.core.progress import Progress, warn
from lookalike.searching.filters import describe, parse, to_rule
from lookalike.searching.hits import TEXT_NOTE, UNLIKE_NOTE, Hit, Hits
from lookalike.searching.index_folder import Index
from lookalike.store import Condition, direction

if TYPE_CHECKING:
    from lookalike.store import Hit as StoreHit

MAX_HITS = 1000
BATCH = 64  # images of a folder that are searched by together
NEIGHBORS = 52  # further hits that are fetched to measure the query's neighborhood (calibration uses the 50th)
EXTRA_HITS = 8  # further hits without a calibration: some may be copies of others
SEVERAL_MARGIN = 0.05  # widens the interval on each side for several examples, on which calibration was not checked


@dataclass(frozen=True)
class Query:
    """A search: example vectors, filters, and how to answer. Every way to search ends in one.

    Args:
        positive: Unit vectors of the examples to look like, by the index's model.
        negative: Unit vectors of the examples to look unlike.
        k: Number of hits.
        where: Conditions that hits must meet.
        name: What to call the query in the answer.
        is_text: Whether the first vector is that of a text. Probabilities are not calibrated for texts, so hits are
            only ranked.
        identical: Hashes of files that count as identical to the query.
        exclude: Content ids that are not hits.
        exact: Compare with every vector instead of searching the store's graph.

    Shape:
        - positive: ``(P, D)`` or ``(D,)``; negative: ``(N, D)``.

    Raises:
        LookalikeError: If there is no positive example or ``k`` is out of range.

    Example:
        >>> Query(np.ones((1, 4)), k=3).examples
        1
        >>> Query(np.empty((0, 4)))
        Traceback (most recent call last):
        ...
        lookalike.core.errors.LookalikeError: Add an image to search for first.
    """

    positive: np.ndarray
    negative: np.ndarray | None = None
    k: int = 10
    where: Sequence[Condition] = ()
    name: str = "image"
    is_text: bool = False
    identical: Collection[str] = ()
    exclude: Sequence[str] = ()
    exact: bool = False

    def __post_init__(self) -> None:
        check_k(self.k)
        object.__setattr__(self, "positive", np.atleast_2d(self.positive))
        if self.negative is not None and not len(self.negative):
            object.__setattr__(self, "negative", None)
        if not len(self.positive):
            raise LookalikeError("Add an image to search for first.")

    @property
    def examples(self) -> int:
        """Number of examples, positive and negative."""
        return len(self.positive) + (0 if self.negative is None else len(self.negative))

    def run(
        self, index: Index, *, start: float | None = None, first: Sequence[StoreHit] | None = None, **shown: Any
    ) -> Hits:
        """Search an index.

        Args:
            index: The index.
            start: When the request came in (``time.monotonic()``), for the time that is shown.
            first: The nearest rows, :meth:`fetched` of them, if they are known already.
            shown: How to print the answer; see :class:`Hits`.

        Returns:
            The hits with their probabilities and a verdict.
        """
        start = time.monotonic() if start is None else start
        excluded = [Condition("content_id", tuple(self.exclude), negate=True)] if self.exclude else []
        hits = self._nearest(index, self.k, [*self.where, *excluded], first)
        # The neighborhood is that of the whole index: a filter must not make the remaining images look near.
        neighborhood = self._nearest(index, 1, excluded) if self.where else hits
        for hit in (*hits, *neighborhood):
            hit.identical = hit.payload.get("_hash") in self.identical
        return Hits(
            query=self.name,
            hits=hits[: self.k],
            note=TEXT_NOTE if self.is_text else self._add_probabilities(index, hits, neighborhood),
            images=index.store.count(self.where),
            milliseconds=1000 * (time.monotonic() - start),
            index=str(index.path),
            filters=describe(self.where),
            **shown,
        )

    @staticmethod
    def fetched(index: Index, k: int) -> int:
        """Return how many rows are fetched for k hits: copies are folded, and calibration needs the neighborhood."""
        return k + (EXTRA_HITS if index.scores.calibration is None else NEIGHBORS)

    def _nearest(
        self, index: Index, k: int, where: Sequence[Condition], rows: Sequence[StoreHit] | None = None
    ) -> list[Hit]:
        """At least the k best images, with files of equal pixels folded into the first of them."""
        limit = self.fetched(index, k)
        while True:
            if rows is None:
                rows = index.store.query(self.positive, limit, negative=self.negative, where=where, exact=self.exact)
            hits = _fold_copies(rows)
            if len(hits) >= k or len(rows) < limit:
                return hits
            limit, rows = 3 * limit, None

    def _add_probabilities(self, index: Index, hits: list[Hit], neighborhood: list[Hit]) -> str:
        """Set the probabilities of hits where the index is calibrated; returns a caveat if they are only rough."""
        scores = np.array([hit.score for hit in hits])
        if index.scores.background is not None:
            for hit, fraction in zip(hits, index.scores.background.fraction_below(scores), strict=True):
                hit.closer_than = float(fraction)
        calibration, generation = index.scores.calibration, index.generation
        if not generation.writes:
            done, source = index.store.count(), shlex.quote(index.manifest.source)
            return (
                f"The index is unfinished, {done:,} of {generation.planned:,} so far: run `lookalike index {source}`."
            )
        if calibration is None or not hits:
            return index.scores.note
        # The query itself, if it is in the index, says nothing about its neighborhood.
        near = [hit.score for hit in neighborhood if not hit.identical] or [hit.score for hit in neighborhood]
        level = calibration.level(np.array(near))
        margin = 0.0 if self.examples == 1 else SEVERAL_MARGIN
        for hit, p, low, high in zip(hits, *calibration.probability(scores, level), strict=True):
            hit.probability, hit.low, hit.high = float(p), max(float(low) - margin, 0.0), min(float(high) + margin, 1.0)
            if hit.identical:
                hit.probability = hit.low = hit.high = 1.0
        return " ".join(filter(None, [index.scores.note, "" if bool(calibration.in_range(level)) else UNLIKE_NOTE]))


def check_k(k: int) -> None:
    """Raise if a number of hits is out of range."""
    if not 1 <= k <= MAX_HITS:
        raise LookalikeError(f"`k` is {k}; it must be between 1 and {MAX_HITS:,}.")


def _fold_copies(rows: Sequence[StoreHit]) -> list[Hit]:
    hits: dict[str, Hit] = {}
    for hit in (Hit(*row) for row in rows):
        first = hits.setdefault(str(hit.payload.get("content_id") or hit.id), hit)
        if first is not hit:
            first.copies.append(hit.path)
    return list(hits.values())


def search(
    *,
    query: Any = None,
    text: str | None = None,
    index: str | Path | Index | None = None,
    k: int = 10,
    filters: str | Sequence[str] | None = None,
    all: bool = False,  # noqa: A002 (the command line's --all)
    more: Sequence[Any] = (),
    less: Sequence[Any] = (),
    box: Sequence[float] | None = None,
    model: str | Path | None = None,
    exact: bool = False,
    device: str = "auto",
    progress: bool = True,
) -> Hits | list[Hits]:
    """Search an index by an image or a text.

    The answer says how likely each hit shows the same thing, where the index has labeled images to calibrate on.
    A folder is searched image by image; images that cannot be read are reported at the end.

    Args:
        query: An image, a folder of images, or - for standard input. In Python also bytes, a PIL image or an array.
        text: A text to search by (open_clip models).
        index: An index, a run or an image folder (default: the index updated last).
        k: Number of hits.
        filters: Conditions such as label=gull, domain!=sketch, width>=1000 or taken=2024-06..2024-08
            (repeatable). In Python also a mapping of columns to values.
        all: Show weak hits too.
        more: Further images to look like (repeatable).
        less: Images to look unlike (repeatable).
        box: The part of the image to search by: x1,y1,x2,y2 in pixels, or in fractions if all are at most 1.
        model: Require that the index was made with this model.
        exact: Compare with every image instead of using the graph.
        device: Device to run the model on: auto, cpu, cuda or mps.
        progress: Show a progress bar for a folder.

    Returns:
        The hits, best first; one answer per image for a folder.

    Raises:
        LookalikeError: If there is no such image or index, or if options do not fit together.

    Example:
        >>> hits = la.search(query="photos/class-00/0.jpg", index="photos", k=3)  # doctest: +SKIP
        >>> print(hits)  # doctest: +SKIP
        Found: 3 matches in 24 images (12 ms to embed and search)
    """
    check_k(k)
    with ExitStack() as stack:
        opened = index if isinstance(index, Index) else stack.enter_context(Index.open(index, device=device))
        opened.check_model(model)
        where = opened.where(filters)
        if (query is None) == (text is None):
            raise LookalikeError("Give either an image or a text (`--text`) to search by.")
        opened.store  # noqa: B018 (errors come before the query is embedded)
        if opened is not index and text is None:  # of an index that was restored here, or a cache that was cleared
            opened.convert_model()
        named = None if index is None or isinstance(index, Index) else index
        given = [("index", named), *(("filter", rule) for rule in to_rule(parse(filters, opened.columns)))]
        given += [("more", image) for image in more] + [("less", image) for image in less]
        given += [("model", model), ("box", ",".join(f"{value:g}" for value in box) if box is not None else None)]
        given += [("k", None if k == 10 else str(k)), ("device", None if device == "auto" else device)]
        options = "".join(f" --{name} {shlex.quote(str(value))}" for name, value in given if value is not None)
        options += " --exact" * exact
        searcher = _Searcher(opened, k, where, _embed(opened, more), _embed(opened, less), exact, all, options)
        if text is not None:
            if box is not None:
                raise LookalikeError("`--box` is a part of an image: leave it out to search by a text.")
            start = time.monotonic()
            return searcher.run(searcher.query(opened.embed_text(text), name=text, is_text=True), start)
        if isinstance(query, str) and query == "-":
            query = sys.stdin.buffer.read(MAX_BYTES + 1)
            if not 0 < len(query) <= MAX_BYTES:
                what = f"more than {format_bytes(MAX_BYTES)}" if query else "no image"
                raise LookalikeError(f"There is {what} on standard input: `lookalike search - < IMAGE`.")
        path = Path(query) if isinstance(query, (str, os.PathLike)) else None
        if path is not None and not path.exists():
            raise LookalikeError(f"There is no image `{query}`.")
        if path is None or not path.is_dir():
            return searcher.search_image(query, box)
        if box is not None:
            raise LookalikeError("`--box` is a part of one image: leave it out to search by a folder.")
        from lookalike.data import read_table

        table = read_table(path, layout="folder")
        if not len(table):
            raise LookalikeError(f"`{query}` contains no images.")
        files = [table.file(row) for row in range(len(table))]
        with Progress("Searching", len(files), shown=progress) as bar:
            return searcher.search_files([file for file in files if file], bar)


@dataclass(frozen=True)
class _Searcher:
    """Run queries that share an index, filters, and further examples to look like (``more``) or unlike."""

    index: Index
    k: int
    where: Sequence[Condition]
    more: np.ndarray
    less: np.ndarray
    exact: bool
    show_all: bool
    options: str

    def query(self, vector: np.ndarray, **fields: Any) -> Query:
        positive = np.concatenate([vector[None], self.more])
        return Query(positive, self.less, self.k, self.where, exact=self.exact, **fields)

    def run(self, query: Query, start: float, **shown: Any) -> Hits:
        command = f"lookalike search {'--text ' * query.is_text}{shlex.quote(query.name)}{self.options}"
        return query.run(self.index, start=start, show_all=self.show_all, command=command, **shown)

    def search_image(self, image: Any, box: Sequence[float] | None = None) -> Hits:
        self.index.query_encoder  # noqa: B018 (loaded before the time starts)
        start = time.monotonic()
        data = _read(image)
        identical = {hash_bytes(data)} if isinstance(data, bytes) and box is None else set()
        [vector] = _embed(self.index, [data], box, names=[image])
        return self.run(self.query(vector, name=_name_of(image) or "image", identical=identical), start)

    def search_files(self, files: Sequence[Path], bar: Progress) -> list[Hits]:
        """One answer per readable image, searched in batches; unreadable ones are reported at the end."""
        from lookalike.data import UnreadableImage

        encoder = self.index.query_encoder if len(files) <= BATCH else self.index.embedder
        answers: list[Hits] = []
        failures: list[UnreadableImage] = []
        for at in range(0, len(files), BATCH):
            start, part, images = time.monotonic(), [], []
            for file in files[at : at + BATCH]:
                try:
                    images.append(_read(file))
                    part.append(file)
                except UnreadableImage as error:
                    failures.append(error)
            vectors, failed = encoder.encode(images, on_error="skip")
            failures += [UnreadableImage(failure.reason, str(part[failure.index])) for failure in failed]
            readable = sorted(set(range(len(part))) - {failure.index for failure in failed})
            queries = [
                self.query(vector, name=str(part[i]), identical={hash_bytes(images[i])})
                for i, vector in zip(readable, np.asarray(vectors), strict=True)
            ]
            if queries:
                directions = np.stack([direction(query.positive, query.negative) for query in queries])
                limit = Query.fetched(self.index, self.k)
                rows = self.index.store.query_many(directions, limit, where=self.where, exact=self.exact)
                each = (time.monotonic() - start) / len(queries)
                for query, first in zip(queries, rows, strict=True):
                    answers.append(self.run(query, time.monotonic() - each, first=first, one_of_many=True))
            bar.advance(len(files[at : at + BATCH]))
        if not answers:
            raise failures[0]
        if failures:
            first_ = " ".join(str(error) for error in failures[:3]) + (" …" if len(failures) > 3 else "")
            warn(f"{len(failures):,} of {len(files):,} images could not be searched by. {first_}")
        return answers


def _name_of(image: Any) -> str:
    return str(image) if isinstance(image, (str, os.PathLike)) else ""


def _read(image: Any) -> Any:
    """The bytes of a file, which is read once: for its vector and to recognize an identical file."""
    if not isinstance(image, (str, os.PathLike)):
        return image
    from lookalike.data import UnreadableImage

    try:
        return read_bytes(image)
    except OSError as error:
        raise UnreadableImage(str(error.strerror), image) from error


def box_region(box: Sequence[float], width: float, height: float) -> tuple[float, float, float, float]:
    """Return a part of an image as fractions of its width and height.

    Args:
        box: x1, y1, x2, y2 in pixels of the image as it is seen, or in fractions if all are at most 1.
        width: Width of the image as it is seen.
        height: Its height.

    Raises:
        LookalikeError: If it is no part of the image.

    Example:
        >>> box_region((64, 0, 128, 48), 128, 96), box_region((0.5, 0, 1, 0.5), 128, 96)
        ((0.5, 0.0, 1.0, 0.5), (0.5, 0.0, 1.0, 0.5))
    """
    x1, y1, x2, y2 = (float(value) for value in box) if len(box) == 4 else (0.0,) * 4
    if max(x1, y1, x2, y2) > 1:
        x1, y1, x2, y2 = x1 / width, y1 / height, x2 / width, y2 / height
    if not (0 <= x1 < x2 <= 1 and 0 <= y1 < y2 <= 1):
        raise LookalikeError(
            "`box` must be x1,y1,x2,y2, the upper left corner first, inside the image: in pixels, or in fractions if "
            f"all are at most 1. The image has {width:.0f} × {height:.0f} pixels."
        )
    return x1, y1, x2, y2


def _embed(
    index: Index, images: Sequence[Any], box: Sequence[float] | None = None, *, names: Sequence[Any] = ()
) -> np.ndarray:
    """Embed images (paths, bytes, PIL images or arrays) by an index's model; ``box`` is a part of the first."""
    from lookalike.data import UnreadableImage, decode

    if not images:
        return np.empty((0, index.generation.dim), np.float32)
    names, images = names or images, [_read(image) for image in images]
    if box is not None:
        pixels = decode(images[0])
        height, width = pixels.shape[:2]
        x1, y1, x2, y2 = box_region(box, width, height)
        images[0] = pixels[round(y1 * height) : round(y2 * height), round(x1 * width) : round(x2 * width)]
        if not images[0].size:
            shown = ",".join(f"{value:g}" for value in box)
            raise LookalikeError(f"The box {shown} is less than a pixel of the image, which has {width} × {height}.")
    vectors, failures = index.query_encoder.encode(images, on_error="skip")
    for failure in failures:
        raise UnreadableImage(failure.reason, _name_of(names[failure.index]) or failure.name)
    return np.asarray(vectors)
