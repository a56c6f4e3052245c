"""The whole sequence of swaps and removals with its FIDs, and which of its steps become splits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lookalike.shift import ordering
from lookalike.shift.distances import ClassDistances
from lookalike.shift.ordering import Side, State
from lookalike.shift.splitset import DRAWS, Step

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
    distances: ClassDistances,
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
        return ordering.swaps(means, train, test, per_step=per_step, steps=steps, history=history, harder=harder)

    easier = swapped(EASIER_STEPS, EASIER_HISTORY, False)
    harder = [State(train, test), *swapped(STEPS, HISTORY, True)]
    fids = distances.along([(s.train, s.test) for s in (*easier, *harder)])
    easy, hard = fids[: len(easier)], fids[len(easier) :]
    end = turning(hard, PATIENCE)
    last = harder[end]
    at_once = max(1, round(side / AT_ONCE))
    count = round(side * REMOVED / at_once)
    if removal == "authors":
        removed = ordering.authors_removals(
            means, last.train, last.test, distances.one, per_step=per_step, steps=count, history=HISTORY
        )
    else:
        removed = ordering.removals(means, last.train, last.test, per_step=at_once, steps=count)
    orders = ordering.random_orders(last.train, last.test, draws=draws, seed=seed)
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
