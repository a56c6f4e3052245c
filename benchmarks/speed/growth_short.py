"""The first sizes of `growth`, to 10^5 vectors with the graph and 10^6 by scans: curves within a minute or two."""

from __future__ import annotations

from typing import Any

from benchmarks.speed import Bar, BenchContext, growth


def run(context: BenchContext) -> tuple[dict[str, Any], list[Bar]]:
    return growth.measure(context, growth.GRAPH_SIZES[:4], growth.SCAN_SIZES[:4])
