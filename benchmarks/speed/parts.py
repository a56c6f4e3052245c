"""A benchmark of several parts: each is kept as it is finished, and one that fails does not take the others along."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.speed import Bar, BenchContext
from lookalike.core.errors import LookalikeError

Measured = tuple[dict[str, Any], list[Bar]]
Part = tuple[Callable[[], Measured], list[Bar]]
"""What measures it, and its bars as they stand while nothing is measured."""


def in_parts(context: BenchContext, parts: Mapping[str, Part]) -> Measured:
    """Figures and bars of all parts; of a failed one the reason, and bars that do not hold."""
    figures: dict[str, Any] = {}
    bars: list[Bar] = []
    for name, (measure, unmeasured) in parts.items():
        try:
            figures[name], found = measure()
        except Exception as error:
            told = str(error) if isinstance(error, LookalikeError) else traceback.format_exc()
            context.say(f"{name} failed: {told}")
            figures[name], found = {"failed": f"{type(error).__name__}: {error}"}, unmeasured
        bars += found
        context.keep(figures, bars)
    return figures, bars
