"""How the local store grows: 10^4 to 10^6 vectors with the graph, to 10^7 by exact scans of a mapped file.

Every size is built anew from the same Gaussians (`map_layout.mixture`), with the graph even where the store would
compare every row. Scans read the vector file alone, as the store maps it, dropped from the system's memory before each
query: a file that is larger than the memory is read from the disk each time. `lookalike plan` predicts by these
curves; `python tools/docs.py` copies them from the stored result into the package.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.speed import Bar, BenchContext, vector_search
from benchmarks.speed.map_layout import mixture
from lookalike import planning
from lookalike.evaluation.neighbors import top_k
from lookalike.store import local_graph
from lookalike.store.scan import nearest

GRAPH_SIZES = (10_000, 20_000, 50_000, 100_000, 300_000, 1_000_000)
SCAN_SIZES = (100_000, 200_000, 500_000, 1_000_000, 3_000_000, 10_000_000)
DIM, K, WITHIN = 384, 10, 0.20
QUERIES, SCANS = 300, 3
BLOCK = 100_000  # vectors written at a time
COSTS = ("insert_seconds", "graph_seconds", "query_seconds", "disk_bytes", "memory_bytes")
SCAN_COSTS = ("write_seconds", "query_seconds", "batch_seconds", "disk_bytes")


def run(context: BenchContext) -> tuple[dict[str, Any], list[Bar]]:
    return measure(context, GRAPH_SIZES, SCAN_SIZES)


def measure(
    context: BenchContext, graph_sizes: Sequence[int], scan_sizes: Sequence[int]
) -> tuple[dict[str, Any], list[Bar]]:
    """The constants of this machine, the scans, and the stores with their graph."""
    figures: dict[str, Any] = {"dim": DIM}
    with tempfile.TemporaryDirectory(prefix="lookalike-bench-") as home:
        context.say("Constants of this machine")
        figures["machine"] = planning.measure_machine()
        rows = mixture(graph_sizes[-1] + QUERIES, DIM)
        figures["exact"] = scans(context, rows, Path(home) / "vectors", scan_sizes)
        context.keep(figures, bars(figures))
        figures["graph"] = {"rows": [], "recall": [], **{name: [] for name in COSTS}}
        for count in graph_sizes:
            context.say(f"{count:,} vectors with the graph")
            for name, value in grown(rows[:count], rows[-QUERIES:], Path(home) / str(count)).items():
                figures["graph"][name].append(value)
            context.keep(figures, bars(figures))
    return figures, bars(figures)


def bars(figures: dict[str, Any]) -> list[Bar]:
    """The last point of every curve, predicted from the others by what `plan` uses."""
    out = []
    for kind, names in (("graph", COSTS), ("exact", SCAN_COSTS)):
        points = figures.get(kind, {"rows": []})
        for name in names:
            error = float("nan")
            if len(points["rows"]) > 3:
                error = abs(planning.Curve.fit(points["rows"], points[name]).error)
            out.append(Bar(f"{kind}: error of the last point's {name}, predicted", error, WITHIN, "lower"))
    return out


def grown(rows: np.ndarray, queries: np.ndarray, folder: Path) -> dict[str, float]:
    """Build a store with its graph, and search it."""
    folder.mkdir()
    side = vector_search.Ours(folder)
    with mock.patch.object(local_graph, "GRAPH_ROWS", 1):
        facts = side.build(rows, np.arange(len(rows)) % 100, lambda text: None)
        side.open()
        assert side.store.load_graph() is not None
        truth = top_k(queries, rows, K)[1].tolist()
        side.many(queries)
        start = time.perf_counter()
        hits = [side.one(query) for query in queries]
        seconds = (time.perf_counter() - start) / len(queries)
        side.close()
    memory = vector_search.memory(side.folder)
    return {
        "rows": len(rows),
        "insert_seconds": round(facts["insert_seconds"], 3),
        "graph_seconds": round(facts["graph_seconds"], 3),
        "query_seconds": round(seconds, 7),
        "recall": round(float(np.mean([len(set(a) & set(b)) / K for a, b in zip(hits, truth, strict=True)])), 4),
        "disk_bytes": sum(file.stat().st_blocks * 512 for file in side.folder.rglob("*") if file.is_file()),
        "memory_bytes": round(1e6 * (memory["own"] + memory["mapped"])),
    }


def scans(context: BenchContext, rows: np.ndarray, path: Path, sizes: Sequence[int]) -> dict[str, list[float]]:
    """Write a file of vectors block by block, and scan it at every size. Later blocks are rotations of the first."""
    out: dict[str, list[float]] = {"rows": [], **{name: [] for name in SCAN_COSTS}}
    seconds, written = 0.0, 0
    block = np.ascontiguousarray(rows[:BLOCK])
    with path.open("wb") as file:
        for size in sizes:
            while written < size:
                part = np.roll(block, written // BLOCK, axis=1)
                start = time.perf_counter()
                file.write(part.data)
                file.flush()
                os.fsync(file.fileno())
                seconds += time.perf_counter() - start
                written += BLOCK
            context.say(f"{size:,} vectors by exact scans")
            some = np.roll(block[:64], size // BLOCK - 1, axis=1)  # the first of the last block
            one = [_scan(path, some[i : i + 1], size, size - BLOCK + i) for i in range(SCANS)]
            batch = _scan(path, some, size, size - BLOCK)
            costs = (size, seconds, statistics.median(one), batch, path.stat().st_blocks * 512)
            for name, value in zip(out, costs, strict=True):
                out[name].append(round(value, 4))
    path.unlink()
    return out


def _scan(path: Path, queries: np.ndarray, size: int, expected: int) -> float:
    """Seconds of an exact search of a file that is not in the system's memory; its first query is a known row."""
    if hasattr(os, "posix_fadvise"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    start = time.perf_counter()
    vectors = np.memmap(path, np.float32, "r", shape=(size, queries.shape[1])).view(np.ndarray)
    hits = nearest(queries, vectors, K)[0]
    passed = time.perf_counter() - start
    assert hits[0, 0] == expected
    return passed
