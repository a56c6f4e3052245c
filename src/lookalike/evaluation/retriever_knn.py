"""How expert a retriever is: do most of an image's nearest neighbors show the same thing?

k-NN by plain majority, as in Table 5 of the T3AR paper's supplement; k is chosen on a tenth of the known images.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from lookalike.core import report_blocks as s
from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import numpy_rng
from lookalike.evaluation.arrays import Bools, Ints
from lookalike.evaluation.bootstrap import Interval, interval
from lookalike.evaluation.knn import weighted_knn
from lookalike.evaluation.query_images import Measured, Subject

CHOICES = (1, 3, 5, 10, 20, 50, 100)
# So flat that every neighbor counts the same, and only ties go to the more alike.
MAJORITY = 1e6
SHOWN = 3


@dataclass(frozen=True)
class Expertise:
    """Accuracy by majority with its interval, the k that was chosen, and how the choices did on the tenth."""

    k: int
    accuracy: Interval
    tried: dict[int, float]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def expertise(vectors: Any, labels: Ints, known: Bools, asked: Bools, *, seed: int = 0) -> Expertise:
    """Name the asked rows by the majority of the known ones nearest to them."""
    rows = np.flatnonzero(known)
    order = numpy_rng(seed, "choice of k").permutation(rows)
    aside, rest = order[: max(1, len(rows) // 10)], order[max(1, len(rows) // 10) :]
    if not len(rest):
        raise LookalikeError("To score a retriever at least 2 known images are needed.")
    choices = [k for k in CHOICES if k <= len(rest)]
    trial = weighted_knn(vectors[rest], labels[rest], vectors[aside], labels[aside], k=choices, temperature=MAJORITY)
    k = max(choices, key=lambda n: (trial.accuracy[n], -n))
    final = weighted_knn(vectors[known], labels[known], vectors[asked], labels[asked], k=k, temperature=MAJORITY)
    return Expertise(k, interval(final.predicted[k] == labels[asked], groups=labels[asked]), trial.accuracy)


def retriever_section(subject: Subject, models: list[Measured], found: Expertise) -> s.Section:
    """What a query sees of the images: how its scores are spread, which it retrieves, and what lies further off.

    The last model is the one that was scored; one before it is shown beside it.
    """
    model = models[-1]
    queries = model.result.query_index[:: max(1, len(model.result.query_index) // SHOWN)][:SHOWN]
    first = int(queries[0])
    others = subject.gallery[subject.gallery != first]
    counts, edges = np.histogram(model.rows[others] @ model.rows[first], bins=20)
    ends = zip(counts, edges[:-1], edges[1:], strict=True)
    bars = [s.Bar(name=f"{low:.2f} to {high:.2f}", value=int(count)) for count, low, high in ends]
    value = s.Value.of(found.accuracy)
    facts: list[tuple[str, s.Cell]] = [
        ("k-NN accuracy, by majority", value),
        ("k, chosen on a tenth of the known images", found.k),
    ]
    blocks: list[s.Block] = [
        s.Facts(rows=facts),
        s.Bars(title="Scores of one query with all other images", rows=bars, label="images"),
        s.Hits(title="The same query, from the most to the least alike", rows=[_ladder(subject, models, first)]),
        s.Hits(title="What is retrieved", rows=[subject.row(models, int(query)) for query in queries]),
    ]
    return s.Section(title="As a retriever", order=45, blocks=blocks)


def _ladder(subject: Subject, models: list[Measured], query: int) -> s.HitRow:
    """The first hit, the seventh, the one in the middle and the last of each model."""
    lists, places = [], [0]
    for model in models:
        rows, scores = subject.best(model, query, len(subject.gallery))
        places = sorted({place for place in (0, 6, len(rows) // 2, len(rows) - 1) if 0 <= place < len(rows)})
        hits = [subject.hit(int(rows[place]), query, float(scores[place])) for place in places]
        lists.append(s.HitList(name=model.name, hits=hits))
    ranks = ", ".join(f"{place + 1:,}" for place in places)
    return s.HitRow(query=subject.image(query), lists=lists, note=f"Ranks {ranks}")
