"""Classes of an adaptation: from the model, labels, a gallery, clusters of the target, or none."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import numpy_rng
from lookalike.data import Table, audit, read_table
from lookalike.evaluation.clustering import kmeans
from lookalike.evaluation.neighbors import top_k
from lookalike.models import Embedder

if TYPE_CHECKING:
    from lookalike.adaptation.settings import AdaptRequest

TEMPERATURE = 0.07  # of the softmax over similarities to prototypes
MIN_SILHOUETTE = 0.05  # silhouette below which clusters say nothing
SILHOUETTE_SAMPLE = 2000


def normalize(rows: np.ndarray) -> np.ndarray:
    """Rows scaled to unit length."""
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def prototypes(rows: np.ndarray, codes: np.ndarray, classes: int) -> np.ndarray:
    """The normalized mean of each class; a class without images gets a row of zeros."""
    sums = np.zeros((classes, rows.shape[1]), np.float64)
    np.add.at(sums, codes[codes >= 0], rows[codes >= 0].astype(np.float64))
    return normalize(sums).astype(np.float32)


def spherical(rows: np.ndarray, count: int, *, restarts: int = 10, steps: int = 30, seed: int = 0) -> np.ndarray:
    """Centroids of spherical k-means: the best of several starts."""
    best, most = rows[:count], -np.inf
    for start in range(restarts):
        rng = numpy_rng(seed, "spherical k-means", count, start)
        centers = rows[np.sort(rng.choice(len(rows), count, replace=False))]
        result = kmeans(rows, centers, iterations=steps, spherical=True)
        total = float(result.scores.sum())
        if total > most:
            best, most = result.centers, total
    return np.asarray(best, np.float32)


def silhouette(rows: np.ndarray, centers: np.ndarray, seed: int = 0) -> float:
    """Silhouette score of a clustering by cosine distance, on a sample."""
    from sklearn.metrics import silhouette_score

    some = rows
    if len(rows) > SILHOUETTE_SAMPLE:
        some = rows[numpy_rng(seed, "silhouette").choice(len(rows), SILHOUETTE_SAMPLE, replace=False)]
    place = (some @ centers.T).argmax(1)
    if not 1 < len(np.unique(place)) < len(some):
        return -1.0
    return float(silhouette_score(some, place, metric="cosine"))


def find_clusters(rows: np.ndarray, clusters: int | None = None, *, seed: int = 0) -> tuple[np.ndarray | None, str]:
    """Centers of so many clusters, or of the best of 8, 16, 32 … up to a quarter of the rows; how, or why none."""
    if clusters is not None and len(rows) < 4 * clusters:
        return None, f"{len(rows)} images are too few for {clusters} clusters"
    counts = [clusters] if clusters else []
    while not clusters and 8 * 2 ** len(counts) <= len(rows) // 4:
        counts.append(8 * 2 ** len(counts))
    if not counts:
        return None, f"{len(rows)} images are too few to cluster"
    tried = [spherical(rows, count, seed=seed) for count in counts]
    scores = [silhouette(rows, centers, seed) for centers in tried]
    best = int(np.argmax(scores))
    if scores[best] < MIN_SILHOUETTE:
        return None, f"the images do not fall into groups (silhouette {scores[best]:.2f} at {counts[best]})"
    return tried[best], f"{counts[best]} clusters of the target (silhouette {scores[best]:.2f})"


def recluster(rows: np.ndarray, old: np.ndarray, seed: int = 0) -> np.ndarray:
    """Clusters of the present features, each in the place of the old one it is nearest to, so that logits compare."""
    from scipy.optimize import linear_sum_assignment

    rows = normalize(rows)
    if len(rows) < len(old) or not np.isfinite(rows).all():  # what diverged is told when it is judged
        return old
    new = spherical(rows, len(old), seed=seed)
    mine, theirs = linear_sum_assignment(-(old @ new.T))
    out = np.empty_like(old)
    out[mine] = new[theirs]
    return out


def reciprocal(rows: np.ndarray, k: int = 5) -> np.ndarray:
    """For each row those of its k nearest that have it among their k nearest; −1 elsewhere."""
    k = min(k, len(rows) - 1)
    if k < 1:
        return np.full((len(rows), 1), -1)
    near = top_k(rows, rows, k, exclude=np.arange(len(rows)))[1]
    both = np.array([[i in near[j] for j in row] for i, row in enumerate(near)])
    return np.where(both, near, -1)


@dataclass(frozen=True)
class Classes:
    """Classes of an adaptation.

    Args:
        names: Class names, where known.
        prototypes: One unit vector a class, for a model without a classifier.
        how: Where the classes come from, in words.
        moving: Whether the prototypes are clusters that are recomputed.
        table: The images that the prototypes are means of.
        codes: Their classes.
    """

    names: list[str]
    prototypes: np.ndarray | None
    how: str
    moving: bool = False
    table: Table | None = None
    codes: np.ndarray | None = None

    def of(self, model: Embedder) -> np.ndarray | None:
        """The prototypes as this model sees them."""
        if self.prototypes is None or self.table is None or self.codes is None:
            return None
        return prototypes(model.encode(self.table, runtime="torch"), self.codes, len(self.prototypes))


def find_classes(model: Embedder, learn: Table, request: AdaptRequest) -> Classes:
    """The classes of the model's classifier, of labels or a gallery, or clusters; else none, with the reason."""
    if model.classifier is not None:
        return Classes(names_of(model), None, "the model's classifier")
    if request.labeled or request.gallery is not None:
        table = learn if request.gallery is None else audit(read_table(request.gallery), near=False).table
        codes, names = table.labels()
        if len(names) < 2:
            raise LookalikeError(f"`{table.name}` has {len(names)} classes; at least 2 are needed.")
        rows = model.encode(table, runtime="torch")
        how = f"prototypes of {len(names)} classes of the gallery" if request.gallery else "labels of the target"
        return Classes(names, prototypes(rows, codes, len(names)), how, table=table, codes=codes)
    rows = normalize(model.encode(learn, runtime="torch"))
    centers, how = find_clusters(rows, request.clusters, seed=request.seed)
    if centers is None:
        return Classes([], None, how)
    return Classes([], centers, how, moving=True, table=learn, codes=(rows @ centers.T).argmax(1))


def with_classifier(model: Embedder, classes: Classes) -> Embedder:
    """A copy with a classifier initialized by the prototypes; an existing classifier is kept."""
    out = copy.deepcopy(model)
    own = classes.of(out) if out.classifier is None else None
    if own is not None:
        out.classifier = nn.Linear(out.dim, len(own), device=out.device)
        with torch.no_grad():
            out.classifier.weight.copy_(torch.from_numpy(own / TEMPERATURE))
            out.classifier.bias.zero_()
        out.card["classes"] = list(classes.names)
    return out


def names_of(model: Embedder) -> list[str]:
    """The classes of its classifier."""
    return [str(name) for name in model.card.get("classes", [])]


def codes_of(table: Table, names: list[str]) -> np.ndarray:
    """Labels as positions in `names`.

    Raises:
        LookalikeError: If an image has no label or a class that `names` lacks.
    """
    codes, own = table.labels()
    place = {name: i for i, name in enumerate(names)}
    missing = [name for name in own if name not in place]
    if (codes < 0).any() or missing:
        what = f"the class `{missing[0]}`, which the model does not know" if missing else "images without a label"
        raise LookalikeError(f"`{table.name}` has {what}; its labels cannot be learned from.")
    return np.array([place[own[code]] for code in codes], np.int64)
