"""Search: nearest vectors against faiss, pictures over HTTP and into an index against `encode`, and the map.

A million vectors are `search-million`, a run of its own.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from lookalike.benches import Bar, BenchContext, map, nearest, requests  # noqa: A004 (a benchmark's name)

COUNT = 100_000
LAYOUT, FRAME = 180, 50


def run(context: BenchContext) -> tuple[dict[str, Any], list[Bar]]:
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="lookalike-bench-") as home:
        figures["requests"], bars = requests.measure(context, Path(home))
        figures[f"{COUNT:,} vectors"], more = nearest.measure(context, COUNT, Path(home))
    figures["map"] = drawn = map.figures(context)
    return figures, [
        *more,
        *bars,
        Bar("map: seconds to lay out 100,000 points", drawn["layout_seconds"], LAYOUT, "lower"),
        Bar("map: median ms a frame while panning", drawn["frame_ms"], FRAME, "lower"),
    ]
