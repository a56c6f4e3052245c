"""A map: embeddings on a plane, and how far it can be believed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lookalike.core.seeds import numpy_rng
from lookalike.evaluation.arrays import Doubles, Floats, as_rows
from lookalike.evaluation.neighbors import top_k
from lookalike.evaluation.tsne import layout

NEAR, WIDE = 10, 50  # neighbors that a map is judged by
JUDGED = 2_000  # images it is judged on
BLOCK = 10_000


@dataclass(frozen=True)
class Projection:
    """Places on the plane; `kept` is the share of each image's 10 nearest that are among its 10 nearest here."""

    places: Doubles
    method: str
    kept: float

    @property
    def note(self) -> str:
        share = f"{100 * self.kept:.0f} % of near neighbors kept"
        return f"t-SNE, {share}." if self.method == "t-SNE" else f"A rough sketch ({share})."


def project(embeddings: Any, *, seed: int = 0, like: Doubles | None = None, tsne: bool = True) -> Projection:
    """t-SNE, or two principal axes where there are few rows or `tsne` is off.

    The same rows give the same map. `like` is a map of the same images (by another model): the new one is turned,
    mirrored and scaled to lie over it.
    """
    rows = as_rows(embeddings)
    places = principal(rows, 2)
    method = "t-SNE" if tsne and len(rows) > 3 * NEAR else "PCA"
    if method == "t-SNE":
        places = layout(rows, places, seed=seed)
    if like is not None:
        places = lay_over(places, like)
    return Projection(places, method, measure(rows, places)[0])


def principal(rows: Floats, count: int) -> Doubles:
    """Coordinates on the leading axes of the centered rows, the sign of each fixed by its largest loading."""
    out = np.zeros((len(rows), count))
    if not len(rows):
        return out
    mean = rows.mean(axis=0, dtype=np.float64)
    spread = np.zeros((rows.shape[1], rows.shape[1]))
    for at in range(0, len(rows), BLOCK):
        part = rows[at : at + BLOCK] - mean
        spread += part.T @ part
    _, axes = np.linalg.eigh(spread)
    axes = axes[:, ::-1][:, :count]
    axes *= np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(axes.shape[1])])
    for at in range(0, len(rows), BLOCK):
        out[at : at + BLOCK, : axes.shape[1]] = (rows[at : at + BLOCK] - mean) @ axes
    return out


def lay_over(places: Doubles, like: Doubles, anchors: Doubles | None = None) -> Doubles:
    """Orthogonal Procrustes with one scale; `anchors` are the places that `like` speaks of (else all)."""
    known = places if anchors is None else anchors
    here, there = known - known.mean(axis=0), like - like.mean(axis=0)
    left, size, right = np.linalg.svd(here.T @ there)
    scale = size.sum() / max(float(np.square(here).sum()), 1e-12)
    return np.asarray(scale * (places - known.mean(axis=0)) @ left @ right + like.mean(axis=0))


def measure(rows: Floats, places: Doubles) -> tuple[float, float]:
    """The share of each image's 10 nearest that are among its 10 and among its 50 nearest on the plane."""
    n = len(rows)
    if n < 3:
        return 1.0, 1.0
    asked = np.arange(n) if n <= JUDGED else np.sort(numpy_rng(0, "map judged").choice(n, JUDGED, replace=False))
    near = min(NEAR, n - 1)
    _, true = top_k(rows[asked], rows, near, exclude=asked)
    # Nearest by distance from nearest by product: |a−b|² = |a|² + |b|² − 2ab, so b is given its square as a column.
    flat = np.asarray(places - places.mean(axis=0), dtype=np.float64)
    squares = np.square(flat).sum(axis=1, keepdims=True)
    left, right = np.hstack([flat, np.ones_like(squares)]), np.hstack([flat, -squares / 2])
    _, drawn = top_k(left[asked], right, min(WIDE, n - 1), exclude=asked)
    narrow = np.mean([len(np.intersect1d(a, b[:near])) for a, b in zip(true, drawn, strict=True)]) / near
    wide = np.mean([len(np.intersect1d(a, b)) for a, b in zip(true, drawn, strict=True)]) / near
    return float(narrow), float(wide)
