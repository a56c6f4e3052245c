"""Placing as plain loops, from the definitions."""

from __future__ import annotations

import math


def neighbors(vectors, row, count):
    scored = [(-float(vectors[row] @ vectors[other]), other) for other in range(len(vectors)) if other != row]
    return [other for _, other in sorted(scored)[:count]]


def directions(vectors):
    """Participation ratio of the covariance, from its eigenvalues."""
    import numpy as np

    values = np.linalg.eigvalsh(np.cov(np.asarray(vectors, np.float64).T))
    return math.log(values.sum() ** 2 / (values**2).sum())


def evidence(vectors, features, kinds, row):
    """What one image tells of itself: {name: value} of those that need no random half."""
    count = len(vectors)
    near = [neighbors(vectors, other, 50) for other in range(count)]
    scores = [float(vectors[a] @ vectors[b]) for a in range(count) for b in range(count) if a != b]
    level = sum(scores) / len(scores)
    spread = math.sqrt(sum((score - level) ** 2 for score in scores) / len(scores))
    own, hit = near[row], near[row][0]
    seen = neighbors(features, row, 50)

    def score(rank):
        return float(vectors[row] @ vectors[own[min(rank, len(own)) - 1]])

    def back(item, ranking):
        return math.log1p(ranking.index(item) if item in ranking else len(ranking))

    def shared(one, two, k):
        return len(set(one[:k]) & set(two[:k])) / k

    def degree(image):
        return math.log1p(sum(image in other[:5] for other in near))

    def shares(image, temperature):
        values = [math.exp(float(vectors[image] @ kind) / temperature) for kind in kinds]
        return [value / sum(values) for value in values]

    def both(temperature):
        return sum(a * b for a, b in zip(shares(row, temperature), shares(hit, temperature), strict=True))

    def profile(image):
        values = [float(vectors[image] @ kind) for kind in kinds]
        centered = [value - sum(values) / len(values) for value in values]
        norm = math.sqrt(sum(value * value for value in centered))
        return [value / norm for value in centered]

    likeliest = [max(range(len(kinds)), key=lambda k: vectors[image] @ kinds[k]) for image in (row, hit)]
    return {
        "first": (score(1) - level) / spread,
        "gap 2": (score(1) - score(2)) / spread,
        "gap 50": (score(1) - score(50)) / spread,
        "mutual": float(near[hit][0] == row),
        "back": back(row, near[hit]),
        "shared 5": shared(own, near[hit], 5),
        "features first": float(seen[0] == hit),
        "features rank": back(hit, seen),
        "features 10": shared(own, seen, 10),
        "hub": degree(hit),
        "own hub": degree(row),
        "classes sharp": both(0.05),
        "classes": both(0.1),
        "same class": float(likeliest[0] == likeliest[1]),
        "directions": directions(vectors),
        "features directions": directions(features),
        "size": math.log(count),
        "profile": sum(a * b for a, b in zip(profile(row), profile(hit), strict=True)),
    }
