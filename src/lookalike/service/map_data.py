"""The map in the page's binary format: points, value codes, filter masks, regions, and tiles of thumbnails."""

from __future__ import annotations

import io
import re
from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from lookalike.core.files import hash_bytes
from lookalike.searching.image_map import Map
from lookalike.service.http_errors import Problem
from lookalike.store import Condition

if TYPE_CHECKING:
    from lookalike.service.open_index import OpenIndex

NO_VALUE = 65_535
CELL_SIDE, CELLS = 64, 8  # pixels of a tile's cell, and cells in a row
MAX_DEPTH = 14
MAX_AREA_IMAGES = 5_000  # in a region that is searched in
MAX_CORNERS = 256  # of all regions of a request: each is a pass over all points
AREA_GRID = 4_096  # corners of a region lie on a grid of this many steps
PreviousMap = tuple[int, Map]  # number and map that were shown before


class MapData:
    """An immutable state of the map."""

    def __init__(self, map_: Map, live: OpenIndex, previous: PreviousMap | None = None) -> None:
        self.map, self.live, self.number = map_, live, _number(map_, live)
        self.previous = previous[0] if previous else None
        before: dict[str, int] = previous[1].where if previous else {}
        self.previous_points = np.array([before.get(name, -1) for name in map_.ids], "<i4")
        self._codes: dict[str, tuple[np.ndarray, list[str]]] = {}

    @cached_property
    def unit(self) -> np.ndarray:
        """Positions from 0 to 1, rounded as in the binary format."""
        return np.rint(self.map.unit() * 65_535) / 65_535

    def codes(self, column: str) -> tuple[np.ndarray, list[str]]:
        """One uint16 code per point (65535: no value) for a column, and its values, the most frequent first."""
        if column not in self._codes:
            table, values = self.live.index.table, {}
            if table.has(column):
                values = dict(zip(table.column("row_id").tolist(), table.column(column).tolist(), strict=True))
            texts = [_first(values.get(name)) for name in self.map.ids]
            counts = Counter(text for text in texts if text)
            names = sorted(counts, key=lambda name: (-counts[name], name))[: NO_VALUE - 1]
            code = {name: number for number, name in enumerate(names)}
            self._codes[column] = np.array([code.get(text, NO_VALUE) for text in texts], np.uint16), names
        return self._codes[column]

    @cached_property
    def records(self) -> bytes:
        """All points in the binary format."""
        return self.map.packed(self.codes("label")[0], self.number)

    def mask(self, filters: list[str]) -> bytes:
        """One bit per point, least significant first: whether it matches the filters."""
        bits = np.zeros(len(self.map), bool)
        for batch in self.live.scan(self.live.where(filters)):
            bits[[self.map.where[record.id] for record in batch if record.id in self.map.where]] = True
        return np.packbits(bits, bitorder="little").tobytes()

    def name(self, point: int) -> str:
        """Row id of a point; `Problem` 404 if there is none."""
        if not 0 <= point < len(self.map):
            raise Problem(404, f"The map has no point {point}.")
        return self.map.ids[point]

    def area(self, text: str) -> Condition:
        """The condition for images in a region `NUMBER.xxxyyyxxxyyy…`: the map, and corners in hexadecimal up to 4095.

        `Problem` 410 if the map was redrawn, 422 if the region is not valid or too large.
        """
        number, _, digits = text.partition(".")
        if number != str(self.number):
            raise Problem(410, "The map has been redrawn; select the region again.")
        if not re.fullmatch(r"([0-9a-fA-F]{6}){3,}", digits):
            raise Problem(422, "This is not a region of the map.")
        numbers = [int(digits[at : at + 3], 16) for at in range(0, len(digits), 3)]
        inside = np.flatnonzero(points_inside(self.unit * AREA_GRID, np.array(numbers, float).reshape(-1, 2)))
        if len(inside) > MAX_AREA_IMAGES:
            raise Problem(
                422, f"This region contains {len(inside):,} images; select one with at most {MAX_AREA_IMAGES:,}."
            )
        records = self.live.index.store.get([self.map.ids[point] for point in inside])
        contents = {str(r.payload.get("content_id", "")) for r in records if r is not None}
        return Condition("content_id", tuple(sorted(contents)) or ("-",))

    def tile(self, z: int, x: int, y: int) -> tuple[bytes, bool]:
        """A tile of the quad-tree as a JPEG of 8 × 8 thumbnails, one a cell; and whether all were available."""
        from PIL import Image, ImageOps

        if not (0 <= z <= MAX_DEPTH and 0 <= x < 2**z and 0 <= y < 2**z):
            raise Problem(404, "The map has no such tile.")
        fine = self.unit * (2**z * CELLS)
        cell = np.minimum(fine.astype(np.int64), 2**z * CELLS - 1) - np.array([x, y]) * CELLS
        inside = np.flatnonzero(((cell >= 0) & (cell < CELLS)).all(axis=1))
        _, first = np.unique(cell[inside, 1] * CELLS + cell[inside, 0], return_index=True)
        points = inside[first]
        sheet = Image.new("RGB", (CELL_SIDE * CELLS, CELL_SIDE * CELLS), (128, 128, 128))
        complete = True
        for point, record in zip(points, self.live.index.store.get([self.map.ids[i] for i in points]), strict=True):
            if record is None:
                continue
            try:
                data = self.live.thumbnails.get(str(record.payload.get("content_id", "")), 96)
            except Problem:  # busy, or the drive is not mounted: it may be available later
                complete = False
                continue
            with Image.open(io.BytesIO(data)) as image:
                small = ImageOps.fit(image.convert("RGB"), (CELL_SIDE, CELL_SIDE))
            sheet.paste(small, tuple((cell[point] * CELL_SIDE).tolist()))
        out = io.BytesIO()
        sheet.save(out, "JPEG", quality=78)
        return out.getvalue(), complete


def points_inside(points: np.ndarray, corners: np.ndarray) -> np.ndarray:
    """Which points, `(n, 2)`, lie inside a polygon, `(c, 2)`, by the even-odd rule."""
    inside = np.zeros(len(points), bool)
    x, y = points.T
    for (x1, y1), (x2, y2) in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        if y1 != y2:
            crossed = (y1 > y) != (y2 > y)
            inside ^= crossed & (x < (x2 - x1) * (y - y1) / (y2 - y1) + x1)
    return inside


def _number(map_: Map, live: OpenIndex) -> int:
    """A number for this state, unique over all indexes and generations: browsers cache by it."""
    index, generation = live.index, live.index.generation
    state = f"{index.path} {generation.number} {generation.created} {generation.writes} {map_.number}"
    return int(hash_bytes(state, map_.places.tobytes())[:8], 16) % (2**31 - 1) + 1


def _first(value: Any) -> str:
    if isinstance(value, (list, np.ndarray)):
        value = value[0] if len(value) else None
    return "" if value is None or value != value else str(value)
