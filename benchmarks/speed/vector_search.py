"""Nearest vectors: our default store and faiss's HNSW, each at its smallest setting that finds enough.

Unit vectors of 384 numbers from 2,000 Gaussians, questions drawn alike, the same graph on both sides (16 edges, 100
candidates while building). Ours is asked through `Store.query` and `query_many`, and gives each hit's name, score and
payload; faiss gives numbers and scores. Everything is measured in turns, round after round.
"""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.speed import Bar, BenchContext
from benchmarks.speed.map_layout import mixture
from benchmarks.speed.measuring import interleaved_rates, ratio, rounded
from lookalike.core.errors import LookalikeError
from lookalike.core.files import read_json, write_json

DIM, K, ENOUGH = 384, 10, 0.97
QUERIES, BATCH, ROUNDS = 2_000, 64, 5
EDGES, CANDIDATES = 16, 100
WIDTHS = (10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 256, 384, 512)
INSERT = 2_000  # rows a call
SHOWN = 100_000  # rows after which it says how far it is
ONE, MANY = "one a call", f"batches of {BATCH}"
BARS = {ONE: 0.4, MANY: 0.25}
GROWING = ("graph_seconds", "cpu_seconds", "bytes_a_vector", "cold_open_seconds", "width")


class Ours:
    """The local store behind `Store`."""

    name = "ours"

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "ours"
        self.store: Any = None

    def build(self, rows: np.ndarray, say: Callable[[str], None]) -> dict[str, float]:
        from lookalike.store.local import LocalStore

        store = LocalStore.create(str(self.folder), rows.shape[1])
        start = time.monotonic()
        for at in range(0, len(rows), INSERT):
            if at and at % SHOWN == 0:
                say(f"ours: {at:,} of {len(rows):,} stored, {time.monotonic() - start:.0f} s")
            part = range(at, min(at + INSERT, len(rows)))
            lines = [{"path": f"{i}.jpg", "label": f"group {i % 200}"} for i in part]
            store.upsert([f"v/{i}" for i in part], rows[part.start : part.stop], lines)
        middle = time.monotonic()
        say(f"ours: building the graph, {middle - start:.0f} s")
        store.build()
        store.close()
        return {"insert_seconds": middle - start, "graph_seconds": time.monotonic() - middle}

    def open(self) -> None:
        from lookalike.store.local import LocalStore

        self.store = LocalStore.open(str(self.folder))

    def look(self, width: int) -> None:
        self.store.width = width

    def one(self, query: np.ndarray) -> list[int]:
        return [int(hit.id[2:]) for hit in self.store.query(query, K)]

    def many(self, queries: np.ndarray) -> list[list[int]]:
        return [[int(hit.id[2:]) for hit in hits] for hits in self.store.query_many(queries, K)]

    def close(self) -> None:
        self.store.close()


class Peer:
    """faiss's HNSW over plain vectors, in one file."""

    name = "faiss"

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "faiss"
        self.graph: Any = None

    def build(self, rows: np.ndarray, say: Callable[[str], None]) -> dict[str, float]:
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

    def look(self, width: int) -> None:
        self.graph.hnsw.efSearch = width

    def one(self, query: np.ndarray) -> list[int]:
        found: list[int] = self.graph.search(query[None], K)[1][0].tolist()
        return found

    def many(self, queries: np.ndarray) -> list[list[int]]:
        found: list[list[int]] = self.graph.search(queries, K)[1].tolist()
        return found

    def close(self) -> None:
        self.graph = None


Side = Ours | Peer


def _faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise LookalikeError("This benchmark compares with faiss: `pip install 'lookalike[bench]'`.") from error
    return faiss


def measure(context: BenchContext, count: int, folder: Path, dim: int = DIM) -> tuple[dict[str, Any], list[Bar]]:
    """Both sides over `count` vectors; graphs that lie in `folder` from before are opened again."""
    from lookalike.evaluation.neighbors import top_k

    _faiss().omp_set_num_threads(context.threads)
    rows = mixture(count + QUERIES, dim)
    rows, queries = rows[:count], rows[count:]
    truth = top_k(queries, rows, K)[1].tolist()
    sides: list[Side] = [Ours(folder), Peer(folder)]
    figures: dict[str, Any] = {"vectors": count, "numbers": dim}
    for side in sides:
        context.say(f"{side.name}: {count:,} vectors")
        facts = built(side, rows, context.say)
        size = sum(file.stat().st_blocks * 512 for file in side.folder.rglob("*") if file.is_file())
        facts["bytes_a_vector"] = round(size / count, 1)
        facts["cold_open_seconds"] = round(cold(side, queries[0]), 4)
        side.open()
        facts["width"], facts["recall"] = smallest(side, queries, truth)
        figures[side.name] = facts
    speeds = interleaved_rates(
        {f"{side.name}, {way}": job for side in sides for way, job in ways(side, queries).items()}, ROUNDS
    )
    for side in sides:
        side.close()
    ratios = {way: ratio(speeds[f"ours, {way}"], speeds[f"faiss, {way}"]) for way in BARS}
    figures["queries_a_second"] = {name: rounded(values) for name, values in speeds.items()}
    figures["ours / faiss"] = {way: round(value, 3) for way, value in ratios.items()}
    return figures, bars(count, ratios, {side.name: figures[side.name]["recall"] for side in sides})


def bars(count: int, ratios: Mapping[str, float] = {}, recalls: Mapping[str, float] = {}) -> list[Bar]:
    found = [Bar(f"{count:,} vectors, {way}: ours / faiss", ratios.get(way, math.nan), BARS[way]) for way in BARS]
    names = (Ours.name, Peer.name)
    return found + [Bar(f"{count:,} vectors: recall@10 of {n}", recalls.get(n, math.nan), ENOUGH) for n in names]


def built(side: Side, rows: np.ndarray, say: Callable[[str], None]) -> dict[str, Any]:
    """What building took, now or when it was done."""
    note = side.folder.with_suffix(".json")
    if note.exists():
        return dict(read_json(note, "bench"))
    shutil.rmtree(side.folder, ignore_errors=True)
    load, cpu = os.getloadavg()[0], time.process_time()
    facts = {name: round(value, 2) for name, value in side.build(rows, say).items()}
    facts |= {"cpu_seconds": round(time.process_time() - cpu, 1), "load_before": round(load, 2)}
    write_json(note, facts)
    return facts


def cold(side: Side, query: np.ndarray) -> float:
    """Seconds to open it and answer once, with its files no longer in the system's memory."""
    for file in side.folder.rglob("*"):
        if file.is_file() and hasattr(os, "posix_fadvise"):
            with file.open("rb") as opened:
                os.fsync(opened.fileno())
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
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
        side.look(width)
        found = side.many(queries)
        recall = float(np.mean([len(set(a) & set(b)) / len(b) for a, b in zip(found, truth, strict=True)]))
        if recall >= ENOUGH:
            break
    return width, round(recall, 4)


def ways(side: Side, queries: np.ndarray) -> dict[str, Callable[[], int]]:
    def one() -> int:
        return len([side.one(query) for query in queries])

    def many() -> int:
        return sum(len(side.many(queries[at : at + BATCH])) for at in range(0, len(queries), BATCH))

    return {ONE: one, MANY: many}


def growth(small: dict[str, Any], large: dict[str, Any]) -> dict[str, Any]:
    """How many times each figure is as large with ten times the vectors."""
    out: dict[str, Any] = {"vectors": large["vectors"] / small["vectors"]}
    for side in ("ours", "faiss"):
        out[side] = {name: round(large[side][name] / max(small[side][name], 1e-9), 3) for name in GROWING}
    before, now = small["queries_a_second"], large["queries_a_second"]
    out["queries_a_second"] = {name: round(now[name]["median"] / before[name]["median"], 3) for name in now}
    return out
