"""Nearest vectors: our local store and faiss's HNSW, each at its smallest setting that finds enough.

Unit vectors of 384 numbers from 2,000 Gaussians, queries drawn alike, graphs of 16 edges on both sides; ours looks at
160 candidates while building, faiss at 100, which takes it longer still. Ours is measured by row numbers and scores
(`Store.search`) and with ids and payloads (`Store.query`, `query_many`); faiss gives numbers and scores. Everything is
measured in turns, round after round. Filters keep some of the Gaussians: for queries of a Gaussian that is kept, and of
one that is filtered out.
"""

from __future__ import annotations

import math
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.speed import Bar, BenchContext
from benchmarks.speed.map_layout import GROUPS, mixture
from benchmarks.speed.measuring import interleaved_rates, ratio, rounded
from lookalike.core.errors import LookalikeError
from lookalike.core.files import read_json, write_json
from lookalike.core.seeds import numpy_rng

DIM, K, ENOUGH = 384, 10, 0.97
QUERIES, BATCH, ROUNDS = 2_000, 64, 5
EDGES, CANDIDATES = 16, 100
WIDTHS = (10, 12, 14, 16, 18, 20, 22, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 256, 384, 512)
INSERT = 2_000  # rows a call
TIMED = 200  # queries whose times are measured one by one
SHOWN = 100_000  # rows after which it says how far it is
ONE, MANY = "one a call", f"batches of {BATCH}"
PAYLOAD = ", with payload"
BARS = {ONE: 0.6, MANY: 0.7, ONE + PAYLOAD: 0.35, MANY + PAYLOAD: 0.35}
PERCENTS, FILTERED_QUERIES = (0.1, 1, 10, 50, 95), 50
FILTERED_RATE = 100.0
SMALL = 100_000  # vectors up to which speed under filters and of opening is promised
OPEN_SECONDS, BYTES, EXACT_MILLISECONDS = 0.05, 2300.0, 120.0
MILLION = 1_000_000


class Ours:
    """The local store behind `Store`."""

    name = "ours"

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "ours"
        self.store: Any = None

    def build(self, rows: np.ndarray, groups: np.ndarray, say: Callable[[str], None]) -> dict[str, float]:
        from lookalike.store.local import LocalStore

        store = LocalStore.create(str(self.folder), rows.shape[1])
        start = time.monotonic()
        for at in range(0, len(rows), INSERT):
            if at and at % SHOWN == 0:
                say(f"ours: {at:,} of {len(rows):,} stored, {time.monotonic() - start:.0f} s")
            part = range(at, min(at + INSERT, len(rows)))
            lines = [{"path": f"{i}.jpg", "label": f"{groups[i]:05d}"} for i in part]
            store.upsert([f"v/{i}" for i in part], rows[part.start : part.stop], lines)
        middle = time.monotonic()
        say(f"ours: building the graph, {middle - start:.0f} s")
        store.build()
        store.close()
        return {"insert_seconds": middle - start, "graph_seconds": time.monotonic() - middle}

    def open(self) -> None:
        from lookalike.store.local import LocalStore

        self.store = LocalStore.open(str(self.folder))

    def set_beam_width(self, width: int) -> None:
        graph = self.store.load_graph()
        if graph is not None:
            graph.width = width

    def one(self, query: np.ndarray) -> list[int]:
        result: list[int] = self.store.search(query, K).rows[0].tolist()
        return result

    def many(self, queries: np.ndarray) -> list[list[int]]:
        result: list[list[int]] = self.store.search(queries, K).rows.tolist()
        return result

    def close(self) -> None:
        self.store.close()


class Peer:
    """faiss's HNSW over plain vectors, in one file."""

    name = "faiss"

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "faiss"
        self.graph: Any = None

    def build(self, rows: np.ndarray, groups: np.ndarray, say: Callable[[str], None]) -> dict[str, float]:
        faiss = _faiss()
        graph = faiss.IndexHNSWFlat(rows.shape[1], EDGES, faiss.METRIC_INNER_PRODUCT)
        graph.hnsw.efConstruction = CANDIDATES
        start = time.monotonic()
        for at in range(0, len(rows), SHOWN):
            if at:
                say(f"faiss: {at:,} of {len(rows):,} in the graph, {time.monotonic() - start:.0f} s")
            graph.add(rows[at : at + SHOWN])
        middle = time.monotonic()
        self.folder.mkdir(parents=True)
        faiss.write_index(graph, str(self.folder / "graph"))
        return {"graph_seconds": middle - start, "write_seconds": time.monotonic() - middle}

    def open(self) -> None:
        self.graph = _faiss().read_index(str(self.folder / "graph"))

    def set_beam_width(self, width: int) -> None:
        self.graph.hnsw.efSearch = width

    def one(self, query: np.ndarray) -> list[int]:
        result: list[int] = self.graph.search(query[None], K)[1][0].tolist()
        return result

    def many(self, queries: np.ndarray) -> list[list[int]]:
        result: list[list[int]] = self.graph.search(queries, K)[1].tolist()
        return result

    def close(self) -> None:
        self.graph = None


Side = Ours | Peer


def _faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise LookalikeError("This benchmark compares with faiss: `pip install 'lookalike[bench]'`.") from error
    return faiss


def measure(
    context: BenchContext, count: int, folder: Path, dim: int = DIM, *, peer: bool = True
) -> tuple[dict[str, Any], list[Bar]]:
    """Both sides, or ours alone, over `count` vectors; graphs that lie in `folder` from before are opened again."""
    from lookalike.evaluation.neighbors import top_k

    rows = mixture(count + QUERIES, dim)
    groups = mixture_groups(len(rows), dim)
    rows, queries = rows[:count], rows[count:]
    truth = top_k(queries, rows, K)[1].tolist()
    sides: list[Side] = [Ours(folder)]
    if peer:
        _faiss().omp_set_num_threads(context.threads)
        sides.append(Peer(folder))
    figures: dict[str, Any] = {"vectors": count, "numbers": dim}
    for side in sides:
        context.say(f"{side.name}: {count:,} vectors")
        facts = built(side, rows, groups, context.say)
        size = sum(file.stat().st_blocks * 512 for file in side.folder.rglob("*") if file.is_file())
        facts["bytes_a_vector"] = round(size / count, 1)
        facts["cold_open_seconds"] = round(cold(side, queries[0]), 4)
        facts["open_seconds"] = round(min(opening(side, query) for query in queries[:5]), 4)
        side.open()
        if isinstance(side, Ours):
            side.store.load_graph()
        facts["width"], facts["recall"] = smallest(side, queries, truth)
        figures[side.name] = facts
    speeds = interleaved_rates(
        {f"{side.name}, {way}": job for side in sides for way, job in ways(side, queries).items()}, ROUNDS
    )
    ours = sides[0]
    assert isinstance(ours, Ours)
    if (graph := ours.store.load_graph()) is not None:
        graph.width = graph.info.width  # as a user gets it
    figures["filtered"] = filtered(ours.store, groups[:count], rows, groups[:count], noise=0.3)
    ways_to_time = {"graph": False, "exact": True}
    figures["single"] = {
        way: timed(partial(ours.store.search, k=K, exact=exact), queries[:TIMED])[1]
        for way, exact in ways_to_time.items()
    }
    figures["ours"]["memory"] = memory(ours.folder)
    for side in sides:
        side.close()
    figures["queries_a_second"] = {name: rounded(values) for name, values in speeds.items()}
    ratios: dict[str, float] = {}
    if peer:
        ratios = {way: ratio(speeds[f"ours, {way}"], speeds[f"faiss, {way.removesuffix(PAYLOAD)}"]) for way in BARS}
        figures["ours / faiss"] = {way: round(value, 3) for way, value in ratios.items()}
    return figures, bars(count, ratios, figures, peer=peer)


def bars(
    count: int, ratios: Mapping[str, float] = {}, figures: Mapping[str, Any] | None = None, *, peer: bool = True
) -> list[Bar]:
    facts = figures or {"ours": {}, "faiss": {}, "filtered": {}, "single": {"exact": {"p50_ms": math.nan}}}
    result = [
        Bar(f"{count:,} vectors, {way}: ours / faiss", ratios.get(way, math.nan), BARS[way]) for way in BARS if peer
    ]
    result += [
        Bar(f"{count:,} vectors: recall@10 of {name}", facts[name].get("recall", math.nan), ENOUGH)
        for name in (Ours.name, Peer.name)[: 1 + peer]
    ]
    result += filter_bars(f"{count:,} vectors", facts["filtered"], FILTERED_RATE if count <= SMALL else None)
    opened, size = (facts["ours"].get(name, math.nan) for name in ("open_seconds", "bytes_a_vector"))
    if count <= SMALL:
        result.append(Bar(f"{count:,} vectors: seconds to open and answer", opened, OPEN_SECONDS, "lower"))
    result.append(Bar(f"{count:,} vectors: bytes a vector", size, BYTES, "lower"))
    if count >= MILLION:
        exact = facts["single"]["exact"]["p50_ms"]
        result.append(Bar(f"{count:,} vectors: milliseconds of an exact query", exact, EXACT_MILLISECONDS, "lower"))
    return result


def filter_bars(what: str, cases: Mapping[str, Mapping[str, float]], rate: float | None = None) -> list[Bar]:
    """Recall, and speed where it is promised, of each case of `filtered`; what was not measured is not a number."""
    result = []
    for case in (f"{percent} %, class {which}" for percent in PERCENTS for which in ("kept", "filtered out")):
        values = cases.get(case, {})
        result.append(Bar(f"{what}, filter {case}: recall@10", values.get("recall", math.nan), ENOUGH))
        if rate is not None:
            speed = values.get("queries_a_second", math.nan)
            result.append(Bar(f"{what}, filter {case}: queries a second", speed, rate))
    return result


def mixture_groups(count: int, dim: int) -> np.ndarray:
    """The Gaussian of each vector of `mixture`, drawn as there."""
    rng = numpy_rng(0, "map bench")
    rng.standard_normal((GROUPS, dim), dtype=np.float32)
    return rng.integers(0, GROUPS, count)


def filtered(
    store: Any, stored: np.ndarray, queries: np.ndarray, groups: np.ndarray, noise: float = 0.0
) -> dict[str, dict[str, float]]:
    """Recall and speed under filters that keep the first groups, one query a call; of new filters as well.

    Args:
        store: The store; the column `label` holds the group of a row.
        stored: Groups of its rows.
        queries: Vectors among which queries are drawn.
        groups: Their groups.
        noise: Length of the noise that is added to queries, for stored vectors.
    """
    from lookalike.store import Condition

    out: dict[str, dict[str, float]] = {}
    rng = numpy_rng(0, "filtered queries")
    shares = np.cumsum(np.bincount(stored)) / len(stored)
    for percent in PERCENTS:
        last = int(np.argmin(np.abs(shares - percent / 100)))
        where = [Condition("label", high=str(last))]
        for case, mask in (("kept", groups <= last), ("filtered out", groups > last)):
            if not mask.any():
                continue
            some = queries[rng.choice(np.flatnonzero(mask), FILTERED_QUERIES)]
            some = some + noise / np.sqrt(some.shape[1]) * rng.standard_normal(some.shape, dtype=np.float32)
            truth = store.search(some, K, where=where, exact=True).rows
            near, times = timed(partial(store.search, k=K, where=where), some)
            again = [[Condition("label", high=f"{last}.{number}")] for number in range(1, 6)]  # the same rows
            cold = [timed(partial(store.search, k=K, where=new), some[:1])[1]["p50_ms"] for new in again]
            times = times | {"cold_p50_ms": float(np.median(cold))}
            there = truth >= 0
            hits = np.array([np.isin(t, n.rows[0]) for t, n in zip(truth, near, strict=True)]) & there
            if there.any():
                out[f"{percent} %, class {case}"] = {"recall": round(float(hits.sum() / there.sum()), 4), **times}
    return out


def timed(search: Callable[[np.ndarray], Any], queries: np.ndarray) -> tuple[list[Any], dict[str, float]]:
    """The answers to single queries, and how fast they came."""
    answers, times = [], []
    for query in queries:
        start = time.perf_counter()
        answers.append(search(query))
        times.append(time.perf_counter() - start)
    p50, p99 = (round(1000 * float(np.percentile(times, p)), 3) for p in (50, 99))
    return answers, {"queries_a_second": round(len(times) / sum(times), 1), "p50_ms": p50, "p99_ms": p99}


READER = """
import sys
import numpy as np
from lookalike.store.local import LocalStore
store = LocalStore.open(sys.argv[1])
store.load_graph()
for query in np.random.default_rng(0).normal(size=(100, store.dim)).astype(np.float32):
    store.query(query, 10)
store.query(query, 10, exact=True)
print(open("/proc/self/status").read())
"""


def memory(folder: Path) -> dict[str, float]:
    """Megabytes that a process holds which opens the store and searches it: of its own, and of mapped files."""
    if not Path("/proc/self/status").exists():
        return {}
    done = subprocess.run([sys.executable, "-c", READER, str(folder)], check=True, capture_output=True, text=True)
    lines = dict(line.split(":", 1) for line in done.stdout.splitlines() if ":" in line)
    return {
        name: round(int(lines[key].split()[0]) / 1000, 1) for name, key in (("own", "RssAnon"), ("mapped", "RssFile"))
    }


def built(side: Side, rows: np.ndarray, groups: np.ndarray, say: Callable[[str], None]) -> dict[str, Any]:
    """What building took, now or when it was done."""
    note = side.folder.with_suffix(".json")
    if note.exists():
        return dict(read_json(note, "bench"))
    shutil.rmtree(side.folder, ignore_errors=True)
    load, cpu = os.getloadavg()[0], time.process_time()
    facts = {name: round(value, 2) for name, value in side.build(rows, groups, say).items()}
    facts |= {"cpu_seconds": round(time.process_time() - cpu, 1), "load_before": round(load, 2)}
    # Of this process, which holds all vectors too.
    facts["peak_megabytes"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000, 1)
    write_json(note, facts)
    return facts


def cold(side: Side, query: np.ndarray) -> float:
    """Seconds to open it and answer once, with its files no longer in the system's memory."""
    for file in side.folder.rglob("*"):
        if file.is_file() and hasattr(os, "posix_fadvise"):
            with file.open("rb") as opened:
                os.fsync(opened.fileno())
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return opening(side, query)


def opening(side: Side, query: np.ndarray) -> float:
    """Seconds to open it and answer once."""
    start = time.monotonic()
    side.open()
    side.one(query)
    passed = time.monotonic() - start
    side.close()
    return passed


def smallest(side: Side, queries: np.ndarray, truth: list[list[int]]) -> tuple[int, float]:
    """The smallest width that finds enough, and the share of the true nearest it finds."""
    recall = 0.0
    for width in WIDTHS:
        side.set_beam_width(width)
        result = side.many(queries)
        recall = float(np.mean([len(set(a) & set(b)) / len(b) for a, b in zip(result, truth, strict=True)]))
        if recall >= ENOUGH:
            break
    return width, round(recall, 4)


def ways(side: Side, queries: np.ndarray) -> dict[str, Callable[[], int]]:
    def one() -> int:
        return len([side.one(query) for query in queries])

    def many() -> int:
        return sum(len(side.many(queries[at : at + BATCH])) for at in range(0, len(queries), BATCH))

    def one_with_payload() -> int:
        return sum(len(side.store.query(query, K)) > 0 for query in queries)

    def many_with_payload() -> int:
        return sum(len(side.store.query_many(queries[at : at + BATCH], K)) for at in range(0, len(queries), BATCH))

    plain = {ONE: one, MANY: many}
    return plain | (
        {ONE + PAYLOAD: one_with_payload, MANY + PAYLOAD: many_with_payload} if isinstance(side, Ours) else {}
    )
