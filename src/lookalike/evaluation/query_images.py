"""Queries with their hits, as images for a report."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from lookalike.core.report_blocks import Hit, HitList, HitRow, Image
from lookalike.core.run import Run
from lookalike.data import Table, thumbnail
from lookalike.evaluation.arrays import Floats, Ints
from lookalike.evaluation.bootstrap import Interval, interval
from lookalike.evaluation.calibration import Calibration
from lookalike.evaluation.retrieval import Retrieval

SHOWN = 5


@dataclass(frozen=True)
class Measured:
    """A model's vectors of the images and what was measured on them."""

    name: str
    rows: Floats
    result: Retrieval
    calibration: Calibration | None = None
    why_not: str = ""  # why there is no calibration
    note: str = ""  # what must be said of it: the model knows the images

    @cached_property
    def intervals(self) -> dict[str, Interval]:
        """Every measure with its interval, whole classes drawn."""
        groups = self.result.labels
        return {key: interval(values, groups=groups) for key, values in self.result.per_query.items()}


@dataclass(frozen=True)
class Subject:
    """The images, their classes, and the run whose report shows them."""

    table: Table
    run: Run
    labels: Ints
    names: list[str]
    gallery: Ints  # rows that can be found
    ids: Ints | None = None
    _kept: dict[int, Image] = field(default_factory=dict, repr=False)

    def image(self, row: int) -> Image:
        """The thumbnail of a row, stored once."""
        if row not in self._kept:
            jpeg = thumbnail(self.table.open_bytes(row), box=self.table.box(row))
            path = str(self.table.column("path")[row])
            name = self.class_name(row)
            self._kept[row] = Image(file=self.run.keep_image(jpeg), alt=name or path, label=name)
        return self._kept[row]

    def class_name(self, row: int) -> str:
        return self.names[self.labels[row]] if self.labels[row] >= 0 else ""

    def best(self, model: Measured, query: int, count: int) -> tuple[Ints, Floats]:
        """The rows a query finds first, with their scores; itself and its copies are left out."""
        scores = model.rows[self.gallery] @ model.rows[query]
        out = self.gallery == query
        if self.ids is not None and self.ids[query] >= 0:
            out |= self.ids[self.gallery] == self.ids[query]
        order = np.argsort(np.where(out, np.inf, -scores), kind="stable")[: min(count, int((~out).sum()))]
        return self.gallery[order], scores[order]

    def hits(self, model: Measured, query: int, name: str = "") -> HitList:
        """The first hits, each with tick or cross, and with its probability where one is known."""
        depth = SHOWN if model.calibration is None else max(SHOWN, model.calibration.neighbors)
        rows, scores = self.best(model, query, depth)
        chances: list[float | None] = [None] * len(rows)
        if model.calibration is not None and len(rows):
            chances = model.calibration.probability(scores)[0].tolist()
        shown = [
            self.hit(int(row), query, float(score), chance)
            for row, score, chance in zip(rows[:SHOWN], scores[:SHOWN], chances[:SHOWN], strict=True)
        ]
        return HitList(name=name or model.name, hits=shown)

    def hit(self, row: int, query: int, score: float, probability: float | None = None) -> Hit:
        right = bool(self.labels[row] == self.labels[query])
        return Hit(image=self.image(row), ok=right, score=score, probability=probability)

    def row(self, models: list[Measured], query: int, note: str = "") -> HitRow:
        return HitRow(query=self.image(query), lists=[self.hits(m, query) for m in models], note=note)

    def taken_for(self, model: Measured, query: int) -> str:
        """The class a query is confused with: the most frequent wrong one among its first hits."""
        rows, _ = self.best(model, query, SHOWN)
        wrong = [self.class_name(int(r)) for r in rows if self.labels[r] != self.labels[query]]
        return max(wrong, key=lambda name: (wrong.count(name), -wrong.index(name))) if wrong else ""
