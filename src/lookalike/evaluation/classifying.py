"""Classification beside retrieval: known images name others, by their neighbors or by a linear probe."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from lookalike.core.errors import LookalikeError
from lookalike.core.report_blocks import number
from lookalike.data import Table
from lookalike.evaluation.arrays import Bools, Ints
from lookalike.evaluation.bootstrap import Interval, interval
from lookalike.evaluation.finetune import FEW_LABELS, LINEAR, FineTuned, fine_tune
from lookalike.evaluation.knn import weighted_knn
from lookalike.evaluation.probe import fifth, linear_probe
from lookalike.evaluation.retriever_knn import Expertise, expertise
from lookalike.evaluation.svm import low_shot
from lookalike.evaluation.svm import svm as machines

if TYPE_CHECKING:
    from lookalike.models import Embedder

NEIGHBORS, TEMPERATURE = 20, 0.07  # as the literature on self-supervision measures features
COUNTS = (10, 20, 100, 200)
FEW = (0.01, 0.1)


@dataclass(frozen=True)
class Classified:
    """Shares of the asked images that were named rightly, with intervals over classes."""

    known: int
    asked: int
    knn: Interval | None
    probe: Interval | None
    retriever: Expertise | None = None
    knn_at: dict[int, float] = field(default_factory=dict)
    """k-NN accuracy by the number of neighbors."""
    svm: float | None = None
    """mAP of one-vs-rest SVMs."""
    low_shot: dict[int, float] = field(default_factory=dict)
    """The same with so many positives of each class."""
    fine_tuned: list[FineTuned] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def further(self) -> dict[str, str]:
        """As words, one line each."""
        out = {}
        for name, found in (("k-NN accuracy", self.knn), ("Linear probe accuracy", self.probe)):
            if found is not None:
                out[name] = f"{number(found.value)} ({number(found.low)}–{number(found.high)})"
        if self.retriever is not None:
            share = self.retriever.accuracy
            told = f"{number(share.value)} ({number(share.low)}–{number(share.high)}), k = {self.retriever.k}"
            out["As a retriever: k-NN by majority"] = told
        if self.knn_at:
            out["k-NN accuracy, " + " / ".join(map(str, self.knn_at)) + " neighbors"] = _row(self.knn_at.values())
        if self.svm is not None:
            out["One-vs-rest SVM mAP"] = number(self.svm)
            out["SVM mAP, " + " / ".join(map(str, self.low_shot)) + " of each class"] = _row(self.low_shot.values())
        for tuned in self.fine_tuned:
            title = "Linear, by SGD" if tuned.linear else f"Fine-tuned on {100 * tuned.share:g} %"
            out[f"{title} ({tuned.labeled:,} images): top-1 / top-5"] = f"{number(tuned.top1)} / {number(tuned.top5)}"
        return out


def _row(values: Iterable[float]) -> str:
    return " / ".join(number(value) for value in values)


def sides(table: Table, labels: Ints, measured: Bools, *, seed: int) -> tuple[Bools, Bools]:
    """(known, asked) rows: the split `train` and what is measured, or without one a fifth of each class, drawn."""
    labeled = labels >= 0
    if table.has("split"):
        split = table.column("split")
        known, asked = labeled & (split == "train"), labeled & measured & (split != "train")
        if (asked & (split == "test")).any():
            asked &= split == "test"
        if known.any() and asked.any():
            if not np.isin(labels[asked], labels[known]).any():
                raise LookalikeError(
                    f"The split of `{table.name}` keeps classes apart: none that is asked for is known from training, "
                    "so k-NN and the linear probe have nothing to name. They need images of the same classes."
                )
            return known, asked
    labeled &= measured
    asked = np.zeros(len(table), bool)
    asked[labeled] = fifth(labels[labeled], seed)
    if not asked.any():
        raise LookalikeError("k-NN and the linear probe need classes with at least 3 images, or a split `train`.")
    return labeled & ~asked, asked


def classify(
    vectors: Any,
    labels: Ints,
    known: Bools,
    asked: Bools,
    *,
    knn: bool = False,
    probe: bool = False,
    retriever: bool = False,
    svm: bool = False,
    members: Bools | None = None,
    seed: int = 0,
) -> Classified:
    """Name the asked rows after the known ones; `members` (rows, classes) is for SVMs of rows with several labels."""
    parts = (vectors[known], labels[known], vectors[asked], labels[asked])
    near = linear = best = None
    at: dict[int, float] = {}
    shots: dict[int, float] = {}
    if knn:
        found = weighted_knn(*parts, k=COUNTS, temperature=TEMPERATURE)
        at = found.accuracy
        near = interval(found.predicted[NEIGHBORS] == labels[asked], groups=labels[asked])
    if probe:
        linear = interval(linear_probe(*parts, seed=seed).correct, groups=labels[asked])
    expert = expertise(vectors, labels, known, asked, seed=seed) if retriever else None
    if svm:
        several = labels[:, None] == np.unique(labels[known]) if members is None else members
        both = (vectors[known], several[known], vectors[asked], several[asked])
        best, shots = machines(*both, seed=seed).map, low_shot(*both, seed=seed)
    return Classified(int(known.sum()), int(asked.sum()), near, linear, expert, at, best, shots)


def tune(
    model: Embedder, table: Table, labels: Ints, known: Bools, asked: Bools, *, linear: bool, few: bool, seed: int
) -> list[FineTuned]:
    """Name the asked images after training on random crops: `linear` a classifier on all known images, `few` the
    whole network on 1 % and on 10 % of them."""
    given = (model, table.take(known), labels[known], table.take(asked), labels[asked])
    plans = [(1.0, LINEAR)] * linear + [(share, FEW_LABELS) for share in FEW] * few
    return [fine_tune(*given, share=share, schedule=schedule, seed=seed) for share, schedule in plans]
