"""Naive twins of adaptation with retrieval: plain loops over Python numbers, as the specification words them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

Vector = Sequence[float]


def unit(v: Vector) -> list[float]:
    length = math.sqrt(sum(x * x for x in v))
    return [x / length for x in v]


def dot(a: Vector, b: Vector) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def softmax(z: Vector) -> list[float]:
    top = max(z)
    e = [math.exp(x - top) for x in z]
    return [x / sum(e) for x in e]


def argmax(p: Vector) -> int:
    return max(range(len(p)), key=lambda c: (p[c], -c))


class Slot:
    def __init__(self, row: Vector, id_: int, *, logits: Vector | None = None, guess: int = -1) -> None:
        self.row, self.id, self.logits, self.guess = list(row), id_, logits, guess

    @property
    def pool(self) -> bool:
        return self.logits is None


class Bank:
    """A Python deque for the target, and one of `pool` slots for the pool."""

    def __init__(self, size: int, pool: int = 0) -> None:
        self.target: deque[Slot] = deque(maxlen=size - pool)
        self.pool: deque[Slot] = deque(maxlen=pool)

    @property
    def slots(self) -> list[Slot]:
        return [*self.target, *self.pool]

    def push(self, slots: Sequence[Slot]) -> None:
        for slot in slots:
            (self.pool if slot.pool else self.target).append(slot)

    def aggregated(self, id_: int, *, of_logits: bool = True) -> list[float]:
        own = [s.logits for s in self.slots if not s.pool and s.id == id_]
        rows: list[Any] = own if of_logits else [softmax(z) for z in own if z is not None]
        mean = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
        return softmax(mean) if of_logits else mean

    def label(self, id_: int) -> int:
        return argmax(self.aggregated(id_))


def vote(
    weak: Vector,
    own: int,
    bank: Bank,
    logits: Vector,
    *,
    refine: str = "knn",
    k: int = 10,
    dedupe: bool = True,
    self_vote: bool = False,
    of_logits: bool = True,
    aggregate: bool = True,
) -> list[float]:
    plain = softmax(logits)
    if refine == "none":
        return plain
    if refine == "self":
        held = any(not s.pool and s.id == own for s in bank.slots)
        return bank.aggregated(own, of_logits=of_logits) if held else plain
    voters: list[tuple[float, Slot]] = []
    for slot in bank.slots:
        if not slot.pool and (self_vote or slot.id != own):
            voters.append((dot(weak, slot.row), slot))
    voters.sort(key=lambda pair: -pair[0])
    if dedupe:
        seen: set[int] = set()
        voters = [(s, slot) for s, slot in voters if not (slot.id in seen or seen.add(slot.id))]
    if not voters:
        return plain

    def said(slot: Slot) -> list[float]:
        if aggregate:
            return bank.aggregated(slot.id, of_logits=of_logits)
        assert slot.logits is not None
        return softmax(slot.logits)

    if refine == "comatch":
        weights = softmax([s / 0.1 for s, _ in voters])
        mixed = [0.0] * len(plain)
        for w, (_, slot) in zip(weights, voters, strict=True):
            mixed = [m + w * p for m, p in zip(mixed, said(slot), strict=True)]
        return [0.9 * p + 0.1 * m for p, m in zip(plain, mixed, strict=True)]
    chosen = [said(slot) for _, slot in voters[:k]]
    return [sum(column) / len(chosen) for column in zip(*chosen, strict=True)]


def negatives(
    bank: Sequence[Slot],
    labels: dict[int, int],
    own: int,
    label: int,
    near: Sequence[int],
    *,
    pool_set: str = "own",
    by_class: bool = True,
    pseudo: bool = False,
    barred: Sequence[int] = (),
) -> list[Slot]:
    out = []
    for slot in bank:
        if slot.id == own:
            continue
        if not slot.pool:
            if not (by_class and labels[slot.id] == label):
                out.append(slot)
            continue
        if slot.id in barred or (pseudo and slot.guess == label):
            continue
        mine = slot.id in near
        if (pool_set == "own" and mine) or pool_set == "all" or (pool_set in ("others", "positive") and not mine):
            out.append(slot)
    return out


def contrastive(
    q: Vector, key: Vector, against: Sequence[Slot], *, tau: float = 0.07, more: Sequence[Slot] = ()
) -> float:
    """`more` are further positives; every positive stays in the one denominator."""
    positives = [dot(q, key) / tau, *(dot(q, slot.row) / tau for slot in more)]
    total = sum(math.exp(s) for s in positives) + sum(math.exp(dot(q, slot.row) / tau) for slot in against)
    return sum(math.log(total) - s for s in positives) / len(positives)


def diversity(logits: Sequence[Vector]) -> float:
    rows = [softmax(z) for z in logits]
    mean = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
    return sum(p * math.log(p + 1e-8) for p in mean)


def entropy(logits: Sequence[Vector]) -> float:
    return sum(-sum(p * math.log(p) for p in softmax(z)) for z in logits) / len(logits)


def information(logits: Sequence[Vector]) -> float:
    rows = [softmax(z) for z in logits]
    mean = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
    own = sum(-sum(p * math.log(p + 1e-5) for p in row) for row in rows) / len(rows)
    return own + sum(p * math.log(p + 1e-5) for p in mean)


def confusion(logits: Sequence[Vector], temperature: float) -> float:
    rows = [softmax([x / temperature for x in z]) for z in logits]
    weights = [1 + math.exp(sum(p * math.log(p + 1e-5) for p in row)) for row in rows]
    weights = [w * len(rows) / sum(weights) for w in weights]
    classes = len(rows[0])
    pairs = [
        [sum(w * r[a] * r[b] for w, r in zip(weights, rows, strict=True)) for b in range(classes)]
        for a in range(classes)
    ]
    return sum(pairs[a][b] / sum(pairs[a]) for a in range(classes) for b in range(classes) if a != b) / classes


def shot_labels(features: Sequence[Vector], logits: Sequence[Vector]) -> list[int]:
    rows = [unit([*f, 1.0]) for f in features]
    classes = len(logits[0])
    present = {argmax(z) for z in logits}
    weights = [softmax(z) for z in logits]
    labels: list[int] = []
    for _ in range(2):
        centers = []
        for c in range(classes):
            mass = 1e-8 + sum(w[c] for w in weights)
            centers.append(
                [sum(w[c] * r[d] for w, r in zip(weights, rows, strict=True)) / mass for d in range(len(rows[0]))]
            )
        labels = [max(sorted(present), key=lambda c: (dot(r, unit(centers[c])), -c)) for r in rows]
        weights = [[float(c == label) for c in range(classes)] for label in labels]
    return labels


def adacontrast(
    q: Vector, key: Vector, own: int, label: int, queue: Sequence[tuple[Vector, int, int]], tau: float
) -> float:
    """AdaContrast's contrast of one image; the queue holds (key, label, id), and no entry is negative to its own."""
    total = sum(math.exp(dot(q, row) / tau) for row, theirs, id_ in queue if theirs != label and id_ != own)
    positive = math.exp(dot(q, key) / tau)
    return -math.log(positive / (positive + total))
