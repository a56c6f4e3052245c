"""The map of an index: a 2D layout (t-SNE) of its images, stored beside the vectors.

Images keep their positions: new ones are placed between their neighbors, and the layout is computed again, starting
from the old positions, only on request or after the index has grown by 30 %.
"""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lookalike.core.errors import LookalikeError
from lookalike.core.files import check_format, hash_bytes, stamp
from lookalike.core.progress import Progress
from lookalike.core.seeds import numpy_rng

if TYPE_CHECKING:
    from lookalike.searching.index_folder import Index
    from lookalike.searching.manifest import Generation

FILE = "map.parquet"
_STAMP = b"lookalike"
ABOUT = ("number", "method", "neighbor_recall", "drawn", "updated")
GROWTH = 1.3
CELLS = 64  # grid cells along each side, for an even order
NEAREST = 3  # neighbors that a new image is placed between
COLORS = 12  # the last one stands for all labels but the 11 most frequent
HEAD = struct.Struct("<4sHHIIffffI28x")
RECORD = np.dtype([("x", "<u2"), ("y", "<u2"), ("color", "u1"), ("flags", "u1"), ("label", "<u2")])


@dataclass(frozen=True)
class Map:
    """Positions of images, in an order of which every prefix is an even sample.

    Args:
        ids: Row ids.
        places: Positions.
        number: Version number, different after every change.
        method: ``"t-SNE"``, or ``"PCA"`` for the preview.
        neighbor_recall: Fraction of the 10 nearest neighbors in the vectors that are among the 10 and 50 nearest on
            the map.
        drawn: Number of images at the last full layout.
        updated: The state of the index that it shows.

    Shape:
        - places: ``(N, 2)``, float32.

    Example:
        >>> Map(["a", "b"], np.array([[0, 0], [2, 2]], np.float32)).bounds[2:]
        (2.02, 2.02)
    """

    ids: list[str]
    places: np.ndarray
    number: int = 1
    method: str = "t-SNE"
    neighbor_recall: tuple[float, float] = (1.0, 1.0)
    drawn: int = 0
    updated: str = ""
    where: dict[str, int] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "where", {name: place for place, name in enumerate(self.ids)})

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def bounds(self) -> tuple[float, float, float, float]:
        """A square around all positions: left, top, right, bottom."""
        if not len(self):
            return 0.0, 0.0, 1.0, 1.0
        low, high = self.places.min(axis=0), self.places.max(axis=0)
        middle, half = (low + high) / 2, max(float((high - low).max()) / 2 * 1.02, 1e-6)
        x, y = float(middle[0]), float(middle[1])
        return x - half, y - half, x + half, y + half

    def unit(self) -> np.ndarray:
        """Return the positions inside the square, between 0 and 1."""
        left, top, right, _ = self.bounds
        return np.clip((self.places - np.array([left, top], np.float32)) / (right - left), 0, 1)

    def packed(self, codes: np.ndarray, number: int) -> bytes:
        """Return the bytes that are sent to the page: a header of 64 bytes, then 8 bytes per image (little-endian)."""
        body = np.zeros(len(self), RECORD)
        body["x"], body["y"] = np.rint(self.unit() * 65_535).T
        body["label"], body["color"] = codes, np.minimum(codes, COLORS - 1)
        return HEAD.pack(b"LKMP", 1, HEAD.size, len(self), number, *self.bounds, RECORD.itemsize) + body.tobytes()

    def save(self, folder: Path) -> None:
        """Store the map in the folder of a generation."""
        import pyarrow as pa

        from lookalike.data.table import write_parquet

        about = {name: getattr(self, name) for name in ABOUT} | {"hash": self._hash()}
        columns = {"id": self.ids, "x": self.places[:, 0], "y": self.places[:, 1]}
        arrow = pa.table(columns).replace_schema_metadata({_STAMP: json.dumps(stamp("map", about)).encode()})
        write_parquet(folder / FILE, arrow)

    def _hash(self) -> str:
        about = json.dumps([self.ids, *(getattr(self, name) for name in ABOUT)])
        return hash_bytes(about, np.ascontiguousarray(self.places, "<f4").tobytes())

    @classmethod
    def load(cls, folder: Path) -> Map | None:
        """Load the map of a generation; ``None`` if there is none, or it is damaged and must be drawn again."""
        from lookalike.data.table import read_parquet

        path = folder / FILE
        if not path.exists():
            return None
        try:
            arrow = read_parquet(path)
        except LookalikeError:
            return None
        try:
            about = check_format("map", json.loads((arrow.schema.metadata or {})[_STAMP]), path)
            places = np.column_stack([arrow["x"].to_numpy(), arrow["y"].to_numpy()]).astype(np.float32)
            facts = {name: about[name] for name in ABOUT} | {"neighbor_recall": tuple(about["neighbor_recall"])}
            result = cls(arrow["id"].to_pylist(), places, **facts)
            return result if result._hash() == about["hash"] else None
        except (LookupError, ValueError, TypeError, RecursionError):
            return None


def file_version(folder: Path) -> tuple[int, ...] | None:
    """Return a value that differs between two stored maps, without reading them; ``None`` if there is none."""
    with contextlib.suppress(FileNotFoundError):
        stat = (folder / FILE).stat()
        return stat.st_mtime_ns, stat.st_ino, stat.st_size
    return None


def is_current(index: Index, old: Map | None) -> bool:
    """Return whether a map shows the current state of an index."""
    return old is not None and old.method == "t-SNE" and old.updated == index_state(index.generation)


def index_state(generation: Generation) -> str:
    """Return a text that differs between two states of a generation, even within one second."""
    return f"{generation.updated} {generation.writes}"


def draw_map(
    index: Index, *, again: bool = False, progress: bool = True, sketch: Callable[[Map], None] | None = None
) -> Map:
    """Update the map of an index and store it; a preview goes to ``sketch`` before a first layout, which takes long."""
    from lookalike.evaluation.projection import neighbor_preservation, pca, tsne

    old = Map.load(index.folder)
    if is_current(index, old) and not again and old is not None:
        return old
    ids, rows = _vectors(index)
    reference = old if old is not None else _map_of_another_generation(index)
    number = 1 if old is None else old.number + 1
    state: dict[str, Any] = {"updated": index_state(index.generation)}
    if old is not None and not again and len(ids) <= GROWTH * max(old.drawn, 1) and any(i in old.where for i in ids):
        result = _place_new(old, ids, rows, number, state)
    else:
        start = pca(rows, 2)
        known = np.array([-1 if reference is None else reference.where.get(name, -1) for name in ids], dtype=np.int64)
        if sketch is not None and old is None:
            preview = _align(reference, known, start).astype(np.float32)
            sketch(ordered(Map(ids, preview, number, "PCA", neighbor_preservation(rows, start), len(ids), **state)))
            number += 1
        warm = old is not None and bool((known >= 0).mean() > 0.5)
        if warm and old is not None:
            start = _start_positions(old, known, rows)
        with Progress("Drawing the map", 1000, shown=progress) as bar:
            places = tsne(
                rows, start, warm=warm, progress=lambda done: bar.advance(max(0, round(1000 * done) - bar.done))
            )
        places = _align(reference, known, places)
        recall = neighbor_preservation(rows, places)
        result = ordered(Map(ids, places.astype(np.float32), number, "t-SNE", recall, len(ids), **state))
    result.save(index.folder)
    return result


def _vectors(index: Index) -> tuple[list[str], np.ndarray]:
    vectors = {r.id: r.vector for batch in index.store.scan(vectors=True) for r in batch if r.vector is not None}
    ids = sorted(vectors)  # stores differ in their order
    rows = np.empty((len(ids), index.generation.dim), np.float32)
    for row, name in enumerate(ids):
        rows[row] = vectors.pop(name)
    return ids, rows


def _map_of_another_generation(index: Index) -> Map | None:
    """The map of the newest other generation that has one: the layout that users know."""
    from lookalike.searching.index_folder import generation_folder

    numbers = {g.number for g in index.manifest.generations} - {index.generation.number}
    maps = (Map.load(generation_folder(index.path, number)) for number in sorted(numbers, reverse=True))
    return next((map_ for map_ in maps if map_ is not None), None)


def _align(reference: Map | None, known: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Rotate, mirror and scale positions to match another map; `known` are the rows of images in it, or -1."""
    from lookalike.evaluation.projection import align

    both = known >= 0
    if reference is None or both.sum() <= 3:
        return places
    return align(places, reference.places[known[both]].astype(np.float64), places[both])


def _start_positions(old: Map, known: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Old positions, and for new images the weighted mean of their nearest old ones."""
    from lookalike.evaluation.neighbors import top_k

    have, new = np.flatnonzero(known >= 0), np.flatnonzero(known < 0)
    start = np.zeros((len(rows), 2))
    start[have] = old.places[known[have]]
    if len(new):
        sim, neighbors = top_k(rows[new], rows[have], min(NEAREST, len(have)))
        weight = np.exp(20.0 * (sim - sim[:, :1]))[..., None]
        start[new] = (start[have][neighbors] * weight).sum(axis=1) / weight.sum(axis=1)
    return start


def _place_new(old: Map, ids: list[str], rows: np.ndarray, number: int, state: dict[str, Any]) -> Map:
    """The old map without deleted images and with new ones."""
    known = np.array([old.where.get(name, -1) for name in ids], dtype=np.int64)
    places = _start_positions(old, known, rows)
    new = known < 0
    # A little noise, so that copies are not on top of each other.
    places[new] += numpy_rng(number, "map places").normal(scale=0.05, size=(int(new.sum()), 2))
    return ordered(replace(old, ids=ids, places=places.astype(np.float32), number=number, **state))


def ordered(map_: Map) -> Map:
    """Return a map in an order of which every prefix is an even sample.

    Round robin over the cells of a grid, with each round and each cell in random order.
    """
    n = len(map_)
    cell = np.minimum((map_.unit() * CELLS).astype(np.int64), CELLS - 1)
    rng = numpy_rng(0, "map order")
    shuffled = rng.permutation(n)
    flat = (cell[:, 0] * CELLS + cell[:, 1])[shuffled]
    by_cell = np.argsort(flat, kind="stable")
    counts = np.bincount(flat, minlength=CELLS * CELLS)
    rank = np.empty(n, np.int64)
    rank[by_cell] = np.arange(n) - np.repeat(np.cumsum(counts) - counts, counts)
    # Each round is shuffled again: the first image of a crowded cell comes early in the first permutation.
    order = shuffled[np.lexsort((rng.random(n), rank))]
    return replace(map_, ids=[map_.ids[i] for i in order], places=map_.places[order])
