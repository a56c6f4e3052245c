"""CARP by loops over numbers, as the paper and its spec define it; and the paper's pseudocode (B.2) in torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

Rows = Sequence[Sequence[float]]


def softmax(values: Sequence[float]) -> list[float]:
    most = max(values)
    powers = [math.exp(v - most) for v in values]
    return [p / sum(powers) for p in powers]


def blocks(row: Sequence[float], permutation: Sequence[int], size: int) -> list[list[float]]:
    ordered = [row[k] for k in permutation]
    return [softmax(ordered[start : start + size]) for start in range(0, len(row), size)]


def terms(
    student: Sequence[Rows],
    teacher: Sequence[Rows],
    permutation: Sequence[int],
    size: int,
    *,
    pairs: str = "mean",
    over: str = "both",
) -> tuple[float, float]:
    """(consistency, balance) of views of rows of logits."""
    s = [[blocks(row, permutation, size) for row in view] for view in student]
    t = [[blocks(row, permutation, size) for row in view] for view in teacher]
    count, parts = len(s[0]), len(s[0][0])
    chosen = [(v, w) for v in range(len(s)) for w in range(len(t)) if v != w]
    total = 0.0
    for v, w in chosen:
        for i in range(count):
            for j in range(parts):
                total -= math.log(sum(a * b for a, b in zip(s[v][i][j], t[w][i][j], strict=True)))
    consistency = total / (count * parts * (len(chosen) if pairs == "mean" else 1))
    rows = [row for view in (s + t if over == "both" else s) for row in view]
    balance = 0.0
    for j in range(parts):
        mean = [sum(row[j][k] for row in rows) / len(rows) for k in range(size)]
        balance += math.log(size) + sum(p * math.log(p) for p in mean if p > 0)
    return consistency, balance / parts


def information(student: Sequence[Rows], permutation: Sequence[int], size: int) -> float:
    """Mean over blocks of H(mean) − mean H, over all student rows."""
    rows = [blocks(row, permutation, size) for view in student for row in view]

    def entropy(p: Sequence[float]) -> float:
        return -sum(x * math.log(x) for x in p if x > 0)

    parts, total = len(rows[0]), 0.0
    for j in range(parts):
        mean = [sum(row[j][k] for row in rows) / len(rows) for k in range(size)]
        total += entropy(mean) - sum(entropy(row[j]) for row in rows) / len(rows)
    return total / parts


def pseudocode(
    s1: torch.Tensor, s2: torch.Tensor, t1: torch.Tensor, t2: torch.Tensor, columns: torch.Tensor, size: int
) -> torch.Tensor:
    """Appendix B.2 line by line: columns of each view picked, stacked, softmax, both terms, the constant log K."""
    count = s1.shape[1] // size
    parts = [x[:, columns].reshape(len(x), count, size).softmax(-1) for x in (s1, s2, t1, t2)]
    a, b, c, d = parts
    consistency = -torch.log((a * d).sum(-1)).mean() - torch.log((b * c).sum(-1)).mean()
    mean = torch.cat(parts).mean(0)
    divergence = (mean * mean.log()).sum(-1).mean() + math.log(s1.shape[1])
    return consistency + divergence
