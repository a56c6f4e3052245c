"""Receipts: which images from outside were used, for whom, at what score, and how often."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lookalike.adaptation.nearest import Retrieved


class Receipts:
    """Counts by used pool image, kept while a model adapts."""

    def __init__(self, count: int) -> None:
        self.loaded = np.zeros(count, np.int64)
        self.negatives = np.zeros(count, np.int64)
        self.last = np.full(count, -1, np.int64)

    def load(self, rows: np.ndarray) -> None:
        self.loaded[rows] += 1

    def count(self, rows: np.ndarray, times: np.ndarray) -> None:
        np.add.at(self.negatives, rows, times)

    def held(self, rows: np.ndarray, step: int) -> None:
        self.last[rows] = step

    def state(self) -> dict[str, Any]:
        return {name: values.tolist() for name, values in vars(self).items()}

    def set_state(self, state: dict[str, Any]) -> None:
        for name, values in state.items():
            setattr(self, name, np.asarray(values, np.int64))


def written(
    receipts: Receipts,
    found: Retrieved,
    pool_ids: Sequence[str],
    pool_paths: Sequence[str],
    target_ids: Sequence[str],
) -> list[dict[str, Any]]:
    """One record a used image; `found.index` points into the lists of ids and paths."""
    places = np.argwhere(found.index >= 0)
    who = found.index[places[:, 0], places[:, 1]]
    order = np.argsort(who, kind="stable")
    ends = np.searchsorted(who[order], np.arange(len(pool_ids) + 1))
    rows = []
    for i, id_ in enumerate(pool_ids):
        whom = places[order[ends[i] : ends[i + 1]]]
        served = [{"target": target_ids[t], "score": float(found.scores[t, r]), "rank": int(r) + 1} for t, r in whom]
        rows.append(
            {
                "id": id_,
                "path": pool_paths[i],
                "served": served,
                "steps_loaded": int(receipts.loaded[i]),
                "times_negative": int(receipts.negatives[i]),
                "last_step_in_bank": int(receipts.last[i]),
            }
        )
    return rows
