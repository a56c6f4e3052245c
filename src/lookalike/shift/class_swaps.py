"""Which classes change sides, and in which order: swapping, then removal.

A class is represented by its mean feature, a side by the unweighted mean of its classes; FID is only measured along
the way. Classes are numbered in the order of their names, so that ties are broken by name. Sides are lists, because
the history of swaps holds positions in them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from lookalike.core.progress import Progress
from lookalike.core.seeds import numpy_rng
from lookalike.shift.fid import ClassFID, Floats, Side

Name = TypeVar("Name", int, str)
Names = tuple[str, ...]
DRAWS = 5  # random removals beside every targeted one
SWAP_STEPS, EASIER_STEPS = 30, 15
HISTORY, EASIER_HISTORY = 5, 30
ROUNDS = 50  # a step swaps 1/50 of a side's classes, as the authors do for CUB and Cars
PATIENCE = 5  # steps without a new maximum after which swapping ends
REMOVALS = 100  # a step removes 1/100 of a side's classes
REMOVED = 1 / 3  # fraction of a side's classes that is gone after the last removal


@dataclass(frozen=True)
class Step:
    """One step of the whole sequence, whether or not it becomes a split.

    Args:
        kind: ``easier``, ``start``, ``harder`` or ``removal``.
        number: Classes per side swapped since the start (negative: easier) or removed since the end of swapping.
        fid: FID between the sides after the step.
        swapped: Classes swapped by this step: (out of train, out of test).
        removed: Classes removed by this step.
        random: For a removal: FIDs after random removals of the same number of classes.
    """

    kind: str
    number: int
    fid: float
    swapped: tuple[tuple[str, str], ...] = ()
    removed: Names = ()
    random: tuple[float, ...] = ()

    @property
    def name(self) -> str:
        return f"R{self.number}" if self.kind == "removal" else str(self.number)


@dataclass(frozen=True)
class Sides:
    """Class codes of both sides after a step, and what the step changed.

    Args:
        train: Training classes.
        test: Test classes.
        swapped: Pairs (was in train, was in test) that the step exchanged.
        removed: Classes that the step removed.
    """

    train: Side
    test: Side
    swapped: tuple[tuple[int, int], ...] = ()
    removed: tuple[int, ...] = ()


@dataclass(frozen=True)
class SwapSequence:
    """Steps from the easiest to the last removal.

    Args:
        steps: The steps with their FIDs.
        sides: Class codes after each step.
        start: Index of the default split.
        end: Index of the end of swapping, where removal begins.
        random: Orders of random removal, one pair (train, test) per draw.
        settings: Constants of the sequence, stored with the splits.
    """

    steps: list[Step]
    sides: list[Sides]
    start: int
    end: int
    random: list[tuple[Side, Side]]
    settings: dict[str, Any]


def separation(means: Floats, train: Sequence[int], test: Sequence[int]) -> tuple[Floats, Floats]:
    """How much farther each class lies from the other side's mean than from its own side's mean."""
    own, other = means[list(train)], means[list(test)]
    to_own, to_other = (np.linalg.norm(means - center, axis=1) for center in (own.mean(0), other.mean(0)))
    apart: Floats = np.asarray(to_other - to_own, np.float64)
    return apart[list(train)], -apart[list(test)]


def _pick(scores: Floats, side: Sequence[int], count: int, recent: deque[int], harder: bool) -> list[int]:
    """The first ``count`` positions of a side by score and name, skipping recent ones.

    The k-th pick starts at the k-th position of the order, as in the authors' code.
    """
    order = sorted(range(len(side)), key=lambda i: (scores[i] if harder else -scores[i], side[i]))
    out: list[int] = []
    for k in range(count):
        out.append(next(i for i in order[k:] if i not in recent and i not in out))
        recent.append(out[-1])
    return out


def swaps(
    means: Floats, train: Side, test: Side, *, per_step: int, steps: int, history: int, harder: bool = True
) -> list[Sides]:
    """Exchange classes between the sides, step by step.

    Each side gives up the classes closest to the other (``harder``) or farthest from it. The last ``history`` positions
    may not be swapped again, so that no class goes straight back.
    """
    sides = list(train), list(test)
    length = min(history, len(train) - per_step)
    recent: tuple[deque[int], deque[int]] = (deque(maxlen=length), deque(maxlen=length))
    return [_exchange(means, sides, recent, per_step, harder) for _ in range(steps)]


def _exchange(
    means: Floats, sides: tuple[list[int], list[int]], recent: tuple[deque[int], deque[int]], count: int, harder: bool
) -> Sides:
    """Exchange classes in place; the scores are computed once per step."""
    scores = separation(means, *sides)
    picks = [_pick(scores[i], sides[i], count, recent[i], harder) for i in (0, 1)]
    pairs = []
    for a, b in zip(*picks, strict=True):
        pairs.append((sides[0][a], sides[1][b]))
        sides[0][a], sides[1][b] = sides[1][b], sides[0][a]
    return Sides(tuple(sides[0]), tuple(sides[1]), swapped=tuple(pairs))


def removals(means: Floats, train: Side, test: Side, *, per_step: int, steps: int) -> list[Sides]:
    """Remove, step by step, the classes of each side that are closest to the other side."""
    out = []
    for _ in range(steps):
        removed: list[int] = []
        for scores, side in zip(separation(means, train, test), (train, test), strict=True):
            removed += [side[i] for i in _pick(scores, side, per_step, deque(maxlen=0), True)]
        train, test = _without(train, removed), _without(test, removed)
        out.append(Sides(train, test, removed=tuple(removed)))
    return out


def _without(side: Sequence[int], removed: Sequence[int]) -> Side:
    return tuple(code for code in side if code not in removed)


def author_removals(
    means: Floats,
    train: Side,
    test: Side,
    fid: Callable[[Side, Side], float],
    *,
    per_step: int,
    steps: int,
    history: int,
) -> list[Sides]:
    """The published rule: try a swap; where FID does not fall, undo it and remove these classes instead.

    As in the authors' code, the history keeps its positions after a removal, though other classes then stand there.
    """
    sides = list(train), list(test)
    recent: tuple[deque[int], deque[int]] = (deque(maxlen=history), deque(maxlen=history))
    current, out = fid(train, test), []
    for _ in range(steps):
        if len(sides[0]) <= per_step + max(history, 1):
            break
        before = tuple(sides[0]), tuple(sides[1])
        tried = _exchange(means, sides, recent, per_step, True)
        value = fid(tried.train, tried.test)
        if value < current:
            current = value
            out.append(tried)
            continue
        removed = [code for pair in tried.swapped for code in pair]
        left = Sides(_without(before[0], removed), _without(before[1], removed), removed=tuple(removed))
        sides[0][:], sides[1][:] = left.train, left.test
        out.append(left)
        current = fid(left.train, left.test)
    return out


def random_orders(
    train: tuple[Name, ...], test: tuple[Name, ...], *, draws: int, seed: int
) -> list[tuple[tuple[Name, ...], tuple[Name, ...]]]:
    """Random orders in which the classes of each side are removed, one pair of orders per draw."""
    out = []
    for draw in range(draws):
        orders = [numpy_rng(seed, "removal", draw, i).permutation(sorted(side)) for i, side in enumerate((train, test))]
        out.append((tuple(orders[0].tolist()), tuple(orders[1].tolist())))
    return out


def removal_steps(size: int) -> tuple[int, int]:
    """Classes of a side that a step removes, and the number of such steps, for sides of `size` classes."""
    per_step = max(1, round(size / REMOVALS))
    return per_step, round(size * REMOVED / per_step)


def swap_states(size: int) -> int:
    """Number of FIDs of a whole sequence, for sides of `size` classes."""
    swaps_ = size // max(1, round(size / ROUNDS))
    return 1 + min(EASIER_STEPS, swaps_) + min(SWAP_STEPS, swaps_) + (1 + DRAWS) * removal_steps(size)[1]


def swap_sequence(
    class_fid: ClassFID,
    names: Sequence[str],
    start: tuple[Side, Side],
    *,
    removal: str = "pure",
    draws: int = DRAWS,
    seed: int = 0,
    easier: bool = True,
    progress: bool = False,
) -> SwapSequence:
    """Swap towards easier and harder sides, then remove classes from where FID is greatest.

    Args:
        class_fid: Features by class.
        names: Class names by code.
        start: Train and test classes of the default split.
        removal: ``"pure"``, or ``"authors"`` for their conditional rule (:func:`author_removals`).
        draws: Number of random removals beside every targeted one.
        seed: Seed of the random removals.
        easier: Also swap towards easier sides, which the authors do for CUB alone.
        progress: Show progress.

    Returns:
        All steps with their FIDs.
    """
    train, test = start
    means, size = class_fid.means, len(train)
    per_step = max(1, round(size / ROUNDS))
    settings = {"per_step": per_step, "history": HISTORY, "easier_history": EASIER_HISTORY, "patience": PATIENCE}

    def swapped(steps: int, history: int, harder: bool) -> list[Sides]:
        steps = min(steps, size // per_step)
        return swaps(means, train, test, per_step=per_step, steps=steps, history=history, harder=harder)

    easy_sides = swapped(EASIER_STEPS, EASIER_HISTORY, False) if easier else []
    harder = [Sides(train, test), *swapped(SWAP_STEPS, HISTORY, True)]
    states = [(s.train, s.test) for s in (*easy_sides, *harder)]
    fids = class_fid.along(states, "FID along the swaps", progress=progress)
    easy, hard = fids[: len(easy_sides)], fids[len(easy_sides) :]
    end = plateau(hard, PATIENCE)
    last = harder[end]
    per_removal, count = removal_steps(size)
    if removal == "authors":
        with Progress("Removals by the authors' rule", shown=progress) as bar:

            def between(train: Side, test: Side) -> float:
                bar.advance()
                return class_fid.between(train, test)

            removed = author_removals(
                means, last.train, last.test, between, per_step=per_step, steps=count, history=HISTORY
            )
    else:
        removed = removals(means, last.train, last.test, per_step=per_removal, steps=count)
    orders = random_orders(last.train, last.test, draws=draws, seed=seed)
    gone = [len(last.train) - len(sides.train) for sides in removed]
    controls = [(a[k:], b[k:]) for a, b in orders for k in gone]
    after_removals = [*((s.train, s.test) for s in removed), *controls]
    fids = class_fid.along(after_removals, "FID of removals, targeted and random", progress=progress)
    random_fids = np.array(fids[len(removed) :]).reshape(draws, len(removed))

    def step(kind: str, number: int, fid: float, sides: Sides, random: tuple[float, ...] = ()) -> Step:
        pairs = tuple((names[a], names[b]) for a, b in sides.swapped)
        return Step(kind, number, fid, pairs, tuple(names[code] for code in sides.removed), random)

    steps = [step("easier", -k * per_step, easy[k - 1], easy_sides[k - 1]) for k in range(len(easy_sides), 0, -1)]
    steps += [step("harder" if k else "start", k * per_step, hard[k], harder[k]) for k in range(len(harder))]
    for k, sides in enumerate(removed):
        number = gone[k] if removal == "pure" else (k + 1) * per_step
        steps.append(step("removal", number, fids[k], sides, tuple(random_fids[:, k].tolist())))
    first = len(easy_sides)
    return SwapSequence(steps, [*easy_sides[::-1], *harder, *removed], first, first + end, orders, settings)


def plateau(values: Sequence[float], patience: int) -> int:
    """Index of the maximum, once ``patience`` further values bring no new one."""
    best = 0
    for i, value in enumerate(values):
        if value > values[best]:
            best = i
        elif i - best >= patience:
            break
    return best


def choose_steps(sequence: SwapSequence, count: int) -> list[int]:
    """Choose the steps that become splits: of rising FID, about equally spaced.

    The start and the end of swapping are always chosen; the plateau between the end of swapping and the first removal
    is skipped.
    """
    fids = [step.fid for step in sequence.steps]
    start, end = sequence.start, sequence.end
    rising = [start]
    for i, step in enumerate(sequence.steps):
        if i > start and (i <= end or step.kind == "removal") and fids[i] > fids[rising[-1]]:
            rising.append(i)
    for i in range(start - 1, -1, -1):
        if fids[i] < fids[rising[0]]:
            rising.insert(0, i)
    chosen = list(dict.fromkeys((start, rising[-1], end, rising[0])))[:count]
    levels = np.linspace(fids[rising[0]], fids[rising[-1]], count).tolist()
    for i in chosen:
        levels.remove(min(levels, key=lambda level: abs(level - fids[i])))
    for level in levels:
        free = [i for i in rising if i not in chosen]
        if free:
            chosen.append(min(free, key=lambda i: abs(fids[i] - level)))
    return sorted(chosen)
