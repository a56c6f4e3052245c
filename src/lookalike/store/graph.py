"""``Graph``: an HNSW graph over int8 copies of vectors (usearch), in one file that processes map into memory.

A graph is derived from the vectors and may be missing. It proposes candidates, which are scored in float32. Its int8
copies also give a first pass over all rows, from which the exact nearest rows follow.
"""

from __future__ import annotations

import json
import math
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lookalike.core.device import threads
from lookalike.core.files import atomic_file, hash_file
from lookalike.core.seeds import numpy_rng
from lookalike.store.protocol import Rows, Vectors
from lookalike.store.scan import GATHERED, nearest

EDGES, CANDIDATES = 16, 160  # per node, and while building: more of them spare candidates of every search
MIN_RECALL = 0.995  # of probes near stored vectors; 0.97 is promised for all queries
WIDTHS = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
PROBES, K = 200, 10
OUTLIER = 1.5  # times nearly the largest entry: what is beyond is clipped in int8
MARGIN = 1.5  # times the width that the probes need: other queries need more
RESCORED = 2  # candidates per hit that are scored in float32
# Candidates of a search are filtered if this fraction of them, the first, are nearly all the nearest rows.
# Beyond a query's own cluster a graph misses many, which a filter that leaves that cluster out would bring to light.
NEAR_FRACTION, MIN_NEAR_RECALL = 0.6, 0.985
BLOCK = 65_536  # vectors added at a time
DIMENSIONS = 8  # bytes before the int8 copies in the file: their number and length
FINER = 254.0  # times the scale, for what rounding a query leaves
LEFT = 0.05  # fraction of rows that the first pass may leave to be scored
COMPARED = 16_384  # int8 copies compared at a time
GROUP = 64  # rows of which the best is looked at to find a threshold


@dataclass(frozen=True)
class GraphInfo:
    """What is known about a graph file.

    Args:
        file: Its name.
        hash: Hash of its contents.
        rows: Number of vectors, from the first, that it was built from.
        nodes: Number of vectors in it.
        removed: Number of deletions that it knows of.
        scale: Factor from unit vectors to int8.
        error: Greatest distance between a vector and its int8 copy; infinite if the copies cannot be read.
        width: Number of candidates that a search keeps (``ef``).
        recall: Measured recall@10 at that width.
        max_width: Greatest width whose candidates are complete enough to be filtered (see ``NEAR_FRACTION``).
        scan_seconds: Measured seconds to compare a query with one row.
        batch_fraction: Cost of a further query in a batch that is compared with all rows, relative to the first.
        pass_seconds: Measured seconds of an exact search by a first pass over the int8 copies.
        base_seconds: Measured seconds of a search for few candidates.
        candidate_seconds: Measured seconds for each candidate more.
    """

    file: str
    hash: str
    rows: int
    nodes: int
    removed: int
    scale: float
    error: float
    width: int = WIDTHS[-1]
    recall: float = 0.0
    max_width: int = 0
    scan_seconds: float = 0.0
    batch_fraction: float = 0.0
    pass_seconds: float = math.inf
    base_seconds: float = 0.0
    candidate_seconds: float = 0.0

    def to_text(self) -> str:
        """Return it as JSON, with a checksum in front."""
        text = json.dumps(asdict(self))
        return f"{zlib.crc32(text.encode()):08x} {text}"

    @classmethod
    def from_text(cls, text: str | None) -> GraphInfo | None:
        """Read what :meth:`to_text` wrote; ``None`` if there is nothing, or it is damaged."""
        total, _, body = (text or "").partition(" ")
        return cls(**json.loads(body)) if body and f"{zlib.crc32(body.encode()):08x}" == total else None


class Graph:
    """A graph that is open for searching; safe to use from several threads.

    Args:
        path: The graph file.
        info: What is known about it.
        dim: Dimension of the vectors.
    """

    def __init__(self, path: Path, info: GraphInfo, dim: int) -> None:
        from usearch.index import Index

        self.info, self.width = info, info.width
        self._index: Any = Index.restore(str(path), view=True)
        if self._index is None or len(self._index) > info.rows:
            raise ValueError(f"{path} is not a graph of these vectors")
        self._index.expansion_search = 1  # type: ignore[misc]  # a search keeps as many candidates as it returns
        # `Index.search` checks and wraps, which takes a tenth of the time of a single query.
        self._search = self._index._compiled.search_many
        if math.isfinite(info.error):
            self._codes = np.memmap(path, np.int8, "r", DIMENSIONS, (info.nodes, dim)).view(np.ndarray)
            offset = path.stat().st_size - 4 * info.nodes
            self._rows = np.memmap(path, np.int32, "r", offset, (info.nodes,)).view(np.ndarray)

    @cached_property
    def _slots(self) -> NDArray[np.int32]:
        """The place of each row's int8 copy."""
        slots = np.empty(self.info.rows, np.int32)
        slots[self._rows] = np.arange(len(self._rows))
        return slots

    def search(
        self,
        queries: Vectors,
        k: int,
        vectors: Vectors,
        rows: Rows | None = None,
        mask: NDArray[np.bool_] | None = None,
        *,
        exact: bool = False,
    ) -> tuple[Rows, Vectors]:
        """Find the k nearest vectors among all or some, in whichever way is expected to cost least.

        A query whose own neighborhood is filtered out finds too few among the candidates of the graph, and is compared
        with all rows: what a graph finds far away from a query is not complete.

        Args:
            queries: Unit queries.
            k: Number of neighbors.
            vectors: The unit vectors that the graph was built from.
            rows: Positions of those to search, ascending (default: all).
            mask: The same as a mask over all.
            exact: Use only what finds all neighbors.

        Returns:
            Positions and scores, best first.
        """
        info, count = self.info, len(queries)
        selected = info.rows if rows is None else len(rows)
        width = math.ceil(max(self.width, 1.5 * k) / max(selected / info.rows, 1e-6))
        searching = info.base_seconds + info.candidate_seconds * width
        if count != 1:  # a single query is not worth asking for the number of threads
            searching *= count / min(threads(), max(count, 1))
        comparing = min(self._scan_seconds(count, selected), count * self._pass_seconds(selected))
        if exact or (rows is not None and width > info.max_width) or searching > comparing:
            return self._compare(queries, k, vectors, rows)
        candidates = self.candidates(queries, width)
        if mask is None:
            return _score(queries, candidates, k, vectors)
        usable = (candidates >= 0) & mask[candidates]
        done = usable[:, : int(NEAR_FRACTION * width)].sum(axis=1) >= k
        first = np.argsort(~usable, axis=1, kind="stable")[:, : max(RESCORED * k, k + 14)]
        chosen = np.take_along_axis(np.where(usable, candidates, -1), first, 1)
        if done.all():
            return _score(queries, chosen, k, vectors)
        nearest, scores = np.full((count, k), -1, np.int64), np.full((count, k), -np.inf, np.float32)
        nearest[done], scores[done] = _score(queries[done], chosen[done], k, vectors)
        others = self._compare(queries[~done], k, vectors, rows)
        nearest[~done, : others[0].shape[1]], scores[~done, : others[0].shape[1]] = others
        return nearest, scores

    def candidates(self, queries: Vectors, count: int) -> Rows:
        """Return the positions of about the ``count`` nearest vectors of each query, best first, and then −1."""
        codes = quantize(queries, self.info.scale)
        exact, cores = False, 1 if len(codes) == 1 else threads()
        matches = self._search(codes, count, exact, cores)
        keys, counts = matches[0].view(np.int64), matches[2]
        whole = min(counts.tolist(), default=0) == count
        return keys if whole else np.where(np.arange(count) < counts[:, None], keys, -1)

    def _scan_seconds(self, count: int, selected: int) -> float:
        """Seconds that comparing float32 vectors with selected rows is expected to take."""
        rows = min(GATHERED * selected, self.info.rows)
        return self.info.scan_seconds * rows * (1 + (count - 1) * self.info.batch_fraction)

    def _pass_seconds(self, selected: int) -> float:
        """Seconds that a first pass over the copies of selected rows is expected to take."""
        return self.info.pass_seconds * min(GATHERED * selected / self.info.rows, 1.0)

    def _compare(self, queries: Vectors, k: int, vectors: Vectors, rows: Rows | None) -> tuple[Rows, Vectors]:
        """Compare queries with all selected rows, whose int8 copies are looked at first if that is faster."""
        selected, count = self.info.rows if rows is None else len(rows), len(queries)
        if k <= selected and count * self._pass_seconds(selected) < self._scan_seconds(count, selected):
            candidates = [self.first_pass(query, k, vectors, rows) for query in queries]
            if all(candidates):
                places, scores = (np.stack(lines) for lines in zip(*(pair for pair in candidates if pair), strict=True))
                return places, scores
        return nearest(queries, vectors[: self.info.rows], k, rows)

    def first_pass(
        self, query: Vectors, k: int, vectors: Vectors, rows: Rows | None = None
    ) -> tuple[Rows, Vectors] | None:
        """Find the k nearest rows exactly, by the products of int8 copies and of the float32 vectors of the best.

        The query is taken as the sum of an int8 vector and a fraction of another. With r the greatest distance between
        a vector and its copy, and s that between the query and this sum, a cosine differs from the copies' by at most
        e = r + s (1 + r). At least k rows have a cosine of t − e, if t is what at least k copies reach; so copies below
        t − 2e are not among the nearest.

        Returns:
            Positions and scores, or ``None`` if too many rows are left to score.
        """
        scale = np.float32(self.info.scale)
        code = quantize(query, self.info.scale)
        code = np.stack([code, quantize(query * scale - code, FINER)])
        products = self._products(code, None if rows is None else self._slots[rows])
        whole = len(products) // GROUP * GROUP
        best = np.append(products[:whole].reshape(-1, GROUP).max(axis=1), products[whole:])
        threshold = np.partition(best if len(best) >= k else products, -k)[-k]
        far = float(np.linalg.norm(query - (code[0] + code[1] / np.float32(FINER)) / scale))
        bound = self.info.error + far * (1 + self.info.error) + 1e-5
        left = np.flatnonzero(products >= threshold - np.float32(2 * bound) * scale**2)
        if len(left) > max(LEFT * len(self._rows), 4 * k):
            return None
        candidates = np.sort(self._rows[left].astype(np.int64)) if rows is None else rows[left]
        scores = vectors[candidates] @ query
        order = np.lexsort((candidates, -scores))[:k]
        return candidates[order], np.clip(scores[order], -1, 1)

    def _products(self, code: NDArray[np.int8], slots: NDArray[np.int32] | None) -> Vectors:
        """The products of a query with all copies or those in some slots, on all cores if they are many."""
        import numkong

        few = slots if slots is not None and GATHERED * len(slots) < len(self._codes) else None
        packed, weights = numkong.dots_pack(code, "int8"), np.array([1, 1 / FINER], np.float32)
        products = np.empty(len(self._codes if few is None else few), np.float32)

        def compare(start: int) -> None:
            part = slice(start, start + COMPARED)
            copies = self._codes[part] if few is None else self._codes[few[part]]
            products[part] = np.asarray(numkong.dots_packed(copies, packed)).astype(np.float32) @ weights

        starts = range(0, len(products), COMPARED)
        with ThreadPoolExecutor(threads()) as pool:  # its threads begin with the first call
            list((map if len(starts) < 3 else pool.map)(compare, starts))
        return products if few is not None or slots is None else products[slots]


def quantize(vectors: Vectors, scale: float) -> NDArray[np.int8]:
    """Return vectors as int8: multiplied by a scale that uses the range of int8, rounded and clipped."""
    scaled = vectors * np.float32(scale)
    return np.minimum(np.maximum(np.rint(scaled, out=scaled), -127), 127).astype(np.int8)


def _score(queries: Vectors, candidates: Rows, k: int, vectors: Vectors) -> tuple[Rows, Vectors]:
    """The k best of the first candidates by their float32 cosines; int8 scores would swap the last hits."""
    candidates = candidates[:, : max(RESCORED * k, k + 14)]
    if len(queries) == 1:  # the same, in fewer steps
        rows = candidates[0]
        line = vectors.take(rows, 0).dot(queries[0])
        if rows[-1] < 0:
            line[rows < 0] = -np.inf
        best = np.lexsort((rows, -line))[None, :k]
        return rows.take(best), np.minimum(line.take(best), 1.0)
    scores = np.matmul(vectors[candidates], queries[:, :, None])[..., 0]
    scores[candidates < 0] = -np.inf
    lines, order = np.arange(len(queries))[:, None], np.lexsort((candidates, -scores), axis=1)[:, :k]
    return candidates[lines, order], np.minimum(scores[lines, order], 1.0)


def build_graph(path: Path, vectors: Vectors, rows: Rows, removed: int) -> GraphInfo:
    """Build a graph of some rows of all unit vectors, write it, and measure its recall and cost."""
    from usearch.index import Index

    sample, dim = vectors[rows[:: max(1, len(rows) // 5000)]], vectors.shape[1]
    largest = max(float(np.abs(vectors[part]).max()) for part in _blocks(rows))
    # What is clipped loosens the bound of the first pass, and a few outliers must not make all others coarse.
    scale = 127.0 / max(min(largest, OUTLIER * float(np.quantile(np.abs(sample), 0.999999))), 1e-6)
    index = Index(ndim=dim, metric="ip", dtype="i8", connectivity=EDGES, expansion_add=CANDIDATES, expansion_search=1)
    error = 0.0
    for part in _blocks(rows):
        codes = quantize(vectors[part], scale)
        index.add(part.view(np.uint64), codes, threads=threads())
        error = max(error, float(np.linalg.norm(vectors[part] - codes / np.float32(scale), axis=1).max()))
    with atomic_file(path, private=True) as file:
        index.save(str(file))
        order = _rows_in_file(file, vectors, rows, scale)
        if order is not None:
            with file.open("ab") as out:
                out.write(order.tobytes())
    known = error if order is not None else math.inf
    info = GraphInfo(path.name, hash_file(path), len(vectors), len(rows), removed, scale, known)
    return _measured(Graph(path, info, dim), vectors, rows)


def _blocks(rows: Rows) -> list[Rows]:
    return [rows[start : start + BLOCK] for start in range(0, len(rows), BLOCK)]


def _rows_in_file(file: Path, vectors: Vectors, rows: Rows, scale: float) -> NDArray[np.int32] | None:
    """The row of each int8 copy in a graph file: within a block, threads have added them in any order.

    None if the copies are not at the beginning of the file, as may be in other versions of usearch.
    """
    shape = (len(rows), vectors.shape[1])
    if tuple(np.fromfile(file, np.uint32, 2)) != shape:
        return None
    stored = np.memmap(file, np.int8, "r", DIMENSIONS, shape)
    order = []
    for number, part in enumerate(_blocks(rows)):
        here = _hashes(stored[number * BLOCK : number * BLOCK + len(part)])
        there = _hashes(quantize(vectors[part], scale))
        slots, sources = np.argsort(here, kind="stable"), np.argsort(there, kind="stable")
        if not np.array_equal(here[slots], there[sources]):
            return None
        block = np.empty(len(part), np.int32)
        block[slots] = part[sources]
        order.append(block)
    return np.concatenate(order)


def _hashes(codes: NDArray[np.int8]) -> NDArray[np.uint64]:
    words = np.pad(codes, ((0, 0), (0, -codes.shape[1] % 8))).view(np.uint64)
    factors = numpy_rng(0, "graph hashes").integers(1 << 63, size=words.shape[1], dtype=np.uint64)
    return np.asarray((words * (2 * factors + 1)).sum(axis=1))


def _measured(graph: Graph, vectors: Vectors, rows: Rows) -> GraphInfo:
    """Choose the smallest width whose recall is high enough, on queries halfway between a row and a near one."""
    rng = numpy_rng(0, "graph probes")
    probes = vectors[rng.choice(rows, min(PROBES, len(rows)), replace=False)]
    queries = probes + vectors[nearest(probes, vectors, 6, rows)[0][:, -1]]
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    batch, (truth, best) = _seconds(lambda: nearest(queries, vectors, int(NEAR_FRACTION * WIDTHS[-1]), rows))
    scan = float(np.median([_seconds(partial(nearest, query, vectors, K, rows))[0] for query in queries[:10, None]]))
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
    first_pass = math.inf
    if math.isfinite(graph.info.error):
        passes = [_seconds(partial(graph.first_pass, query, K, vectors)) for query in queries[:10]]
        if all(f is None or np.allclose(f[1], s, atol=1e-5) for (_, f), s in zip(passes, best[:, :K], strict=False)):
            first_pass = float(np.median([seconds + scan * (first is None) for seconds, first in passes]))
    return replace(
        graph.info, width=math.ceil(MARGIN * width), recall=recall, max_width=max_width,
        scan_seconds=scan / len(rows), batch_fraction=min(batch / len(queries) / scan, 1.0),
        pass_seconds=first_pass, base_seconds=narrow,
        candidate_seconds=max((wide - narrow) / (WIDTHS[-1] - WIDTHS[0]), 1e-9),
    )  # fmt: skip


def _recall(candidates: Rows, truth: Rows) -> float:
    return float(np.mean([np.isin(near, line).mean() for near, line in zip(truth, candidates, strict=True)]))


def _seconds(job: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = job()
    return time.perf_counter() - start, result
