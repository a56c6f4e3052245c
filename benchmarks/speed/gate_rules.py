"""A label-free gate judged on simulated adaptations: thresholds chosen on one half of them, counted on the other."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.speed import Bar

HARMFUL, HELPFUL, MIN_COUNT = 0.05, 0.70, 60
Row = dict[str, Any]


@dataclass(frozen=True)
class GateRule:
    """A rule with thresholds, and when an adaptation (`gain` of a row) counts as harmful or helpful."""

    grid: dict[str, tuple[float, ...]]
    """The values that are tried of every threshold, from lax to strict."""
    limits: Callable[..., Any]
    rejections: Callable[[Row, Any], list[str]]
    """Why the old model is kept; nothing: the candidate is promoted."""
    margin: float
    usual: Sequence[str]
    """Recipes that are methods, not made to do harm."""
    allowed: float = 0.02
    """The share of the harmful that may pass on the half that chooses: shifts that were not seen may be harder."""
    stricter: int = 0
    """So many steps of the grid beyond what the half asks for, for the same reason."""

    def evaluate(self, chosen_on: Sequence[Row], judged_on: Sequence[Row]) -> tuple[dict[str, Any], list[Bar]]:
        """Choose thresholds on the first, count on the second; the default thresholds are counted beside them."""
        limits = self.choose(chosen_on)
        figures: dict[str, Any] = {
            "chosen": limits.model_dump(),
            "chosen on": self.counted(chosen_on, limits),
            "chosen on, each shift by the others' thresholds": self.without_one(chosen_on),
            "judged on": self.counted(judged_on, limits),
            "judged on, methods alone": self.counted([r for r in judged_on if r["recipe"] in self.usual], limits),
            "judged on, made to harm": self.counted([r for r in judged_on if r["recipe"] not in self.usual], limits),
            "defaults": self.limits().model_dump(),
            "defaults, judged on": self.counted(judged_on, self.limits()),
            "trade-off": undominated([{**t, **self._short(judged_on, self.limits(**t))} for t in self._every()]),
            "by recipe": {
                recipe: self.counted([r for r in judged_on if r["recipe"] == recipe], limits)
                for recipe in sorted({r["recipe"] for r in judged_on})
            },
            "shifts": sorted({f"{r['source']} to {r['target']}" for r in judged_on}),
        }
        found = figures["judged on"]
        bars = [
            Bar("harmful promoted", found["harmful"]["promoted"], HARMFUL, "lower"),
            Bar("helpful promoted", found["helpful"]["promoted"], HELPFUL),
            Bar("harmful adaptations judged", found["harmful"]["count"], MIN_COUNT),
            Bar("helpful adaptations judged", found["helpful"]["count"], MIN_COUNT),
        ]
        return figures, bars

    def choose(self, rows: Sequence[Row]) -> Any:
        """Thresholds that let most helpful ones pass while no more of the harmful do than are allowed; if none do,
        those with the fewest. Among equals the strictest."""
        every = self._every()
        found = [self._short(rows, self.limits(**values)) for values in every]
        safe = [i for i, f in enumerate(found) if f["harmful"] <= self.allowed]
        if not safe:
            fewest = min(f["harmful"] for f in found)
            safe = [i for i, f in enumerate(found) if f["harmful"] == fewest]
        best = max(safe, key=lambda i: (found[i]["helpful"], -found[i]["harmful"], self._strictness(every[i])))
        return self.limits(**{name: self._stricter(name, value) for name, value in every[best].items()})

    def _stricter(self, name: str, value: float) -> float:
        values = self.grid[name]
        return values[min(values.index(value) + self.stricter, len(values) - 1)]

    def without_one(self, rows: Sequence[Row]) -> dict[str, Any]:
        """Every shift judged by thresholds that the others choose: promoted, and how many there are."""
        out = {kind: {"promoted": 0, "count": 0} for kind in ("harmful", "helpful")}
        for shift in sorted({(r["source"], r["target"]) for r in rows}):
            own = [r for r in rows if (r["source"], r["target"]) == shift]
            found = self.counted(own, self.choose([r for r in rows if r not in own]))
            for kind, total in out.items():
                total["promoted"] += round(found[kind]["promoted"] * found[kind]["count"])
                total["count"] += found[kind]["count"]
        return out

    def counted(self, rows: Sequence[Row], limits: Any) -> dict[str, Any]:
        """Of the harmful, the helpful and the rest: how many, and the promoted share with its interval."""
        from lookalike.evaluation.bootstrap import wilson_interval

        out: dict[str, Any] = {}
        for kind, members in self._kinds(rows).items():
            found = (
                wilson_interval(sum(not self.rejections(r, limits) for r in members), len(members)) if members else None
            )
            out[kind] = {
                "count": len(members),
                "promoted": 0.0 if found is None else round(found.value, 4),
                "low": 0.0 if found is None else round(found.low, 4),
                "high": 1.0 if found is None else round(found.high, 4),
            }
        return out

    def by_start(self, rows: Sequence[Row], limits: Any) -> dict[str, Any]:
        """The promoted shares with intervals that draw starts, whose runs do well or badly together. Where none or all
        are promoted there is nothing to draw, and the interval says nothing."""
        from lookalike.evaluation.bootstrap import bootstrap_interval

        return {
            kind: bootstrap_interval(
                [float(not self.rejections(r, limits)) for r in members],
                groups=[f"{r['source']} {r['target']} {r['seed']}" for r in members],
            ).to_json()
            for kind, members in self._kinds(rows).items()
            if members
        }

    def _kinds(self, rows: Sequence[Row]) -> dict[str, list[Row]]:
        return {
            "harmful": [r for r in rows if r["gain"] < -self.margin],
            "helpful": [r for r in rows if r["gain"] > self.margin],
            "neutral": [r for r in rows if abs(r["gain"]) <= self.margin],
        }

    def _short(self, rows: Sequence[Row], limits: Any) -> dict[str, float]:
        found = self.counted(rows, limits)
        return {kind: found[kind]["promoted"] for kind in ("harmful", "helpful")}

    def _every(self) -> list[dict[str, float]]:
        return [dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values())]

    def _strictness(self, values: dict[str, float]) -> float:
        return sum(self.grid[name].index(value) / len(self.grid[name]) for name, value in values.items())


def undominated(rows: Sequence[Row]) -> list[Row]:
    """The best that can be had: no other thresholds let more helpful ones pass with as few harmful ones."""
    out: list[Row] = []
    for row in sorted(rows, key=lambda row: (row["harmful"], -row["helpful"])):
        if not out or row["helpful"] > out[-1]["helpful"]:
            out.append(row)
    return out
