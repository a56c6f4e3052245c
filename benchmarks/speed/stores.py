"""The local store, Milvus and pgvector side by side: 100,000 vectors of 384 numbers, each at what its `build` chooses.

Servers are those of the tests, on this machine: Milvus 2.3.5 with its rounds shortened, PostgreSQL 18 with pgvector
and shared buffers of 1 GB. Queries are drawn like the rows and are answered with ids and payloads (`Store.query`,
`query_many`). Filters keep some of the Gaussians: for queries of a Gaussian that is kept, and of one that is filtered
out. All stores are measured in turns.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.speed import Bar, BenchContext
from benchmarks.speed.map_layout import mixture
from benchmarks.speed.measuring import interleaved_rates, rounded
from benchmarks.speed.vector_search import BATCH, DIM, ENOUGH, K, mixture_groups, timed
from lookalike.core.seeds import numpy_rng
from lookalike.evaluation.neighbors import top_k
from lookalike.store import Condition, create_store, store_class

COUNT, QUERIES, ROUNDS, INSERT = 100_000, 500, 3, 2_000
PERCENTS, FILTERED_QUERIES = (1, 10, 50), 20  # Milvus fetches thousands of rows for each of them
STORES = ("local", "milvus", "postgresql")
ONE, MANY = "one a call", f"batches of {BATCH}"


@contextmanager
def servers(folder: Path) -> Iterator[dict[str, str]]:
    """The address of every store that can be had here, with its server running."""
    from tests import helpers, milvus_server, postgres_server

    with ExitStack() as stack:
        out = {"local": "local"}
        if helpers.has("postgres"):
            server = postgres_server.Server("1GB")
            stack.callback(server.close)
            stack.enter_context(mock.patch.dict(os.environ, PGPASSWORD=postgres_server.PASSWORD))
            out["postgresql"] = server.address
        if helpers.has("milvus"):
            token = f"root:{milvus_server.PASSWORD}"
            stack.enter_context(mock.patch.dict(os.environ, LOOKALIKE_MILVUS_TOKEN=token))
            out["milvus"] = milvus_server.shared(folder, os.getpid())
            stack.callback((Path((folder / "milvus.lock").read_text()) / "ended").touch)
        yield {name: out[name] for name in STORES if name in out}


def run(context: BenchContext) -> tuple[dict[str, Any], list[Bar]]:
    with tempfile.TemporaryDirectory(prefix="lookalike-bench-") as home, servers(Path(home)) as addresses:
        return measure(context, addresses, Path(home), COUNT)


def measure(
    context: BenchContext, addresses: dict[str, str], home: Path, count: int
) -> tuple[dict[str, Any], list[Bar]]:
    """Build every store, then query them in turns."""
    rows = mixture(count + QUERIES, DIM)
    groups = mixture_groups(len(rows), DIM)
    rows, queries = rows[:count], rows[count:]
    truth = top_k(queries, rows, K)[1]
    figures: dict[str, Any] = {"vectors": count, "numbers": DIM, "not measured": sorted({*STORES} - {*addresses})}
    with ExitStack() as stack:
        opened = {}
        for name, address in addresses.items():
            context.say(f"{name}: building")
            figures[name] = built(address, home, rows, groups)
            opened[name] = store_class(name).open(str(home / name))
            stack.callback(store_class(name).drop, str(home / name))
            stack.callback(opened[name].close)
            if name == "local":
                opened[name].load_graph()  # type: ignore[attr-defined]
            hits = opened[name].query_many(queries, K)
            figures[name]["recall"] = recall([[hit.id for hit in line] for line in hits], truth)
            context.keep(figures, bars(figures))
        context.say("queries in turns")
        jobs = {}
        for name, store in opened.items():
            jobs[f"{name}, {ONE}"] = partial(_each, store, queries[:200])
            jobs[f"{name}, {MANY}"] = partial(_batches, store, queries)
        for job, rates in interleaved_rates(jobs, ROUNDS).items():
            name, _, way = job.partition(", ")
            figures[name][f"queries a second, {way}"] = rounded(rates)
        for name, store in opened.items():
            context.say(f"{name}: filters")
            figures[name]["filtered"] = filtered(store, rows, groups[:count])
            context.keep(figures, bars(figures))
    return figures, bars(figures)


def _each(store: Any, queries: np.ndarray) -> int:
    return sum(len(store.query(query, K)) > 0 for query in queries)


def _batches(store: Any, queries: np.ndarray) -> int:
    return sum(len(store.query_many(queries[at : at + BATCH], K)) for at in range(0, len(queries), BATCH))


def built(address: str, home: Path, rows: np.ndarray, groups: np.ndarray) -> dict[str, Any]:
    """Write all rows and build; the seconds of both, the width and recall that were chosen, and bytes a vector."""
    place = home / address.partition("://")[0]
    store = create_store(address, place, rows.shape[1])
    before = stored_bytes(store, place, home)
    start = time.monotonic()
    for at in range(0, len(rows), INSERT):
        part = range(at, min(at + INSERT, len(rows)))
        lines = [{"path": f"{i}.jpg", "label": f"{groups[i]:05d}"} for i in part]
        store.upsert([f"v/{i}" for i in part], rows[at : part.stop], lines)
    middle = time.monotonic()
    facts = store.build()
    end = time.monotonic()
    out = {"insert_seconds": round(middle - start, 2), "build_seconds": round(end - middle, 2)}
    out |= {"width": facts.get("ef", facts.get("width")), "probe_recall": facts["recall"]}
    out["bytes_a_vector"] = round((stored_bytes(store, place, home) - before) / len(rows), 1)
    store.close()
    return out


def stored_bytes(store: Any, place: Path, home: Path) -> int:
    """Bytes on disk: of the tables with their indexes, of the server's folder with its log, or of the store's files."""
    if store_name(store) == "postgresql":
        (one,) = store.shards
        with one._connections.use() as cursor:
            tables = [one._table, f"{one._table}_texts", f"{one._table}_numbers"]
            return int(sum(cursor.execute("SELECT pg_total_relation_size(%s)", (t,)).fetchone()[0] for t in tables))
    folder = Path((home / "milvus.lock").read_text()) if store_name(store) == "milvus" else place
    return sum(file.stat().st_blocks * 512 for file in folder.rglob("*") if file.is_file())


def store_name(store: Any) -> str:
    """Name of a store, by its class."""
    return next(name for name in STORES if isinstance(store, store_class(name)))


def recall(answers: list[list[str]], truth: np.ndarray) -> float:
    """Fraction of the true nearest rows that were answered."""
    right = [len({*ids} & {f"v/{row}" for row in line}) for ids, line in zip(answers, truth.tolist(), strict=True)]
    return round(sum(right) / truth.size, 4)


def filtered(store: Any, rows: np.ndarray, groups: np.ndarray) -> dict[str, dict[str, float]]:
    """Recall and speed of single queries under filters that keep the first Gaussians."""
    out = {}
    rng = numpy_rng(0, "filtered queries")
    shares = np.cumsum(np.bincount(groups)) / len(groups)
    for percent in PERCENTS:
        last = int(np.argmin(np.abs(shares - percent / 100)))
        where, inside = [Condition("label", high=str(last))], np.flatnonzero(groups <= last)
        for case, mask in (("kept", groups <= last), ("filtered out", groups > last)):
            some = rows[rng.choice(np.flatnonzero(mask), FILTERED_QUERIES)]
            some = some + 0.3 / np.sqrt(some.shape[1]) * rng.standard_normal(some.shape, dtype=np.float32)
            truth = inside[top_k(some, rows[inside], K)[1]]
            answers, times = timed(partial(store.query, k=K, where=where), some)
            found = recall([[hit.id for hit in hits] for hits in answers], truth)
            out[f"{percent} %, class {case}"] = {"recall": found, **times}
    return out


def bars(figures: dict[str, Any]) -> list[Bar]:
    """Recall of every store, without and with filters; what was not measured is not a number."""
    out = []
    for name in STORES:
        facts = figures.get(name, {})
        out.append(Bar(f"{name}: recall@10", facts.get("recall", float("nan")), ENOUGH))
        for case in (f"{percent} %, class {which}" for percent in PERCENTS for which in ("kept", "filtered out")):
            value = facts.get("filtered", {}).get(case, {}).get("recall", float("nan"))
            out.append(Bar(f"{name}, filter {case}: recall@10", value, ENOUGH))
    return out
