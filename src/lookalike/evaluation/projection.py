"""A map: embeddings on a plane, and how far it can be believed."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any

import numpy as np

from lookalike.core.seeds import derive
from lookalike.evaluation.arrays import Doubles, Floats, as_rows
from lookalike.evaluation.neighbours import top_k

PERPLEXITY = 30
NEAR = 10  # neighbours that a map is judged by


@dataclass(frozen=True)
class Projection:
    """Places on the plane; `kept` is the share of each picture's 10 nearest that are among its 10 nearest here."""

    places: Doubles
    method: str
    kept: float

    @property
    def note(self) -> str:
        share = f"{100 * self.kept:.0f} % of near neighbours kept"
        if self.method == "t-SNE":
            return f"t-SNE, {share}."
        hint = "" if tsne_installed() else " `pip install 'lookalike[map]'` draws the real map."
        return f"A rough sketch ({share}).{hint}"


def tsne_installed() -> bool:
    return importlib.util.find_spec("openTSNE") is not None


def project(embeddings: Any, *, seed: int = 0, like: Doubles | None = None, tsne: bool | None = None) -> Projection:
    """t-SNE of the first 50 principal axes where openTSNE is installed, else the first two of them.

    The same rows give the same map. `like` is a map of the same pictures (by another model): the new one is turned,
    mirrored and scaled to lie over it.
    """
    rows = as_rows(embeddings)
    flat = _principal(rows)
    wanted = tsne_installed() if tsne is None else tsne
    method = "t-SNE" if wanted and len(rows) > 3 * NEAR else "PCA"
    places = _tsne(flat, seed) if method == "t-SNE" else _two(flat)
    if like is not None:
        places = _lay_over(places, like)
    return Projection(places, method, _kept(rows, places))


def _principal(rows: Floats, count: int = 50) -> Doubles:
    """Coordinates on the leading axes of the centred rows, the sign of each fixed by its largest loading."""
    centred = rows.astype(np.float64) - (rows.mean(axis=0, dtype=np.float64) if len(rows) else 0.0)
    _, axes = np.linalg.eigh(centred.T @ centred)
    axes = axes[:, ::-1][:, :count]
    peak = np.abs(axes).argmax(axis=0)
    return np.asarray(centred @ (axes * np.sign(axes[peak, np.arange(axes.shape[1])])))


def _two(flat: Doubles) -> Doubles:
    out = np.zeros((len(flat), 2))
    out[:, : min(2, flat.shape[1])] = flat[:, :2]
    return out


def _tsne(flat: Doubles, seed: int) -> Doubles:
    from openTSNE import TSNEEmbedding, affinity, nearest_neighbors

    perplexity = min(PERPLEXITY, (len(flat) - 1) // 3)
    # Nearest by distance from nearest by product: |a−b|² = |a|² + |b|² − 2ab, so b is given its square as a column.
    squares = np.square(flat).sum(axis=1, keepdims=True)
    near = np.hstack([flat, np.ones_like(squares)])
    _, index = top_k(near, np.hstack([flat, -squares / 2]), 3 * perplexity, exclude=np.arange(len(flat)))
    distance = np.stack([np.linalg.norm(flat[i] - flat[index[i]], axis=1) for i in range(len(flat))])
    start = _two(flat)
    start *= 1e-4 / (start[:, 0].std() or 1.0)
    number = derive(seed, "map") % 2**31
    embedding = TSNEEmbedding(
        start,
        affinity.PerplexityBasedNN(
            knn_index=nearest_neighbors.PrecomputedNeighbors(index, distance), perplexity=perplexity, n_jobs=1
        ),
        # Barnes-Hut wins on few points, interpolation on many.
        negative_gradient_method="bh" if len(flat) < 5000 else "fft",
        n_jobs=1,
        random_state=number,
    )
    embedding.optimize(n_iter=250, exaggeration=12, momentum=0.5, inplace=True)
    embedding.optimize(n_iter=250, momentum=0.8, inplace=True)
    return np.asarray(embedding, dtype=np.float64)


def _lay_over(places: Doubles, like: Doubles) -> Doubles:
    """Orthogonal Procrustes with one scale."""
    here, there = places - places.mean(axis=0), like - like.mean(axis=0)
    left, size, right = np.linalg.svd(here.T @ there)
    scale = size.sum() / max(float(np.square(here).sum()), 1e-12)
    return np.asarray(scale * here @ left @ right + like.mean(axis=0))


def _kept(rows: Floats, places: Doubles) -> float:
    if len(rows) < 3:
        return 1.0
    count = min(NEAR, len(rows) - 1)
    own = np.arange(len(rows))
    _, true = top_k(rows, rows, count, exclude=own)
    squares = np.square(places).sum(axis=1, keepdims=True)
    _, drawn = top_k(np.hstack([places, np.ones_like(squares)]), np.hstack([places, -squares / 2]), count, exclude=own)
    return float(np.mean([len(np.intersect1d(a, b)) for a, b in zip(true, drawn, strict=True)]) / count)
