"""Placing as plain loops, from the definitions."""

from __future__ import annotations

import math


def cv_plus(centres, residuals, level):
    """⌊α(n+1)⌋-th smallest of centre − |r| and ⌈(1−α)(n+1)⌉-th smallest of centre + |r|."""
    count = len(residuals)
    rank = math.ceil(level * (count + 1))
    if rank > count:
        return -math.inf, math.inf
    lows = sorted(c - abs(r) for c, r in zip(centres, residuals, strict=True))
    highs = sorted(c + abs(r) for c, r in zip(centres, residuals, strict=True))
    return lows[count + 1 - rank - 1], highs[rank - 1]


def neighbours(vectors, row, count):
    scored = [(-float(vectors[row] @ vectors[other]), other) for other in range(len(vectors)) if other != row]
    return [other for _, other in sorted(scored)[:count]]


def mutual(vectors):
    first = [neighbours(vectors, row, 1)[0] for row in range(len(vectors))]
    return sum(first[first[row]] == row for row in range(len(vectors))) / len(vectors)


def reciprocal(vectors, count):
    lists = [set(neighbours(vectors, row, count)) for row in range(len(vectors))]
    pairs = [(a, b) for a in range(len(lists)) for b in lists[a]]
    return sum(a in lists[b] for a, b in pairs) / len(pairs)


def triangles(vectors, count):
    lists = [neighbours(vectors, row, count) for row in range(len(vectors))]
    closed = sum(c in lists[a] for a in range(len(lists)) for b in lists[a] for c in lists[b])
    return closed / (len(lists) * count * count)


def agreement(vectors, features, count):
    shares = []
    for row in range(len(vectors)):
        one, two = set(neighbours(vectors, row, count)), set(neighbours(features, row, count))
        shares.append(len(one & two) / count)
    return sum(shares) / len(shares)


def recall(vectors, labels):
    hits, asked = 0, 0
    for row in range(len(vectors)):
        if sum(label == labels[row] for label in labels) > 1:
            asked += 1
            hits += labels[neighbours(vectors, row, 1)[0]] == labels[row]
    return hits / asked, asked
