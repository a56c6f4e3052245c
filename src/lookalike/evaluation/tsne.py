"""t-SNE in NumPy and SciPy: near neighbors attract, everything else repels, and 100,000 images take a minute.

Affinities are uniform over the nearest neighbors and symmetrised, p_ij = (a_ij + a_ji) / (2 n k). The gradient is
4 Σ_j (e·p_ij − q_ij / Z) q_ij (y_i − y_j) with q_ij = 1 / (1 + |y_i − y_j|²) and Z = Σ q_ij over all pairs. Its second
part is a convolution, so it is summed on a grid by fast Fourier transforms and read off by cubic interpolation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import fft, sparse

from lookalike.core.device import threads
from lookalike.core.seeds import numpy_rng
from lookalike.evaluation.arrays import Doubles, Floats, Ints
from lookalike.evaluation.clustering import kmeans
from lookalike.evaluation.neighbors import top_k_scores

Tick = Callable[[], None]
NEIGHBORS = 15
CELL = 256  # images a cell of the neighbor search holds on average
NEAR_CELLS = 12
SPACING = 0.6  # of the grid, in units of the map (the kernel is 1 wide)
FEW = 600  # points that need no grid
LANDMARKS = 20_000
EARLY, LATE, FULL = 250, 250, 40  # iterations: exaggerated, plain, and with all images


def layout(
    rows: Floats, start: Doubles, *, seed: int = 0, warm: bool = False, progress: Callable[[float], None] | None = None
) -> Doubles:
    """Places on the plane for unit rows; `start` are first places, kept as far as they are good when `warm`.

    Many rows: a sample is laid out first, the others begin between their neighbors in it, then all move together.
    """
    n = len(rows)
    if n < 4:
        return np.array(start, dtype=np.float64)
    many = n > 1.5 * LANDMARKS and not warm
    # In units of one iteration over everything; the search for neighbors costs about as much as these many.
    total = (LATE if warm else EARLY + LATE) + 100 if not many else (EARLY + LATE) * LANDMARKS / n + FULL + 100
    done = 0.0

    def advance(by: float) -> None:
        nonlocal done
        done += by
        if progress is not None:
            progress(min(done / total, 1.0))

    graph = near_graph(rows, NEIGHBORS, seed)
    advance(100)
    y = np.array(start, dtype=np.float64)
    if many:
        y = _from_landmarks(rows, y, graph, seed, lambda: advance(LANDMARKS / n))
        return descend(affinities(graph), y, FULL, tick=lambda: advance(1))
    p = affinities(graph)
    if not warm:
        y = descend(p, _small(y), EARLY, exaggeration=12, momentum=0.5, tick=lambda: advance(1))
    return descend(p, y, LATE, tick=lambda: advance(1))


def _small(y: Doubles) -> Doubles:
    return y * (1e-4 / (float(y[:, 0].std()) or 1.0))


def _from_landmarks(rows: Floats, start: Doubles, graph: Ints, seed: int, tick: Tick) -> Doubles:
    n = len(rows)
    rng = numpy_rng(seed, "map landmarks")
    chosen = np.sort(rng.choice(n, LANDMARKS, replace=False))
    p = affinities(near_graph(rows[chosen], NEIGHBORS, seed))
    y = descend(p, _small(start[chosen]), EARLY, exaggeration=12, momentum=0.5, tick=tick)
    y = descend(p, y, LATE, tick=tick)
    places = np.full((n, 2), np.nan)
    places[chosen] = y * np.sqrt(n / LANDMARKS)  # more points need more room
    between(places, graph)
    # Points in exactly one place would never part.
    return places + rng.normal(scale=1e-2, size=places.shape)


def between(places: Doubles, graph: Ints) -> None:
    """Give points that have no place (NaN) the middle of their neighbors that have one, in place."""
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


def near_graph(rows: Floats, k: int, seed: int = 0) -> Ints:
    """About the k nearest rows of each row by dot product, itself left out; exact up to a few thousand rows.

    Rows are sorted into cells round middles (k-means on a sample); each cell asks itself and the cells next to it.
    """
    n = len(rows)
    k = min(k, n - 1)
    cells = max(1, n // CELL)
    if cells <= NEAR_CELLS:
        return _best(rows, rows, np.arange(n), k, np.arange(n))
    middles = _middles(rows, cells, seed)
    home = _nearest(rows, middles)
    members = np.split(np.argsort(home, kind="stable"), np.cumsum(np.bincount(home, minlength=cells))[:-1])
    around = np.argsort(-(middles @ middles.T), axis=1, kind="stable")[:, :NEAR_CELLS]
    out = np.empty((n, k), np.int64)
    for cell, mine in enumerate(members):
        if len(mine):
            others = np.concatenate([members[next_] for next_ in dict.fromkeys([cell, *around[cell].tolist()])])
            more = NEAR_CELLS
            while len(others) <= k:  # small cells: look further
                more *= 2
                others = np.concatenate([members[c] for c in np.argsort(-(middles @ middles[cell]))[:more]])
            out[mine] = _best(rows[mine], rows[others], others, k, mine)
    return out


def _middles(rows: Floats, count: int, seed: int) -> Floats:
    rng = numpy_rng(seed, "map cells")
    sample = rows[np.sort(rng.choice(len(rows), min(len(rows), 40 * count), replace=False))]
    initial = sample[np.sort(rng.choice(len(sample), count, replace=False))]
    return kmeans(sample, initial, iterations=6, spherical=True).centers


def _nearest(rows: Floats, middles: Floats) -> Ints:
    parts = [(rows[at : at + 4096] @ middles.T).argmax(axis=1) for at in range(0, len(rows), 4096)]
    return np.concatenate(parts).astype(np.int64)


def _best(asked: Floats, rows: Floats, names: Ints, k: int, own: Ints) -> Ints:
    """The names of the k rows nearest to each asked one."""
    out = np.empty((len(asked), k), np.int64)
    for at in range(0, len(asked), 1024):
        part = slice(at, at + 1024)
        scores = asked[part] @ rows.T
        scores[names[None, :] == own[part, None]] = -np.inf
        out[part] = names[top_k_scores(scores, k)[1]]
    return out


def affinities(graph: Ints) -> Any:
    """p_ij as a sparse matrix that sums to 1."""
    n, k = graph.shape
    edges = sparse.csr_matrix((np.ones(n * k), graph.reshape(-1), np.arange(0, n * k + 1, k)), (n, n))
    both = (edges + edges.T).tocsr()
    both.sort_indices()
    return both / both.sum()


def attraction(p: Any, rows: Ints, y: Doubles) -> Doubles:
    """Σ_j p_ij q_ij (y_i − y_j); `rows` is the row of each stored entry."""
    dx, dy = y[rows, 0] - y[p.indices, 0], y[rows, 1] - y[p.indices, 1]
    weight = sparse.csr_matrix((p.data / (1.0 + dx * dx + dy * dy), p.indices, p.indptr), p.shape)
    return np.asarray(np.asarray(weight.sum(axis=1)) * y - weight @ y)


def repulsion(y: Doubles) -> Doubles:
    """Σ_j q_ij² (y_i − y_j) / Z, for many points on a grid."""
    if len(y) > FEW:
        return on_grid(y, SPACING)
    apart = y[:, None] - y[None]
    q = 1.0 / (1.0 + np.square(apart).sum(axis=2))
    return np.asarray((np.square(q)[..., None] * apart).sum(axis=1) / max(float(q.sum()) - len(y), 1e-12))


def on_grid(y: Doubles, spacing: float) -> Doubles:
    """`repulsion` as a convolution: O(n) and a few Fourier transforms."""
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
    # The pull of ones through q sums to Z; ones and coordinates through q² give the force.
    waves = np.concatenate([waves[:1] * fft.rfft2(q, **options), waves * fft.rfft2(q * q, **options)])
    field = fft.irfft2(waves, **options)[:, :size, :size].reshape(4, -1)
    near, ones, ax, ay = (spread @ np.ascontiguousarray(field.T, dtype=np.float64)).T
    return (at * ones[:, None] - np.column_stack([ax, ay])) / max(float(near.sum()) - len(y), 1e-12)


def _cubic(places: Doubles, size: int) -> Any:
    """How much of each point goes to the 4 × 4 nodes round it: Lagrange weights, a sparse matrix of n × size²."""
    whole = np.clip(np.floor(places).astype(np.int64), 1, size - 3)
    t = places - whole
    weights = np.stack(
        [
            -t * (t - 1) * (t - 2) / 6,
            (t + 1) * (t - 1) * (t - 2) / 2,
            -(t + 1) * t * (t - 2) / 2,
            (t + 1) * t * (t - 1) / 6,
        ],
        axis=1,
    )  # n, 4, 2
    steps = np.arange(-1, 3)
    data = weights[:, :, None, 0] * weights[:, None, :, 1]
    nodes = (whole[:, None, None, 0] + steps[:, None]) * size + (whole[:, None, None, 1] + steps[None, :])
    n = len(places)
    return sparse.csr_matrix(
        (data.reshape(-1), nodes.reshape(-1).astype(np.int32), np.arange(0, 16 * n + 1, 16)), (n, size * size)
    )


def descend(
    p: Any,
    y: Doubles,
    iterations: int,
    *,
    exaggeration: float = 1.0,
    momentum: float = 0.8,
    tick: Tick = lambda: None,
) -> Doubles:
    """Gradient descent with momentum, and a gain for each coordinate that grows while it keeps its direction."""
    n = len(y)
    rate = max(n / exaggeration, 10.0)
    rows = np.repeat(np.arange(n), np.diff(p.indptr))
    speed, gains = np.zeros_like(y), np.ones_like(y)
    for _ in range(iterations):
        gradient = 4.0 * (exaggeration * attraction(p, rows, y) - repulsion(y))
        turned = np.sign(gradient) == np.sign(speed)
        gains = np.maximum(np.where(turned, gains * 0.8, gains + 0.2), 0.01)
        speed = momentum * speed - rate * gains * gradient
        length = np.linalg.norm(speed, axis=1, keepdims=True)
        speed *= np.minimum(1.0, 5.0 / np.maximum(length, 1e-12))  # no point leaps across the map
        y = y + speed
        y = y - y.mean(axis=0)
        tick()
    return y
