"""A million vectors beside a hundred thousand: how speed, size, opening and building grow.

Building takes the better part of an hour; what is built is kept in the user's folder and opened again by the next run.
"""

from __future__ import annotations

from typing import Any

from benchmarks.speed import Bar, BenchContext, vector_search

SMALL, LARGE = 100_000, 1_000_000


def run(context: BenchContext) -> tuple[dict[str, Any], list[Bar]]:
    from lookalike.core import folders

    home = folders.home() / "jobs" / "search-million"
    figures: dict[str, Any] = {}
    bars: list[Bar] = []
    for count in (SMALL, LARGE):
        folder = home / str(count)
        folder.mkdir(parents=True, exist_ok=True)
        figures[f"{count:,} vectors"], more = vector_search.measure(context, count, folder)
        bars += more
    small, large = figures.values()
    return {**figures, "growth": vector_search.growth(small, large)}, bars
