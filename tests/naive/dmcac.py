"""DMCAC and the hyperbolic pairwise loss as loops, written from the papers; slow and plain, in float64."""

from __future__ import annotations

import math

import torch


def top_k(view, database, k):
    """Row numbers by similarity, then by number."""
    scores = [float(view @ row) for row in database]
    return sorted(range(len(scores)), key=lambda row: (-scores[row], row))[:k]


def union(lists):
    out = set()
    for result in lists:
        out |= set(result)
    return sorted(out)


def softmax(logits):
    top = max(float(x.detach()) for x in logits)
    powers = [torch.exp(x - top) for x in logits]
    total = sum(powers)
    return [p / total for p in powers]


def jensen_shannon(p, q):
    total = 0.0
    for a, b in zip(p, q, strict=True):
        middle = (a + b) / 2
        total = total + (a * torch.log(a / middle) + b * torch.log(b / middle)) / 2
    return total


def frobenius(views, rows, temperature):
    """Root of the sum of the squared divergences of the lower triangle; 0 without a slope where views agree."""
    laws = [softmax([view @ row / temperature for row in rows]) for view in views]
    squares = torch.zeros((), dtype=views.dtype)
    for i in range(len(laws)):
        for j in range(i):
            squares = squares + jensen_shannon(laws[i], laws[j]) ** 2
    return torch.sqrt(squares) if float(squares.detach()) > 0 else 0.0 * sum(view.sum() for view in views)


def cross_entropy(logits, label):
    return -torch.log(softmax(logits)[label])


def attention(view, rows, heads):
    """Equations 16 to 18: keys and values projected as they are written."""
    query = heads["query"] @ view
    weights = softmax([query @ (heads["key"] @ row) / math.sqrt(len(view)) for row in rows])
    return weights, sum(w * (heads["value"] @ row) for w, row in zip(weights, rows, strict=True))


def terms(views, label, rows, heads, temperature):
    """(frob, ΣCE, ΣCAC) of one query over its rows of the database."""
    frob = frobenius(views, rows, temperature)
    classes = sum(cross_entropy([w @ view for w in heads["classifier"]], label) for view in views)
    mixed = [attention(view, rows, heads)[1] for view in views]
    result = sum(cross_entropy([w @ mix for w in heads["attention_classifier"]], label) for mix in mixed)
    return frob, classes, result


def dmcac(z, labels, database, heads, *, k, temperature, weights=(1.0, 1.0, 1.0)):
    """The mean over the queries, and the three means; `k` None takes the whole database."""
    all_terms = []
    for views, label in zip(z, labels, strict=True):
        if k is None:
            members = range(len(database))
        else:
            members = union([top_k(view.detach(), database.detach(), k) for view in views])
        all_terms.append(terms(views, int(label), [database[m] for m in members], heads, temperature))
    means = [sum(column) / len(all_terms) for column in zip(*all_terms, strict=True)]
    return sum(w * m for w, m in zip(weights, means, strict=True)), means


def database_count(n, share):
    """Images of a class of n that go to the database."""
    return 1 if n == 1 else min(max(math.floor(share * n + 0.5), 1), n - 1)


# ---- the hyperbolic pairwise loss ------------------------------------------------------------------


def to_ball(u, curvature, clip):
    length = u.norm()
    u = u * clip / length if float(length.detach()) > clip else u
    length = u.norm()
    root = math.sqrt(curvature)
    return torch.tanh(root * length) * u / (root * length)


def moebius(x, y, c):
    xy, xx, yy = x @ y, x @ x, y @ y
    above = (1 + 2 * c * xy + c * yy) * x + (1 - c * xx) * y
    return above / (1 + 2 * c * xy + c * c * xx * yy)


def distance(x, y, c):
    return 2 / math.sqrt(c) * torch.atanh(math.sqrt(c) * moebius(-x, y, c).norm())


def pairwise(slots, score, temperature):
    """`slots[j][n]`: image j of class n. Sum over ordered pairs of slots of the mean cross-entropy."""
    total, classes = 0.0, len(slots[0])
    for i in range(len(slots)):
        for j in range(len(slots)):
            if i == j:
                continue
            losses = []
            for n in range(classes):
                logits = [score(slots[i][n], slots[j][m]) / temperature for m in range(classes)]
                logits += [score(slots[i][n], slots[i][m]) / temperature for m in range(classes) if m != n]
                losses.append(cross_entropy(logits, n))
            total = total + sum(losses) / classes
    return total
