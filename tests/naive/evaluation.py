"""Slow twins of lookalike.evaluation, written as loops in double precision from the definitions."""

from __future__ import annotations

import math


def dot(a, b) -> float:
    return math.fsum(float(x) * float(y) for x, y in zip(a, b, strict=True))


def ranking(rows, query: int, gallery, left_out=()) -> list[int]:
    """Gallery rows by falling score, equal scores in the gallery's order, without what is left out."""
    places = [g for g in range(len(gallery)) if gallery[g] not in left_out]
    return [gallery[g] for g in sorted(places, key=lambda g: (-dot(rows[query], rows[gallery[g]]), g))]


def average_precision(hits: list[bool], limit: int, divisor: int) -> float:
    total, result = 0.0, 0
    for place, hit in enumerate(hits[:limit], start=1):
        if hit:
            result += 1
            total += result / place
    return total / divisor


def retrieval(rows, labels, *, query=None, gallery=None, coarse=None, ids=None, recall_at=(1, 10), top=1000):
    """{row: {measure: value}} of every query with a relevant item, and the list of those without."""
    everyone = list(range(len(rows)))
    queries = everyone if query is None else list(query)
    where = everyone if gallery is None else list(gallery)
    out, skipped = {}, []
    for q in queries:

        def same(g, q=q):
            if isinstance(labels[q], (set, frozenset)):
                return bool(labels[q] & labels[g])
            return labels[q] == labels[g] and labels[q] is not None and labels[q] != -1

        left_out = {q} | ({g for g in where if ids is not None and ids[g] == ids[q] and ids[q] not in (-1, None)})
        ranked = ranking(rows, q, where, left_out)
        hits = [same(g) for g in ranked]
        relevant = sum(hits)
        if not relevant:
            skipped.append(q)
            continue
        values = {f"recall@{k}": float(any(hits[:k])) for k in recall_at}
        values[f"map@{top}"] = average_precision(hits, top, min(relevant, top))
        values["map@r"] = average_precision(hits, relevant, relevant)
        values["r_precision"] = sum(hits[:relevant]) / relevant
        if coarse is not None:
            for k in recall_at:
                values[f"coarse_recall@{k}"] = float(
                    any(coarse[g] == coarse[q] and coarse[q] not in (-1, None) for g in ranked[:k])
                )
        if query is None and gallery is None and ids is None:
            blind = ranking(rows, q, where)[1:]  # the first is dropped, whoever it is
            values[f"map@{top}_authors"] = average_precision([same(g) for g in blind], top, relevant + 1)
        out[q] = values
    return out, skipped


def top_k(queries, gallery, k, exclude=None):
    lists = []
    for number, q in enumerate(queries):
        own = -1 if exclude is None else exclude[number]
        scored = sorted((-dot(q, g), place) for place, g in enumerate(gallery) if place != own)
        lists.append([(-score, place) for score, place in scored[:k]])
    return lists


def error_rates(scores, same, threshold):
    """(false accept rate, false reject rate): a pair is accepted when its score reaches the threshold."""
    accepted = [s >= threshold for s in scores]
    wrong = [a for a, y in zip(accepted, same, strict=True) if not y]
    right = [a for a, y in zip(accepted, same, strict=True) if y]
    return sum(wrong) / len(wrong), sum(not a for a in right) / len(right)


def nmi(first, second) -> float:
    """Mutual information over the arithmetic mean of the entropies."""
    n = len(first)

    def entropy(codes):
        return -sum(c / n * math.log(c / n) for c in (codes.count(v) for v in set(codes)))

    mutual = 0.0
    for a in set(first):
        for b in set(second):
            both = sum(x == a and y == b for x, y in zip(first, second, strict=True))
            if both:
                mutual += both / n * math.log(n * both / (first.count(a) * second.count(b)))
    mean = (entropy(first) + entropy(second)) / 2
    return mutual / mean if mean else 1.0


def weighted_knn(train, labels, test, k, temperature) -> list:
    """The class with the largest sum of exp(score / temperature) over the k nearest; ties to the lower class."""
    answers = []
    for q in test:
        nearest = sorted(range(len(train)), key=lambda i: (-dot(q, train[i]), i))[:k]
        votes: dict = {}
        for i in nearest:
            votes[labels[i]] = votes.get(labels[i], 0.0) + math.exp(dot(q, train[i]) / temperature)
        answers.append(min(votes, key=lambda c: (-votes[c], c)))
    return answers
