"""Search: nearest vectors against faiss, pictures over HTTP and into an index against `encode`, and the map.

A million vectors are `search-million`, a run of its own.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from lookalike.benches import Bar, BenchContext, map, nearest, requests  # noqa: A004 (a benchmark's name)
from lookalike.benches.parts import in_parts

COUNT = 100_000


def run(context: BenchContext) -> tuple[dict[str, Any], list[Bar]]:
    context.folder(requests.DATA)  # what is missing is said before anything is measured
    with tempfile.TemporaryDirectory(prefix="lookalike-bench-") as home:
        parts = {
            "requests": (lambda: requests.measure(context, Path(home)), requests.bars()),
            f"{COUNT:,} vectors": (lambda: nearest.measure(context, COUNT, Path(home)), nearest.bars(COUNT)),
            "map": (lambda: map.measure(context), map.bars()),
        }
        return in_parts(context, parts)
