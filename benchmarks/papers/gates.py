"""Gates of claims: whether a small run can test a claim at all.

A gate reads the stored figures of a claim and returns the reasons why they cannot test it; none lets the verdict stand.
So a gate also judges results that were stored before it existed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

Figures = Mapping[str, Any]
Gate = Callable[[Figures], list[str]]
FLAT = 0.25
"""A learning curve has flattened if its last part brings at most this fraction of all that was learned."""


def all_of(*gates: Gate) -> Gate:
    """Every gate must let the verdict stand."""
    return lambda figures: [reason for gate in gates for reason in gate(figures)]


def always(figures: Figures) -> list[str]:
    """No gate: for claims that any run can test, as what a method does within one step."""
    return []


def learned(
    value: str = "recall@1",
    *starts: str,
    rows: Callable[[Mapping[str, Any]], bool] = lambda row: True,
    least: float = 1.0,
) -> Gate:
    """The arms ended above where they started.

    Args:
        value: Column of the result.
        starts: Columns that it must exceed, as step 0 and the frozen model.
        rows: Which rows of the table of runs are meant; claims about collapse leave out the arms that should collapse.
        least: Multiple of the start that must be reached.
    """

    def gate(figures: Figures) -> list[str]:
        chosen = [row for row in figures.get("runs", []) if rows(row)]
        if not chosen:
            return ["no run was stored with the verdict"]
        times = "" if least == 1 else f"{least:g} × "
        return [
            f"{_count(below, chosen)} end below {times}{start} ({min(below):.2f} at worst)"
            for start in starts
            if (below := [row[value] for row in chosen if row[value] <= least * row[start]])
        ]

    return gate


def flattened(curve: str = "curve", rows: Callable[[Mapping[str, Any]], bool] = lambda row: True) -> Gate:
    """The learning curves have flattened: the last part of the steps brought little of what was learned.

    A curve needs a point between its start and its end.
    """

    def gate(figures: Figures) -> list[str]:
        chosen = [row for row in figures.get("runs", []) if rows(row)]
        curves = [row[curve] for row in chosen if len(row.get(curve, ())) > 2]
        unknown = chosen[len(curves) :]
        rising = [late(values) for values in curves if late(values) > FLAT]
        part = f"up to {max(rising, default=0):.0%} of the gain in the last part"
        return [
            *([f"{_count(rising, chosen)} are still learning: {part}"] if rising else []),
            *([f"{_count(unknown, chosen)} were stored without a learning curve: run them again"] if unknown else []),
        ]

    return gate


def late(curve: Iterable[float]) -> float:
    """Fraction of the whole gain of a curve that its last part brought."""
    values = list(curve)
    gain = values[-1] - values[0]
    return (values[-1] - values[-2]) / gain if gain > 0 else 0.0


def _count(part: list[Any], whole: list[Any]) -> str:
    return f"{len(part)} of {len(whole)} arms"
