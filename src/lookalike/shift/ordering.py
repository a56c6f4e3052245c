"""Which classes change sides, and in which order: swapping, then removal. FID has no say in it.

A class is its mean feature, a side the unweighted mean of its classes. Classes are numbers in the order of their
names, so that ties are broken by name; sides are lists, because the history of swaps holds places in them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from lookalike.core.seeds import numpy_rng
from lookalike.shift.fid import Floats

Side = tuple[int, ...]
Name = TypeVar("Name", int, str)


@dataclass(frozen=True)
class State:
    """The sides after some steps."""

    train: Side
    test: Side
    swapped: tuple[tuple[int, int], ...] = ()
    """(was in train, was in test): what this step exchanged."""
    removed: tuple[int, ...] = ()
    """What this step took out."""


def leanings(means: Floats, train: Sequence[int], test: Sequence[int]) -> tuple[Floats, Floats]:
    """For each class how much farther it lies from the other side's mean than from its own: small ones fit there."""
    own, other = means[list(train)], means[list(test)]
    center, opposite = own.mean(0), other.mean(0)

    def away(rows: Floats, point: Floats) -> Floats:
        distances: Floats = np.sqrt(((rows - point) ** 2).sum(1))
        return distances

    return away(own, opposite) - away(own, center), away(other, center) - away(other, opposite)


def _places(scores: Floats, side: Sequence[int], count: int, recent: deque[int], harder: bool) -> list[int]:
    """The `count` first places of a side by score and name, none of them among the recent ones.

    The k-th pick searches from the k-th place of the order on, as the authors' does.
    """
    order = sorted(range(len(side)), key=lambda i: (scores[i] if harder else -scores[i], side[i]))
    out: list[int] = []
    for k in range(count):
        out.append(next(i for i in order[k:] if i not in recent and i not in out))
        recent.append(out[-1])
    return out


def swaps(
    means: Floats, train: Side, test: Side, *, per_step: int, steps: int, history: int, harder: bool = True
) -> list[State]:
    """The states after each of `steps` rounds of exchanging `per_step` classes.

    Harder: each side gives up the classes that look most like the other side's. The history stops a class from
    being swapped straight back.
    """
    sides = list(train), list(test)
    room = min(history, len(train) - per_step)
    recent: tuple[deque[int], deque[int]] = (deque(maxlen=room), deque(maxlen=room))
    return [_exchange(means, sides, recent, per_step, harder) for _ in range(steps)]


def _exchange(
    means: Floats, sides: tuple[list[int], list[int]], recent: tuple[deque[int], deque[int]], count: int, harder: bool
) -> State:
    """Exchange the classes in place; the scores are not computed anew within a round."""
    scores = leanings(means, *sides)
    places = [_places(scores[i], sides[i], count, recent[i], harder) for i in (0, 1)]
    pairs = []
    for here, there in zip(*places, strict=True):
        pairs.append((sides[0][here], sides[1][there]))
        sides[0][here], sides[1][there] = sides[1][there], sides[0][here]
    return State(tuple(sides[0]), tuple(sides[1]), swapped=tuple(pairs))


def removals(means: Floats, train: Side, test: Side, *, per_step: int, steps: int) -> list[State]:
    """`per_step` classes a side and step go: again those that look most like the other side."""
    sides = list(train), list(test)
    out = []
    for _ in range(steps):
        scores = leanings(means, *sides)
        gone: list[int] = []
        for own, side in zip(scores, sides, strict=True):
            places = _places(own, side, per_step, deque(maxlen=0), True)
            gone += [side[place] for place in places]
        for side in sides:
            side[:] = [name for name in side if name not in gone]
        out.append(State(tuple(sides[0]), tuple(sides[1]), removed=tuple(gone)))
    return out


def authors_removals(
    means: Floats,
    train: Side,
    test: Side,
    fid: Callable[[Side, Side], float],
    *,
    per_step: int,
    steps: int,
    history: int,
) -> list[State]:
    """The published rule: try an exchange; where FID does not fall, undo it and remove these classes instead."""
    sides = list(train), list(test)
    recent: tuple[deque[int], deque[int]] = (deque(maxlen=history), deque(maxlen=history))
    current, out = fid(train, test), []
    for _ in range(steps):
        if len(sides[0]) <= per_step + max(history, 1):
            break
        before = State(tuple(sides[0]), tuple(sides[1]))
        tried = _exchange(means, sides, recent, per_step, True)
        value = fid(tried.train, tried.test)
        if value < current:
            current = value
            out.append(tried)
            continue
        gone = [name for pair in tried.swapped for name in pair]
        for side, old in zip(sides, (before.train, before.test), strict=True):
            side[:] = [name for name in old if name not in gone]
        for places in recent:  # the places have moved
            places.clear()
        out.append(State(tuple(sides[0]), tuple(sides[1]), removed=tuple(gone)))
        current = fid(tuple(sides[0]), tuple(sides[1]))
    return out


def random_orders(
    train: tuple[Name, ...], test: tuple[Name, ...], *, draws: int, seed: int
) -> list[tuple[tuple[Name, ...], tuple[Name, ...]]]:
    """In which order random removals take the classes of each side, a pair of orders a draw."""
    out = []
    for draw in range(draws):
        orders = [numpy_rng(seed, "removal", draw, i).permutation(sorted(side)) for i, side in enumerate((train, test))]
        out.append((tuple(orders[0].tolist()), tuple(orders[1].tolist())))
    return out
