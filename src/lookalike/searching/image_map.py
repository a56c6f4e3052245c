"""The map of an index: where each image lies on the plane, kept beside the vectors it was drawn from.

Old images stay where they are: new ones are put between their neighbors, and the whole is drawn anew, from the
old places, only on request or when it has grown by 30 %.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lookalike.core.files import atomic_file, check_format, stamp
from lookalike.core.progress import Progress
from lookalike.core.seeds import numpy_rng

if TYPE_CHECKING:
    from lookalike.searching.index_folder import Index
    from lookalike.searching.manifest import Generation

FILE = "map.parquet"
_STAMP = b"lookalike"
GROWTH = 1.3
CELLS = 64  # of the order, along each side
NEAREST = 3  # neighbors a new image is put between
COLORS = 12  # the last one is for everything that is not among the 11 most frequent
HEAD = struct.Struct("<4sHHIIffffI28x")
RECORD = np.dtype([("x", "<u2"), ("y", "<u2"), ("color", "u1"), ("flags", "u1"), ("label", "<u2")])


@dataclass(frozen=True)
class Map:
    """Places in an order of which every beginning is an even sample; `number` changes with every change."""

    ids: list[str]
    places: np.ndarray  # n × 2, float32
    number: int = 1
    method: str = "t-SNE"
    kept: tuple[float, float] = (1.0, 1.0)  # share of the 10 nearest among the map's 10 and 50 nearest
    drawn: int = 0  # how many images the last full drawing had
    updated: str = ""  # the state of the index it shows
    where: dict[str, int] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "where", {name: place for place, name in enumerate(self.ids)})

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def bounds(self) -> tuple[float, float, float, float]:
        """A square round all places: left, top, right, bottom."""
        if not len(self):
            return 0.0, 0.0, 1.0, 1.0
        low, high = self.places.min(axis=0), self.places.max(axis=0)
        middle, half = (low + high) / 2, max(float((high - low).max()) / 2 * 1.02, 1e-6)
        x, y = float(middle[0]), float(middle[1])
        return x - half, y - half, x + half, y + half

    def unit(self) -> np.ndarray:
        """Places between 0 and 1 inside the square."""
        left, top, right, _ = self.bounds
        return np.clip((self.places - np.array([left, top], np.float32)) / (right - left), 0, 1)

    def packed(self, codes: np.ndarray, number: int) -> bytes:
        """As it travels, little-endian: a header of 64 bytes, then 8 bytes an image with its label's code."""
        body = np.zeros(len(self), RECORD)
        body["x"], body["y"] = np.rint(self.unit() * 65_535).T
        body["label"], body["color"] = codes, np.minimum(codes, COLORS - 1)
        return HEAD.pack(b"LKMP", 1, HEAD.size, len(self), number, *self.bounds, RECORD.itemsize) + body.tobytes()

    def save(self, folder: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        about = {name: getattr(self, name) for name in ("number", "method", "kept", "drawn", "updated")}
        columns = {"id": self.ids, "x": self.places[:, 0], "y": self.places[:, 1]}
        arrow = pa.table(columns).replace_schema_metadata({_STAMP: json.dumps(stamp("map", about)).encode()})
        with atomic_file(folder / FILE) as part, part.open("wb") as file:
            pq.write_table(arrow, file, compression="zstd")

    @classmethod
    def load(cls, folder: Path) -> Map | None:
        """The stored map, or None where there is none."""
        import pyarrow.parquet as pq

        path = folder / FILE
        if not path.exists():
            return None
        arrow = pq.read_table(path)
        text = (arrow.schema.metadata or {}).get(_STAMP)
        about = check_format("map", json.loads(text) if text else None, path)
        places = np.column_stack([arrow["x"].to_numpy(), arrow["y"].to_numpy()]).astype(np.float32)
        names = ("number", "method", "drawn", "updated")
        narrow, wide = about["kept"]
        return cls(arrow["id"].to_pylist(), places, kept=(narrow, wide), **{n: about[n] for n in names})


def file_version(folder: Path) -> tuple[int, ...] | None:
    """What tells two stored maps apart without reading them; None where there is none."""
    try:
        found = (folder / FILE).stat()
    except FileNotFoundError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def is_current(index: Index, old: Map | None) -> bool:
    """Whether a map shows the index as it is now."""
    return old is not None and old.method == "t-SNE" and old.updated == index_state(index.generation)


def index_state(generation: Generation) -> str:
    """Two runs within a second have one time: their number tells them apart."""
    return f"{generation.updated} {generation.writes}"


def draw_map(
    index: Index,
    *,
    again: bool = False,
    progress: bool = True,
    sketch: Callable[[Map], None] | None = None,
) -> Map:
    """The map of an index, brought up to date and stored; `again` draws all of it anew from the old places.

    `sketch` is given two principal axes first, where the drawing takes long.
    """
    from lookalike.evaluation.projection import neighbor_preservation, pca, tsne

    old = Map.load(index.folder)
    if is_current(index, old) and not again and old is not None:
        return old
    ids, rows = _vectors(index)
    like = old if old is not None else _of_another_model(index)
    number = 1 if old is None else old.number + 1
    state: dict[str, Any] = {"updated": index_state(index.generation)}
    if old is not None and not again and len(ids) <= GROWTH * max(old.drawn, 1) and any(i in old.where for i in ids):
        made = _placed(old, ids, rows, number, state)
    else:
        start = pca(rows, 2)
        known = np.array([-1 if like is None else like.where.get(name, -1) for name in ids], dtype=np.int64)
        if sketch is not None and old is None:
            seen = _over(like, known, start).astype(np.float32)
            sketch(ordered(Map(ids, seen, number, "PCA", neighbor_preservation(rows, start), len(ids), **state)))
            number += 1
        warm = old is not None and bool((known >= 0).mean() > 0.5)
        if warm and old is not None:
            start = _starting(old, known, rows)
        with Progress("Drawing the map", 1000, shown=progress) as bar:
            places = tsne(
                rows, start, warm=warm, progress=lambda share: bar.advance(max(0, round(1000 * share) - bar.done))
            )
        places = _over(like, known, places)
        kept = neighbor_preservation(rows, places)
        made = ordered(Map(ids, places.astype(np.float32), number, "t-SNE", kept, len(ids), **state))
    made.save(index.folder)
    return made


def _vectors(index: Index) -> tuple[list[str], np.ndarray]:
    ids: list[str] = []
    parts: list[np.ndarray] = []
    for batch in index.store.scan(vectors=True):
        whole = [record for record in batch if record.vector is not None]
        ids += [record.id for record in whole]
        parts += [np.stack([record.vector for record in whole if record.vector is not None])] if whole else []
    rows = np.concatenate(parts) if parts else np.empty((0, index.generation.dim), np.float32)
    order = np.argsort(np.array(ids)) if ids else np.empty(0, np.int64)  # stores differ in their order
    return [ids[i] for i in order], np.ascontiguousarray(rows[order], dtype=np.float32)


def _of_another_model(index: Index) -> Map | None:
    """The map of the newest other generation that has one: what people know their images by."""
    from lookalike.searching.index_folder import generation_folder

    numbers = sorted(
        (g.number for g in index.manifest.generations if g.number != index.generation.number), reverse=True
    )
    maps = (Map.load(generation_folder(index.path, number)) for number in numbers)
    return next((found for found in maps if found is not None), None)


def _over(like: Map | None, known: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Turned, mirrored and scaled to lie over another map; `known` says where in it each image is, -1 nowhere."""
    from lookalike.evaluation.projection import align

    both = known >= 0
    if like is None or both.sum() <= 3:
        return places
    return align(places, like.places[known[both]].astype(np.float64), places[both])


def _starting(old: Map, known: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Old places, and for new images the middle of their nearest old ones."""
    from lookalike.evaluation.neighbors import top_k

    have, new = np.flatnonzero(known >= 0), np.flatnonzero(known < 0)
    start = np.zeros((len(rows), 2))
    start[have] = old.places[known[have]]
    if len(new):
        score, found = top_k(rows[new], rows[have], min(NEAREST, len(have)))
        weight = np.exp(20.0 * (score - score[:, :1]))[..., None]
        start[new] = (start[have][found] * weight).sum(axis=1) / weight.sum(axis=1)
    return start


def _placed(old: Map, ids: list[str], rows: np.ndarray, number: int, state: dict[str, Any]) -> Map:
    """The old map without what is gone, and with what is new."""
    known = np.array([old.where.get(name, -1) for name in ids], dtype=np.int64)
    places = _starting(old, known, rows)
    new = known < 0
    places[new] += numpy_rng(number, "map places").normal(scale=0.05, size=(int(new.sum()), 2))  # not upon each other
    return ordered(replace(old, ids=ids, places=places.astype(np.float32), number=number, **state))


def ordered(map_: Map) -> Map:
    """Round robin over the cells of a grid, each round and each cell in an order of its own: any beginning is even."""
    n = len(map_)
    cell = np.minimum((map_.unit() * CELLS).astype(np.int64), CELLS - 1)
    rng = numpy_rng(0, "map order")
    shuffled = rng.permutation(n)
    flat = (cell[:, 0] * CELLS + cell[:, 1])[shuffled]
    by_cell = np.argsort(flat, kind="stable")
    counts = np.bincount(flat, minlength=CELLS * CELLS)
    rank = np.empty(n, np.int64)
    rank[by_cell] = np.arange(n) - np.repeat(np.cumsum(counts) - counts, counts)
    # Shuffled anew inside each round: the first of a full cell comes early in the other order.
    order = shuffled[np.lexsort((rng.random(n), rank))]
    return replace(map_, ids=[map_.ids[i] for i in order], places=map_.places[order])
