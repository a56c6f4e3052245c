"""Recall of the local store under filters on real images: the vectors of six data sets in one graph.

Every fiftieth image is a query and not stored. Filters keep classes in random order, for queries whose class is kept
and for queries whose class is filtered out.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.speed import Bar, BenchContext, vector_search
from lookalike.core.seeds import numpy_rng

SETS, SIZE = ("cub", "cars", "pacs", "grocery", "tinyimagenet100", "pool"), 96
EACH = 50  # one image of so many is a query


def run(context: BenchContext) -> tuple[dict[str, Any], list[Bar]]:
    from lookalike.models import Embedder

    files = [file for name in SETS for file in sorted(context.folder(name).rglob("*.jpg"))]
    places = sorted({file.parent for file in files})
    order = numpy_rng(0, "order of classes").permutation(len(places))
    number = {place: int(order[i]) for i, place in enumerate(places)}
    groups = np.array([number[file.parent] for file in files])
    context.say(f"{len(files):,} images at {SIZE} px: embedding")
    model = Embedder.from_pretrained("efficientnet_lite0", device="cpu", size=SIZE)
    return measure(context, np.asarray(model.encode(files)), groups)


def measure(context: BenchContext, vectors: np.ndarray, groups: np.ndarray) -> tuple[dict[str, Any], list[Bar]]:
    """Recall of single queries, without a filter and with filters."""
    query = np.arange(len(vectors)) % EACH == 0
    rows, queries = vectors[~query], vectors[query]
    with tempfile.TemporaryDirectory(prefix="lookalike-bench-") as home:
        ours = vector_search.Ours(Path(home))
        facts = ours.build(rows, groups[~query], context.say)
        ours.open()
        graph = ours.store.load_graph()
        truth = ours.store.search(queries, vector_search.K, exact=True).rows
        near, times = vector_search.timed(lambda one: ours.store.search(one, vector_search.K).rows[0], queries)
        recall = float(np.mean([np.isin(t, n).mean() for t, n in zip(truth, near, strict=True)]))
        filtered = vector_search.filtered(ours.store, groups[~query], queries, groups[query])
        ours.close()
    figures = {
        "vectors": len(rows), "numbers": rows.shape[1], "classes": int(groups.max()) + 1, "build": facts,
        "graph": graph is not None, "unfiltered": {"recall": round(recall, 4), **times}, "filtered": filtered,
    }  # fmt: skip
    bars = [Bar("no filter: recall@10", recall, vector_search.ENOUGH)]
    bars += vector_search.filter_bars("real images", filtered)
    return figures, bars
