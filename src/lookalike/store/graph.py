"""``Graph``: an HNSW graph over int8 copies of vectors (usearch), in one file that processes map into memory.

A graph is derived from the vectors and may be missing: it only proposes candidates, which are scored in float32.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lookalike.core.device import threads
from lookalike.core.files import atomic_file, hash_file
from lookalike.core.seeds import numpy_rng
from lookalike.store.protocol import Rows, Vectors
from lookalike.store.scan import nearest

EDGES, CANDIDATES = 16, 128  # per node, and while building
MIN_RECALL = 0.995  # of probes near stored vectors; 0.97 is promised for all queries
WIDTHS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
PROBES, K = 200, 10
MARGIN = 1.5  # times the width that the probes need: other queries need more
# Candidates of a search are filtered if this fraction of them, the first, are nearly all the nearest rows.
# Beyond a query's own cluster a graph misses many, which a filter that leaves that cluster out would bring to light.
NEAR_FRACTION, MIN_NEAR_RECALL = 0.6, 0.985


@dataclass(frozen=True)
class GraphInfo:
    """What is known about a graph file.

    Args:
        file: Its name.
        hash: Hash of its contents.
        rows: Number of vectors, from the first, that it was built from.
        removed: Number of deletions that it knows of.
        scale: Factor from unit vectors to int8.
        width: Number of candidates that a search keeps (``ef``).
        recall: Measured recall@10 at that width.
        max_width: Greatest width whose candidates are complete enough to be filtered (see ``NEAR_FRACTION``).
        scan_seconds: Measured seconds to compare a query with one row.
        batch_fraction: Cost of a further query in a batch that is compared with all rows, relative to the first.
        base_seconds: Measured seconds of a search for few candidates.
        candidate_seconds: Measured seconds for each candidate more.
    """

    file: str
    hash: str
    rows: int
    removed: int
    scale: float
    width: int
    recall: float
    max_width: int
    scan_seconds: float
    batch_fraction: float
    base_seconds: float
    candidate_seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return a JSON document."""
        return asdict(self)


class Graph:
    """A graph that is open for searching; safe to use from several threads.

    Args:
        path: The graph file.
        info: What is known about it.
    """

    def __init__(self, path: Path, info: GraphInfo) -> None:
        from usearch.index import Index

        self.info = info
        self._index: Any = Index.restore(str(path), view=True)
        if self._index is None or len(self._index) > info.rows:
            raise ValueError(f"{path} is not a graph of these vectors")
        self._index.expansion_search = 1  # type: ignore[misc]  # a search keeps as many candidates as it returns

    def candidates(self, queries: Vectors, count: int) -> Rows:
        """Return about the nearest vectors of each query, best first.

        Args:
            queries: Unit vectors.
            count: Number of candidates, which is also the width of the search.

        Returns:
            Positions of vectors; −1 where there are fewer.

        Shape:
            - queries: ``(Q, D)``; output: ``(Q, count)``.
        """
        codes = quantize(queries, self.info.scale)
        if len(codes) == 1:
            keys = self._index.search(codes[0], count, threads=1).keys.view(np.int64)
            if len(keys) == count:
                return keys[None]
            return np.concatenate([keys, np.full(count - len(keys), -1)])[None]
        matches = self._index.search(codes, count, threads=threads())
        keys = matches.keys.view(np.int64).reshape(len(codes), -1)[:, :count]
        keys = np.pad(keys, ((0, 0), (0, count - keys.shape[1])))
        return np.where(np.arange(count) < np.asarray(matches.counts)[:, None], keys, -1)


def quantize(vectors: Vectors, scale: float) -> NDArray[np.int8]:
    """Return vectors as int8: multiplied by a scale that uses the range of int8, rounded and clipped."""
    return np.clip(np.rint(vectors * np.float32(scale)), -127, 127).astype(np.int8)


def build_graph(path: Path, vectors: Vectors, rows: Rows, removed: int) -> GraphInfo:
    """Build a graph, write it, and measure its recall and cost.

    Args:
        path: The file to write.
        vectors: All unit vectors, deleted ones too.
        rows: Positions of the vectors to put into it.
        removed: Number of deletions so far.

    Returns:
        What is known about the graph.

    Shape:
        - vectors: ``(N, D)``; rows: ``(R,)``.
    """
    from usearch.index import Index

    sample = vectors[rows[:: max(1, len(rows) // 5000)]]
    scale = 127.0 / max(float(np.quantile(np.abs(sample), 0.9995)), 1e-6)
    index = Index(
        ndim=vectors.shape[1], metric="ip", dtype="i8", connectivity=EDGES, expansion_add=CANDIDATES, expansion_search=1
    )
    for start in range(0, len(rows), 65_536):
        part = rows[start : start + 65_536]
        index.add(part.view(np.uint64), quantize(vectors[part], scale), threads=threads())
    with atomic_file(path, private=True) as file:
        index.save(str(file))
    facts = GraphInfo(path.name, hash_file(path), len(vectors), removed, scale, WIDTHS[-1], 0.0, 0, 0.0, 0.0, 0.0, 0.0)
    return _measured(Graph(path, facts), vectors, rows)


def _measured(graph: Graph, vectors: Vectors, rows: Rows) -> GraphInfo:
    """Choose the smallest width whose recall is high enough, on queries halfway between a row and a near one."""
    rng = numpy_rng(0, "graph probes")
    probes = vectors[rng.choice(rows, min(PROBES, len(rows)), replace=False)]
    queries = probes + vectors[nearest(probes, vectors, 6, rows)[0][:, -1]]
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    batch, (truth, _) = _seconds(lambda: nearest(queries, vectors, int(NEAR_FRACTION * WIDTHS[-1]), rows))
    scan = min(_seconds(lambda: nearest(queries[:1], vectors, K, rows))[0] for _ in range(3))
    max_width, width, recall = 0, 0, 0.0
    for count in WIDTHS:
        candidates = graph.candidates(queries, count)
        if recall < MIN_RECALL:
            width, recall = count, _recall(candidates, truth[:, :K])
        near = _recall(candidates, truth[:, : int(NEAR_FRACTION * count)])
        if near >= MIN_NEAR_RECALL:
            max_width = count
        elif recall >= MIN_RECALL:
            break
    narrow, wide = (
        min(_seconds(partial(graph.candidates, query, count))[0] for query in queries[:20, None])
        for count in (WIDTHS[0], WIDTHS[-1])
    )
    costs: dict[str, Any] = {
        "scan_seconds": scan / len(rows),
        "batch_fraction": min(batch / len(queries) / scan, 1.0),
        "base_seconds": narrow,
        "candidate_seconds": max((wide - narrow) / (WIDTHS[-1] - WIDTHS[0]), 1e-9),
    }
    width = math.ceil(MARGIN * width)
    return replace(graph.info, width=width, recall=recall, max_width=max_width, **costs)


def _recall(candidates: Rows, truth: Rows) -> float:
    return float(np.mean([np.isin(near, line).mean() for near, line in zip(truth, candidates, strict=True)]))


def _seconds(job: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = job()
    return time.perf_counter() - start, result
