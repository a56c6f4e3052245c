"""A number's place on an axis, and the round numbers beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lookalike.core.report_blocks import number


@dataclass(frozen=True)
class Scale:
    """From values to per cent of the drawing's width; drawings are fluid, so there are no pixels in them."""

    low: float
    high: float
    ticks: tuple[float, ...]
    digits: int

    @classmethod
    def cover(cls, values: Sequence[float], *, ticks: int = 5, tight: bool = False) -> Scale:
        """An axis that shows all values; `tight` ends at the values, else it ends at round numbers."""
        low, high = (min(values), max(values)) if values else (0.0, 1.0)
        if high - low <= 1e-12 * max(abs(low), abs(high), 1e-300):
            room = abs(low) * 0.1 or 0.5
            low, high = low - room, high + room
        step = _step((high - low) / ticks)
        if not tight:
            low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        places = tuple(i * step for i in range(first, last + 1))
        power = math.floor(math.log10(step) + 1e-9)
        digits = max(0, -power + (0 if math.isclose(step, round(step / 10.0**power) * 10.0**power) else 1))
        return cls(low, high, places, min(digits, 8))

    def at(self, value: float) -> float:
        """Where a value lies, 0 to 100."""
        return 100 * (value - self.low) / (self.high - self.low)

    def label(self, tick: float) -> str:
        return number(tick, self.digits)


def padded(values: Sequence[float], share: float = 0.06) -> list[float]:
    """The ends of values with some air around them; an end at 0 stays there."""
    if not values:
        return [0.0, 1.0]
    low, high = min(values), max(values)
    room = (high - low) * share
    return [low - room if low else low, high + room if high else high]


def _step(raw: float) -> float:
    power = 10.0 ** math.floor(math.log10(raw))
    return next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= raw * 0.999)


def pct(value: float) -> str:
    return f"{round(value, 2):g}%"


def thin(count: int, keep: int) -> list[int]:
    """At most `keep` positions spread evenly over `count`, the first and the last among them."""
    if count <= keep:
        return list(range(count))
    return sorted({round(i * (count - 1) / (keep - 1)) for i in range(keep)})


def envelope(y: Sequence[float], keep: int) -> list[int]:
    """At most about `keep` positions of a curve with its peaks kept: the lowest and highest of each stretch."""
    if len(y) <= keep:
        return list(range(len(y)))
    stretch = math.ceil(len(y) / (keep // 2))
    places = {0, len(y) - 1}
    for start in range(0, len(y), stretch):
        window = range(start, min(start + stretch, len(y)))
        places |= {min(window, key=y.__getitem__), max(window, key=y.__getitem__)}
    return sorted(places)
