"""The map as the page reads it: binary columns once, then bit masks, points by their place, and tiles of images."""

from __future__ import annotations

import io
from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from lookalike.core.files import hash_bytes
from lookalike.searching.image_map import Map
from lookalike.service.http_errors import Problem
from lookalike.store import Condition

if TYPE_CHECKING:
    from lookalike.service.open_index import Live

NONE = 65_535
SIDE, CELLS = 64, 8  # a tile's cells
DEEPEST = 14
Before = tuple[int, Map]  # the number and the map that were shown
MOST = 5_000  # images that a part of the map may hold to be searched in
CORNERS = 256  # that such parts may have in all: each is a pass over all points
SQUARE = 4_096  # corners of a part are given on a grid of this many


class Plane:
    """One state of the map; nothing in it changes."""

    def __init__(self, map_: Map, live: Live, before: Before | None = None) -> None:
        self.map, self.live, self.number = map_, live, _number(map_, live)
        self.before = before[0] if before else None
        where: dict[str, int] = before[1].where if before else {}
        self.was = np.array([where.get(name, -1) for name in map_.ids], "<i4")  # the place of each in the map before

    @cached_property
    def unit(self) -> np.ndarray:
        """Places from 0 to 1, as exactly as they travel."""
        return np.rint(self.map.unit() * 65_535) / 65_535

    def codes(self, column: str) -> tuple[np.ndarray, list[str]]:
        """The value of a column for each point as a number, the most frequent first, and their names."""
        if column not in self._codes:
            self._codes[column] = self._coded(column)
        return self._codes[column]

    @cached_property
    def _codes(self) -> dict[str, tuple[np.ndarray, list[str]]]:
        return {}

    def _coded(self, column: str) -> tuple[np.ndarray, list[str]]:
        table = self.live.index.table
        if not table.has(column):
            return np.full(len(self.map), NONE, np.uint16), []
        values = dict(zip(table.column("row_id").tolist(), table.column(column).tolist(), strict=True))
        texts = [_first(values.get(name)) for name in self.map.ids]
        counts = Counter(texts)
        del counts[""]
        names = sorted(counts, key=lambda name: (-counts[name], name))[: NONE - 1]
        code = {name: place for place, name in enumerate(names)}
        return np.array([code.get(text, NONE) for text in texts], np.uint16), names

    @cached_property
    def records(self) -> bytes:
        return self.map.packed(self.codes("label")[0], self.number)

    def mask(self, filters: list[str]) -> bytes:
        """A bit for each point, least significant first: whether it meets the filters."""
        bits = np.zeros(len(self.map), bool)
        for batch in self.live.index.store.scan(where=self.live.where(filters)):
            found = [self.map.where[record.id] for record in batch if record.id in self.map.where]
            bits[found] = True
        return np.packbits(bits, bitorder="little").tobytes()

    def name(self, point: int) -> str:
        if not 0 <= point < len(self.map):
            raise Problem(404, f"The map has no point {point}.")
        return self.map.ids[point]

    def area(self, text: str) -> Condition:
        """The images inside a part of the map, drawn as corners on a grid: `GEN.xxxyyyxxxyyy…` in hexadecimal."""
        number, _, digits = text.partition(".")
        if number != str(self.number):
            raise Problem(410, "The map has been drawn anew since; choose the part again.")
        try:
            numbers = [int(digits[at : at + 3], 16) for at in range(0, len(digits), 3)]
        except ValueError:
            numbers = []
        if len(numbers) < 6 or len(numbers) % 2 or len(digits) % 3:
            raise Problem(422, "This is no part of the map.")
        inside = np.flatnonzero(within(self.unit * SQUARE, np.array(numbers, float).reshape(-1, 2)))
        if len(inside) > MOST:
            raise Problem(422, f"This part holds {len(inside):,} images; choose one with at most {MOST:,}.")
        records = self.live.index.store.get([self.map.ids[place] for place in inside])
        contents = {str(r.payload.get("content_id", "")) for r in records if r is not None}
        return Condition("content_id", tuple(sorted(contents)) or ("-",))

    def tile(self, z: int, x: int, y: int) -> tuple[bytes, bool]:
        """8 × 8 small images, in each cell the first point that lies in it; and whether none is missing."""
        from PIL import Image, ImageOps

        if not (0 <= z <= DEEPEST and 0 <= x < 2**z and 0 <= y < 2**z):
            raise Problem(404, "The map has no such tile.")
        fine = self.unit * (2**z * CELLS)
        cell = np.minimum(fine.astype(np.int64), 2**z * CELLS - 1) - np.array([x, y]) * CELLS
        inside = np.flatnonzero(((cell >= 0) & (cell < CELLS)).all(axis=1))
        _, first = np.unique(cell[inside, 1] * CELLS + cell[inside, 0], return_index=True)
        chosen = inside[first]
        sheet = Image.new("RGB", (SIDE * CELLS, SIDE * CELLS), (128, 128, 128))
        whole = True
        for point, record in zip(chosen, self.live.index.store.get([self.map.ids[i] for i in chosen]), strict=True):
            if record is None:
                continue
            try:
                data = self.live.thumbs.get(str(record.payload.get("content_id", "")), 96)
            except Problem:  # busy, or the drive is away: another time it may be there
                whole = False
                continue
            with Image.open(io.BytesIO(data)) as image:
                small = ImageOps.fit(image.convert("RGB"), (SIDE, SIDE))
            column, row = (int(c) for c in cell[point])
            sheet.paste(small, (column * SIDE, row * SIDE))
        out = io.BytesIO()
        sheet.save(out, "JPEG", quality=78)
        return out.getvalue(), whole


def _number(map_: Map, live: Live) -> int:
    """A number of this state alone, over all indexes and generations: browsers keep what they got under it."""
    index, generation = live.index, live.index.generation
    state = f"{index.path} {generation.number} {generation.created} {generation.writes} {map_.number}"
    return int(hash_bytes(state, map_.places.tobytes())[:8], 16) % (2**31 - 1) + 1


def within(points: np.ndarray, corners: np.ndarray) -> np.ndarray:
    """Which points lie inside a polygon: an odd number of its sides is crossed on the way to the right."""
    inside = np.zeros(len(points), bool)
    x, y = points.T
    for (x1, y1), (x2, y2) in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        if y1 != y2:
            crossed = (y1 > y) != (y2 > y)
            inside ^= crossed & (x < (x2 - x1) * (y - y1) / (y2 - y1) + x1)
    return inside


def _first(value: Any) -> str:
    if isinstance(value, (list, np.ndarray)):
        value = value[0] if len(value) else None
    return "" if value is None or value != value else str(value)
