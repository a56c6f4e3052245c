"""Prototypes of a pretrained model: those in use are kept with it, and the report shows what the largest stand for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from lookalike.core import report_blocks as s
from lookalike.core.run import Run
from lookalike.core.seeds import numpy_rng
from lookalike.evaluation.query_images import Subject
from lookalike.models.prototypes import Assigned, Prototypes
from lookalike.training.setup import KNOWN_ROWS, Assembly

ORDER = s.CURVES + 7
LARGEST, NEAREST = 12, 6


@dataclass(frozen=True)
class Facet:
    """The prototypes of a run and which of the images lie nearest to which."""

    rows: np.ndarray
    """The rows of the table that were looked at: training images, a sample of very many."""
    prototypes: Prototypes
    assigned: Assigned


def facet(parts: Assembly, keepsakes: Mapping[str, Tensor]) -> Facet | None:
    """Assign training images by the model as it is now; only prototypes with two images or more are kept."""
    if not keepsakes:
        return None
    rows = parts.train
    if len(rows) > KNOWN_ROWS:
        rows = np.sort(numpy_rng(parts.settings.data.split_seed, "facet").choice(rows, KNOWN_ROWS, replace=False))
    features = parts.model.features(parts.table.take(rows), runtime="torch", progress=True)
    found = Prototypes(keepsakes).in_use(features)
    return Facet(rows, found, found.assign(features)) if len(found) else None


def prototypes_section(run: Run, parts: Assembly, found: Facet) -> s.Section:
    """The largest prototypes with the images nearest to them."""
    subject = Subject(parts.table, run, parts.labels, parts.table.labels()[1], np.arange(len(parts.table)))
    number, score, _ = found.assigned
    counts = np.bincount(number, minlength=len(found.prototypes))
    shown = []
    for prototype in np.argsort(-counts, kind="stable")[:LARGEST]:
        own = np.flatnonzero(number == prototype)
        best = own[np.argsort(-score[own], kind="stable")][: NEAREST + 1]
        images = [subject.image(int(found.rows[i])) for i in best]
        hits = [s.Hit(image=p, score=float(score[i])) for p, i in zip(images[1:], best[1:], strict=True)]
        name = f"prototype {prototype}: {counts[prototype]:,} images"
        shown.append(s.HitRow(query=images[0], lists=[s.HitList(name=name, hits=hits)]))
    note = (
        f"{len(found.prototypes):,} prototypes have two or more of {len(found.rows):,} images; the rest is dropped. "
        "`lookalike index` tags every image with its prototype, to filter and browse by."
    )
    return s.Section(title="Prototypes", order=ORDER, blocks=[s.Hits(rows=shown, note=note)])
