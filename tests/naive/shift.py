"""Slow twins of the shift curve's parts, as plain loops."""

from __future__ import annotations

import math

import numpy as np
from scipy.linalg import sqrtm


def fid(x, y):
    """With SciPy's matrix root, as a single process would."""
    gap = x.mean(0) - y.mean(0)
    a, b = np.cov(x, rowvar=False), np.cov(y, rowvar=False)
    root = np.trace(sqrtm(np.atleast_2d(a) @ np.atleast_2d(b))).real
    return float(gap @ gap + np.trace(np.atleast_2d(a)) + np.trace(np.atleast_2d(b)) - 2 * root)


def swap_sequence(means, train, test, per_step, steps, history, harder):
    """The states after every round; `means` by class, sides as lists of classes."""
    train, test = list(train), list(test)
    taken = {"train": [], "test": []}
    out = []
    for _ in range(steps):
        middle = {}
        for name, side in (("train", train), ("test", test)):
            middle[name] = sum(means[c] for c in side) / len(side)
        scores = {"train": [], "test": []}
        for name, other, side in (("train", "test", train), ("test", "train", test)):
            for place, c in enumerate(side):
                far = math.dist(means[c], middle[other])
                near = math.dist(means[c], middle[name])
                score = far - near
                scores[name].append((score if harder else -score, c, place))
            scores[name].sort()
        for k in range(per_step):
            chosen = {}
            for name in ("train", "test"):
                recent = taken[name][max(len(taken[name]) - history, 0) :]
                for _, _, place in scores[name][k:]:
                    if place not in recent:
                        chosen[name] = place
                        taken[name].append(place)
                        break
            a, b = chosen["train"], chosen["test"]
            train[a], test[b] = test[b], train[a]
        out.append((tuple(train), tuple(test)))
    return out


def area(fids, values):
    """AGS: the area under the values over FID, stretched to 0 … 1."""
    total = 0.0
    for i in range(len(fids) - 1):
        total += (fids[i + 1] - fids[i]) / (fids[-1] - fids[0]) * (values[i] + values[i + 1]) / 2
    return total


def structure(x, labels):
    """The structural measures that are defined by pairs or by a spectrum."""
    classes = sorted(set(labels))

    def cosine_distance(a, b):
        return 1 - float(a @ b) / (math.sqrt(a @ a) * math.sqrt(b @ b))

    within, align, pairs, near = [], 0.0, 0, 0.0
    for c in classes:
        own = [i for i in range(len(x)) if labels[i] == c]
        result = [cosine_distance(x[i], x[j]) for i in own for j in own if i != j]
        if result:
            within.append(sum(result) / len(result))
        for i in own:
            for j in own:
                if i != j:
                    align += float(((x[i] - x[j]) ** 2).sum())
                    pairs += 1
    centers = [sum(x[i] for i in range(len(x)) if labels[i] == c) / list(labels).count(c) for c in classes]
    between = [cosine_distance(a, b) for i, a in enumerate(centers) for j, b in enumerate(centers) if i != j]
    for i in range(len(x)):
        for j in range(len(x)):
            if i != j:
                near += math.exp(-2 * float(((x[i] - x[j]) ** 2).sum()))
    intra, inter = sum(within) / len(within), sum(between) / len(between)
    values = np.sqrt(np.maximum(np.linalg.eigvalsh(x.T @ x), 0))
    shares = values / values.sum()
    return {
        "within": intra,
        "between": inter,
        "density": intra / inter,
        "uniformity": math.log(near / (len(x) * (len(x) - 1))),
        "alignment": align / pairs,
        "spectral_decay": sum(math.log(1 / len(shares) / s) for s in shares) / len(shares),
        "spectral_decay_reversed": sum(s * math.log(s * len(shares)) for s in shares),
    }


def author_removals(means, train, test, fid, per_step, steps, history):
    """The published removal, position by position: the history is one list that nothing clears.

    Returns the sides at the start of every step, as the authors record them, and after the last.
    """
    train, test = list(train), list(test)
    taken = [], []
    out = [(tuple(train), tuple(test))]
    for _ in range(steps):
        centers = means[train].mean(0), means[test].mean(0)
        old = list(train), list(test)
        current = fid(tuple(train), tuple(test))
        orders, picks = [], ([], [])
        for side, own, other in ((train, *centers), (test, *centers[::-1])):
            scores = [np.linalg.norm(means[c] - other) - np.linalg.norm(means[c] - own) for c in side]
            orders.append(sorted(range(len(side)), key=lambda i, scores=scores, side=side: (scores[i], side[i])))
        for k in range(per_step):
            for s in (0, 1):
                chosen = next(i for i in orders[s][k:] if i not in taken[s][-history:])
                taken[s].append(chosen)
                picks[s].append(chosen)
            a, b = picks[0][-1], picks[1][-1]
            train[a], test[b] = test[b], train[a]
        if fid(tuple(train), tuple(test)) >= current:
            train, test = ([c for i, c in enumerate(side) if i not in picks[s]] for s, side in enumerate(old))
        out.append((tuple(train), tuple(test)))
    return out
