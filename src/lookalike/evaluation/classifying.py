"""Classification beside retrieval: known pictures name others, by their neighbours or by a linear probe."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from lookalike.core.errors import LookalikeError
from lookalike.data import Table
from lookalike.evaluation.arrays import Bools, Ints
from lookalike.evaluation.bootstrap import Interval, interval
from lookalike.evaluation.expertise import Expertise, expertise
from lookalike.evaluation.knn import weighted_knn
from lookalike.evaluation.probe import fifth, linear_probe

NEIGHBOURS, TEMPERATURE = 20, 0.07  # as the literature on self-supervision measures features


@dataclass(frozen=True)
class Classified:
    """Shares of the asked pictures that were named rightly, with intervals over classes."""

    known: int
    asked: int
    knn: Interval | None
    probe: Interval | None
    retriever: Expertise | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def sides(table: Table, labels: Ints, measured: Bools, *, seed: int) -> tuple[Bools, Bools]:
    """(known, asked) rows: the split `train` and what is measured, or without one a fifth of each class, drawn."""
    labelled = labels >= 0
    if table.has("split"):
        split = table.column("split")
        known, asked = labelled & (split == "train"), labelled & measured & (split != "train")
        if (asked & (split == "test")).any():
            asked &= split == "test"
        if known.any() and asked.any():
            if not np.isin(labels[asked], labels[known]).any():
                raise LookalikeError(
                    f"The split of `{table.name}` keeps classes apart: none that is asked for is known from training, "
                    "so k-NN and the linear probe have nothing to name. They need pictures of the same classes."
                )
            return known, asked
    labelled &= measured
    asked = np.zeros(len(table), bool)
    asked[labelled] = fifth(labels[labelled], seed)
    if not asked.any():
        raise LookalikeError("k-NN and the linear probe need classes with at least 3 pictures, or a split `train`.")
    return labelled & ~asked, asked


def classify(
    vectors: Any, labels: Ints, known: Bools, asked: Bools, *, knn: bool, probe: bool, retriever: bool, seed: int
) -> Classified:
    """Name the asked rows after the known ones."""
    parts = (vectors[known], labels[known], vectors[asked], labels[asked])
    near = linear = None
    if knn:
        found = weighted_knn(*parts, k=NEIGHBOURS, temperature=TEMPERATURE)
        near = interval(found.predicted[NEIGHBOURS] == labels[asked], groups=labels[asked])
    if probe:
        linear = interval(linear_probe(*parts, seed=seed).correct, groups=labels[asked])
    expert = expertise(vectors, labels, known, asked, seed=seed) if retriever else None
    return Classified(int(known.sum()), int(asked.sum()), near, linear, expert)
