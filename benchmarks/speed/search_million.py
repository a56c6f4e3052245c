"""A million vectors in the local store: building, memory, and the times of single queries.

What is built is kept in the user's folder and opened again by the next run.
"""

from __future__ import annotations

from typing import Any

from benchmarks.speed import Bar, BenchContext, vector_search

COUNT = 1_000_000


def run(context: BenchContext) -> tuple[dict[str, Any], list[Bar]]:
    from lookalike.core import folders

    folder = folders.home() / "jobs" / "search-million"
    folder.mkdir(parents=True, exist_ok=True)
    figures, bars = vector_search.measure(context, COUNT, folder, peer=False)
    return {f"{COUNT:,} vectors": figures}, bars
