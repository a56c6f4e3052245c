"""Search: nearest vectors against faiss, images over HTTP and into an index against `encode`, and the map.

A million vectors are `search-million`, a run of its own.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from benchmarks.speed import Bar, BenchContext, nearest, requests
from benchmarks.speed import map as map_layout
from benchmarks.speed.parts import in_parts

COUNT = 100_000


def run(context: BenchContext) -> tuple[dict[str, Any], list[Bar]]:
    context.folder(requests.DATA)  # what is missing is said before anything is measured
    with tempfile.TemporaryDirectory(prefix="lookalike-bench-") as home:
        parts = {
            "requests": (lambda: requests.measure(context, Path(home)), requests.bars()),
            f"{COUNT:,} vectors": (lambda: nearest.measure(context, COUNT, Path(home)), nearest.bars(COUNT)),
            "map": (lambda: map_layout.measure(context), map_layout.bars()),
        }
        return in_parts(context, parts)
