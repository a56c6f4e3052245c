"""k-NN accuracy of models that were trained without labels, paired by image: what decides which one is kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from lookalike.core.report_blocks import number
from lookalike.evaluation.bootstrap import Interval, Paired, interval, paired
from lookalike.evaluation.classifying import COUNTS, NEIGHBORS, TEMPERATURE
from lookalike.evaluation.knn import weighted_knn
from lookalike.training import checkpoint
from lookalike.training.setup import Assembly


@dataclass(frozen=True)
class Neighbors:
    """Accuracy on the held-out images by model and number of neighbors; trained − start, paired by image."""

    accuracy: dict[str, dict[int, float]]
    intervals: dict[str, Interval]
    """Those of 20 neighbors, whole classes drawn."""
    difference: Paired
    images: int

    def to_json(self) -> dict[str, Any]:
        by_name = {name: {str(k): v for k, v in found.items()} for name, found in self.accuracy.items()}
        return {**asdict(self), "accuracy": by_name}

    def sentence(self, kept: bool) -> str:
        change = self.difference
        low, value, high = (number(100 * v, 1, signed=True) for v in (change.low, change.difference, change.high))
        where = f"on {self.images:,} held-out images"
        told = f"k-NN accuracy {value} points ({low} to {high}) over the starting model, {where}"
        if change.better:
            return f"Pretraining helped: {told}."
        return f"Pretraining was not shown to help: {told}. " + (
            "The trained model is kept, as was asked for." if kept else "The starting model is kept."
        )


def compare_neighbors(
    vectors: Mapping[str, np.ndarray],
    labels: np.ndarray,
    known: np.ndarray,
    asked: np.ndarray,
    *,
    before: str,
    after: str,
) -> Neighbors:
    """Name the asked rows after the known ones (masks), by each model."""
    accuracy, right = {}, {}
    for name, rows in vectors.items():
        found = weighted_knn(rows[known], labels[known], rows[asked], labels[asked], k=COUNTS, temperature=TEMPERATURE)
        accuracy[name] = found.accuracy
        right[name] = (found.predicted[NEIGHBORS] == labels[asked]).astype(float)
    groups = labels[asked]
    bands = {name: interval(values, groups=groups) for name, values in right.items()}
    change = paired(right[before], right[after], groups=groups)
    return Neighbors(accuracy, bands, change, int(asked.sum()))


def put_beside(parts: Assembly, best: Mapping[str, Any]) -> Iterator[str]:
    """The names of the networks beside the kept one, with the model holding each one's weights in turn."""
    for name, state in best.get("beside", {}).items():
        checkpoint.put_back(parts.model, state)
        yield name
    checkpoint.put_back(parts.model, best["model"])
