"""Maps: embeddings in two dimensions by t-SNE or PCA, and how faithful the map is.

t-SNE in NumPy and SciPy lays out 100,000 images in about a minute (docs/design/reports.md has the comparison with
openTSNE). Affinities are uniform over the nearest neighbors and symmetric, p_ij = (a_ij + a_ji) / (2 n k). The gradient
is 4 Σ_j (e·p_ij − q_ij / Z) q_ij (y_i − y_j) with q_ij = 1 / (1 + |y_i − y_j|²) and Z = Σ q_ij over all pairs. Its
second part is a convolution, summed on a grid by fast Fourier transforms and read off by cubic interpolation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import fft, sparse

from lookalike.core.device import threads
from lookalike.core.seeds import numpy_rng, sample_rows
from lookalike.evaluation.arrays import Doubles, Floats, Ints, as_rows
from lookalike.evaluation.clustering import kmeans
from lookalike.evaluation.neighbors import top_k, top_k_scores

NEAR, WIDE = 10, 50  # neighbors by which a map is judged
JUDGED = 2_000  # images by which a map is judged
BLOCK = 10_000
NEIGHBORS = 15  # of t-SNE
CELL = 256  # images in a cell of the neighbor search, on average
NEAR_CELLS = 12
SPACING = 0.6  # of the grid, in units of the map (the kernel is 1 wide)
FEW = 600  # points that need no grid
LANDMARKS = 20_000
Tick = Callable[[], None]
EARLY, LATE, FULL = 250, 250, 40  # iterations: exaggerated, plain, and with all images


@dataclass(frozen=True)
class Projection:
    """A map of images."""

    places: Doubles  # coordinates (n, 2)
    method: str  # "t-SNE" or "PCA"
    preserved: float  # fraction of each image's 10 nearest neighbors that are among its 10 nearest on the map

    @property
    def note(self) -> str:
        """The method and how faithful the map is, in a sentence."""
        return f"{self.method}, {100 * self.preserved:.0f} % of near neighbors preserved."


def project(embeddings: Any, *, seed: int = 0, like: Doubles | None = None, use_tsne: bool = True) -> Projection:
    """Lay out unit vectors in two dimensions, by t-SNE if there are more than 30; the same rows give the same map.

    ``like`` is a map of the same images by another model: the new one is rotated, mirrored and scaled to match it.

    Example:
        >>> from lookalike.evaluation.projection import project
        >>> project(np.eye(4), use_tsne=False).places.shape
        (4, 2)
    """
    rows = as_rows(embeddings)
    places = pca(rows, 2)
    method = "t-SNE" if use_tsne and len(rows) > 3 * NEAR else "PCA"
    if method == "t-SNE":
        places = tsne(rows, places, seed=seed)
    if like is not None:
        places = align(places, like)
    return Projection(places, method, neighbor_preservation(rows, places)[0])


def pca(rows: Floats, count: int) -> Doubles:
    """Project rows on their leading principal axes; the sign of each axis is fixed by its largest loading."""
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


def align(places: Doubles, like: Doubles, anchors: Doubles | None = None) -> Doubles:
    """Rotate, mirror and scale a map to match another one (orthogonal Procrustes with one scale)."""
    anchors = places if anchors is None else anchors
    source, target = anchors - anchors.mean(axis=0), like - like.mean(axis=0)
    left, singular, right = np.linalg.svd(source.T @ target)
    scale = singular.sum() / max(float(np.square(source).sum()), 1e-12)
    return np.asarray(scale * (places - anchors.mean(axis=0)) @ left @ right + like.mean(axis=0))


def neighbor_preservation(rows: Floats, places: Doubles) -> tuple[float, float]:
    """Compute the fractions of each image's 10 nearest that are among its 10 and its 50 nearest on the map."""
    n = len(rows)
    if n < 3:
        return 1.0, 1.0
    sample = sample_rows(np.arange(n), JUDGED, 0, "map judged")
    near = min(NEAR, n - 1)
    _, true = top_k(rows[sample], rows, near, exclude=sample)
    # |a−b|² = |a|² + |b|² − 2ab: with −|b|²/2 as a further column of b, the nearest have the largest product.
    flat = np.asarray(places - places.mean(axis=0), dtype=np.float64)
    squares = np.square(flat).sum(axis=1, keepdims=True)
    left, right = np.hstack([flat, np.ones_like(squares)]), np.hstack([flat, -squares / 2])
    _, drawn = top_k(left[sample], right, min(WIDE, n - 1), exclude=sample)
    same = true[:, :, None] == drawn[:, None, :]
    return float(same[..., :near].any(2).mean()), float(same.any(2).mean())


def tsne(
    rows: Floats, start: Doubles, *, seed: int = 0, warm: bool = False, progress: Callable[[float], None] | None = None
) -> Doubles:
    """Lay out unit vectors by t-SNE.

    Of many rows a sample is laid out first; the others start between their neighbors in it, then all move together.

    References:
        Linderman et al., "Fast interpolation-based t-SNE for improved visualization of single-cell RNA-seq data".
    """
    n = len(rows)
    if n < 4:
        return np.array(start, dtype=np.float64)
    many = n > 1.5 * LANDMARKS and not warm
    # In units of one iteration over all rows; the neighbor search costs about 100 of them.
    total = (LATE if warm else EARLY + LATE) + 100 if not many else (EARLY + LATE) * LANDMARKS / n + FULL + 100
    done = 0.0

    def advance(by: float) -> None:
        nonlocal done
        done += by
        if progress is not None:
            progress(min(done / total, 1.0))

    graph = neighbor_graph(rows, NEIGHBORS, seed)
    advance(100)
    p, y, iterations = affinities(graph), np.array(start, dtype=np.float64), FULL if many else LATE
    if many:
        y = _from_landmarks(rows, y, graph, seed, lambda: advance(LANDMARKS / n))
    elif not warm:
        y = _exaggerated(p, y, lambda: advance(1))
    return descend(p, y, iterations, tick=lambda: advance(1))


def _exaggerated(p: Any, y: Doubles, tick: Tick) -> Doubles:
    """The first iterations, from a small start."""
    small = y * (1e-4 / (float(y[:, 0].std()) or 1.0))
    return descend(p, small, EARLY, exaggeration=12, momentum=0.5, tick=tick)


def _from_landmarks(rows: Floats, start: Doubles, graph: Ints, seed: int, tick: Tick) -> Doubles:
    n = len(rows)
    rng = numpy_rng(seed, "map landmarks")
    chosen = np.sort(rng.choice(n, LANDMARKS, replace=False))
    p = affinities(neighbor_graph(rows[chosen], NEIGHBORS, seed))
    y = descend(p, _exaggerated(p, start[chosen], tick), LATE, tick=tick)
    places = np.full((n, 2), np.nan)
    places[chosen] = y * np.sqrt(n / LANDMARKS)  # more points need more room
    place_between(places, graph)
    # Points in exactly one place would never separate.
    return places + rng.normal(scale=1e-2, size=places.shape)


def place_between(places: Doubles, graph: Ints) -> None:
    """Set points without coordinates (NaN) to the mean of their neighbors that have some, in place."""
    while True:
        known = np.isfinite(places[:, 0])
        near = known[graph]
        counts = near.sum(axis=1)
        todo = np.flatnonzero(~known & (counts > 0))
        if not len(todo):
            places[~known] = 0.0
            return
        sums = np.where(near[todo, :, None], places[graph[todo]], 0.0).sum(axis=1)
        places[todo] = sums / counts[todo, None]


def neighbor_graph(rows: Floats, k: int, seed: int = 0) -> Ints:
    """Find the approximate k nearest rows of each row by dot product; exact up to a few thousand rows.

    Rows are assigned to cells by k-means on a sample; each cell is searched together with the cells next to it.
    """
    n = len(rows)
    k = min(k, n - 1)
    cells = max(1, n // CELL)
    if cells <= NEAR_CELLS:
        return _best(rows, rows, np.arange(n), k, np.arange(n))
    rng = numpy_rng(seed, "map cells")
    sample = rows[np.sort(rng.choice(n, min(n, 40 * cells), replace=False))]
    initial = sample[np.sort(rng.choice(len(sample), cells, replace=False))]
    centers = kmeans(sample, initial, iterations=6, spherical=True).centers
    home = kmeans(rows, centers, iterations=0, spherical=True).labels
    members = np.split(np.argsort(home, kind="stable"), np.cumsum(np.bincount(home, minlength=cells))[:-1])
    around = np.argsort(-(centers @ centers.T), axis=1, kind="stable")[:, :NEAR_CELLS]
    out = np.empty((n, k), np.int64)
    for cell, mine in enumerate(members):
        if len(mine):
            others = np.concatenate([members[c] for c in dict.fromkeys([cell, *around[cell].tolist()])])
            more = NEAR_CELLS
            while len(others) <= k:  # small cells: search more
                more *= 2
                others = np.concatenate([members[c] for c in np.argsort(-(centers @ centers[cell]))[:more]])
            out[mine] = _best(rows[mine], rows[others], others, k, mine)
    return out


def _best(queries: Floats, rows: Floats, names: Ints, k: int, own: Ints) -> Ints:
    """The names of the k rows nearest to each query."""
    out = np.empty((len(queries), k), np.int64)
    for start in range(0, len(queries), 1024):
        part = slice(start, start + 1024)
        scores = queries[part] @ rows.T
        scores[names[None, :] == own[part, None]] = -np.inf
        out[part] = names[top_k_scores(scores, k)[1]]
    return out


def affinities(graph: Ints) -> Any:
    """Compute p_ij as a sparse matrix that sums to 1."""
    n, k = graph.shape
    edges = sparse.csr_matrix((np.ones(n * k), graph.reshape(-1), np.arange(0, n * k + 1, k)), (n, n))
    both = (edges + edges.T).tocsr()
    both.sort_indices()
    return both / both.sum()


def attraction(p: Any, rows: Ints, y: Doubles) -> Doubles:
    """Compute Σ_j p_ij q_ij (y_i − y_j); ``rows`` is the row of each stored entry."""
    dx, dy = y[rows, 0] - y[p.indices, 0], y[rows, 1] - y[p.indices, 1]
    weight = sparse.csr_matrix((p.data / (1.0 + dx * dx + dy * dy), p.indices, p.indptr), p.shape)
    return np.asarray(np.asarray(weight.sum(axis=1)) * y - weight @ y)


def repulsion(y: Doubles) -> Doubles:
    """Compute Σ_j q_ij² (y_i − y_j) / Z, for many points on a grid."""
    if len(y) > FEW:
        return grid_repulsion(y, SPACING)
    apart = y[:, None] - y[None]
    q = 1.0 / (1.0 + np.square(apart).sum(axis=2))
    return np.asarray((np.square(q)[..., None] * apart).sum(axis=1) / max(float(q.sum()) - len(y), 1e-12))


def grid_repulsion(y: Doubles, spacing: float) -> Doubles:
    """Compute :func:`repulsion` as a convolution: O(n) and a few Fourier transforms."""
    low = y.min(axis=0) - 2 * spacing
    size = int(np.ceil((y.max(axis=0) - low).max() / spacing)) + 4
    spread = _cubic((y - low) / spacing, size)
    at = y - y.mean(axis=0)  # numbers near 0 cancel less
    charges = np.column_stack([np.ones(len(y)), at])
    grid = (spread.T @ charges).T.reshape(3, size, size).astype(np.float32)
    wide = fft.next_fast_len(2 * size, real=True)
    steps = np.minimum(np.arange(wide), wide - np.arange(wide)) * spacing
    q = (1.0 / (1.0 + np.square(steps)[:, None] + np.square(steps)[None, :])).astype(np.float32)
    options: dict[str, Any] = {"s": (wide, wide), "workers": threads()}
    waves = fft.rfft2(grid, **options)
    # Ones convolved with q sum to Z; ones and coordinates convolved with q² give the force.
    waves = np.concatenate([waves[:1] * fft.rfft2(q, **options), waves * fft.rfft2(q * q, **options)])
    field = fft.irfft2(waves, **options)[:, :size, :size].reshape(4, -1)
    near, ones, ax, ay = (spread @ np.ascontiguousarray(field.T, dtype=np.float64)).T
    return (at * ones[:, None] - np.column_stack([ax, ay])) / max(float(near.sum()) - len(y), 1e-12)


def _cubic(places: Doubles, size: int) -> Any:
    """Lagrange weights of each point on the 4 × 4 grid nodes around it, a sparse matrix (n, size²)."""
    whole = np.clip(np.floor(places).astype(np.int64), 1, size - 3)
    t = places - whole
    outer = [-t * (t - 1) * (t - 2) / 6, (t + 1) * t * (t - 1) / 6]
    inner = [(t + 1) * (t - 1) * (t - 2) / 2, -(t + 1) * t * (t - 2) / 2]
    weights = np.stack([outer[0], *inner, outer[1]], axis=1)  # n, 4, 2
    steps = np.arange(-1, 3)
    data = weights[:, :, None, 0] * weights[:, None, :, 1]
    nodes = (whole[:, None, None, 0] + steps[:, None]) * size + (whole[:, None, None, 1] + steps[None, :])
    n = len(places)
    return sparse.csr_matrix(
        (data.reshape(-1), nodes.reshape(-1).astype(np.int32), np.arange(0, 16 * n + 1, 16)), (n, size * size)
    )


def descend(
    p: Any, y: Doubles, iterations: int, *, exaggeration: float = 1.0, momentum: float = 0.8, tick: Tick = lambda: None
) -> Doubles:
    """Run gradient descent with momentum and a gain for each coordinate that grows while its direction stays."""
    n = len(y)
    lr = max(n / exaggeration, 10.0)
    rows = np.repeat(np.arange(n), np.diff(p.indptr))
    velocity, gains = np.zeros_like(y), np.ones_like(y)
    for _ in range(iterations):
        gradient = 4.0 * (exaggeration * attraction(p, rows, y) - repulsion(y))
        reversed_ = np.sign(gradient) == np.sign(velocity)
        gains = np.maximum(np.where(reversed_, gains * 0.8, gains + 0.2), 0.01)
        velocity = momentum * velocity - lr * gains * gradient
        length = np.linalg.norm(velocity, axis=1, keepdims=True)
        velocity *= np.minimum(1.0, 5.0 / np.maximum(length, 1e-12))  # no point jumps across the map
        y = y + velocity
        y = y - y.mean(axis=0)
        tick()
    return y
