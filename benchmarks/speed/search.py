"""Search: nearest vectors against faiss, images over HTTP and into an index against `encode`, and the map.

A million vectors are `search-million`, a run of its own.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from benchmarks.speed import Bar, BenchContext, http_requests, map_layout, vector_search
from benchmarks.speed.measuring import run_parts

COUNT = 100_000


def run(context: BenchContext) -> tuple[dict[str, Any], list[Bar]]:
    context.folder(http_requests.DATA)  # what is missing is said before anything is measured
    with tempfile.TemporaryDirectory(prefix="lookalike-bench-") as home:
        parts = {
            "requests": (lambda: http_requests.measure(context, Path(home)), http_requests.bars()),
            f"{COUNT:,} vectors": (
                lambda: vector_search.measure(context, COUNT, Path(home)),
                vector_search.bars(COUNT),
            ),
            "map": (lambda: map_layout.measure(context), map_layout.bars()),
        }
        return run_parts(context, parts)
