"""Swaps."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from lookalike.core.seeds import numpy_rng
from lookalike.shift.fid import ClassFID, Floats, Side

Name = TypeVar("Name", int, str)
Names = tuple[str, ...]
DRAWS = 5  # random removals beside every targeted one


@dataclass(frozen=True)
class Step:
    """One step of the whole sequence, chosen as a split or not."""

    kind: str
    """easier, start, harder or removal."""
    number: int
    """Classes a side exchanged (below 0: easier) or, for a removal, removed since the end of swapping."""
    fid: float
    swapped: tuple[tuple[str, str], ...] = ()
    """What this step exchanged: (out of train, out of test)."""
    removed: Names = ()
    """What this step removed."""
    random: tuple[float, ...] = ()
    """For a removal: the FIDs after random removals of as many classes."""

    @property
    def name(self) -> str:
        return f"R{self.number}" if self.kind == "removal" else str(self.number)


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


def author_removals(
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


STEPS, EASIER_STEPS = 30, 15
HISTORY, EASIER_HISTORY = 5, 30
ROUNDS = 50  # a round exchanges a side's classes divided by this, as the authors do for CUB and Cars
PATIENCE = 5  # rounds without a new maximum after which swapping is over
AT_ONCE = 100  # a removal takes a side's classes divided by this
REMOVED = 1 / 3  # of a side's classes are gone after the last


@dataclass(frozen=True)
class Whole:
    """Steps from the easiest to the last removal, and the sides after each as codes."""

    steps: list[Step]
    states: list[State]
    start: int
    """Place of the default split."""
    end: int
    """Place of the end of swapping, where removal begins."""
    random: list[tuple[Side, Side]]
    settings: dict[str, Any]


def sequence(
    distances: ClassFID,
    names: Sequence[str],
    sides: tuple[Side, Side],
    *,
    removal: str = "pure",
    draws: int = DRAWS,
    seed: int = 0,
) -> Whole:
    """Swap to the easier and to the harder side, then remove from where FID is greatest. `names` are by code."""
    train, test = sides
    means, side = distances.means, len(train)
    per_step = max(1, round(side / ROUNDS))
    rounds = side // per_step
    settings = {"per_step": per_step, "history": HISTORY, "easier_history": EASIER_HISTORY, "patience": PATIENCE}

    def swapped(steps: int, history: int, harder: bool) -> list[State]:
        steps = min(steps, rounds)
        return swaps(means, train, test, per_step=per_step, steps=steps, history=history, harder=harder)

    easier = swapped(EASIER_STEPS, EASIER_HISTORY, False)
    harder = [State(train, test), *swapped(STEPS, HISTORY, True)]
    fids = distances.along([(s.train, s.test) for s in (*easier, *harder)])
    easy, hard = fids[: len(easier)], fids[len(easier) :]
    end = turning(hard, PATIENCE)
    last = harder[end]
    at_once = max(1, round(side / AT_ONCE))
    count = round(side * REMOVED / at_once)
    if removal == "authors":
        removed = author_removals(
            means, last.train, last.test, distances.between, per_step=per_step, steps=count, history=HISTORY
        )
    else:
        removed = removals(means, last.train, last.test, per_step=at_once, steps=count)
    orders = random_orders(last.train, last.test, draws=draws, seed=seed)
    gone = [len(last.train) - len(state.train) for state in removed]
    controls = [(a[k:], b[k:]) for a, b in orders for k in gone]
    fids = distances.along([*((s.train, s.test) for s in removed), *controls])
    beside = np.array(fids[len(removed) :]).reshape(draws, len(removed))

    def step(kind: str, number: int, value: float, state: State, random: tuple[float, ...] = ()) -> Step:
        pairs = tuple((names[a], names[b]) for a, b in state.swapped)
        return Step(kind, number, value, pairs, tuple(names[code] for code in state.removed), random)

    steps = [step("easier", -k * per_step, easy[k - 1], easier[k - 1]) for k in range(len(easier), 0, -1)]
    steps += [step("harder" if k else "start", k * per_step, hard[k], harder[k]) for k in range(len(harder))]
    for k, state in enumerate(removed):
        number = gone[k] if removal == "pure" else (k + 1) * per_step
        steps.append(step("removal", number, fids[k], state, tuple(beside[:, k].tolist())))
    states = [*easier[::-1], *harder, *removed]
    return Whole(steps, states, len(easier), len(easier) + end, orders, settings)


def turning(values: Sequence[float], patience: int) -> int:
    """The place of the maximum, once `patience` further places bring no new one."""
    best = 0
    for place, value in enumerate(values):
        if value > values[best]:
            best = place
        elif place - best >= patience:
            break
    return best


def choice(whole: Whole, count: int) -> list[int]:
    """Places of `count` splits of rising FID: those nearest to equally spaced levels between the easiest and the
    hardest step, always with the start and the end of swapping. The plateau between that and the first removal is
    passed over."""
    fids = [step.fid for step in whole.steps]
    up = [i for i, s in enumerate(whole.steps) if i > whole.start and (i <= whole.end or s.kind == "removal")]
    rising = [whole.start]
    for place in up:
        if fids[place] > fids[rising[-1]]:
            rising.append(place)
    for place in range(whole.start - 1, -1, -1):
        if fids[place] < fids[rising[0]]:
            rising.insert(0, place)
    chosen = list(dict.fromkeys((whole.start, rising[-1], whole.end, rising[0])))[:count]
    levels = np.linspace(fids[rising[0]], fids[rising[-1]], count).tolist()
    for place in chosen:
        levels.remove(min(levels, key=lambda level: abs(level - fids[place])))
    for level in levels:
        free = [place for place in rising if place not in chosen]
        if free:
            chosen.append(min(free, key=lambda place: abs(fids[place] - level)))
    return sorted(chosen)
