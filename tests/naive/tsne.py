"""t-SNE's gradient as plain loops, from its definition."""

from __future__ import annotations


def affinities(graph: list[list[int]]) -> list[list[float]]:
    n, k = len(graph), len(graph[0])
    p = [[0.0] * n for _ in range(n)]
    for i in range(n):
        for j in graph[i]:
            p[i][j] += 1 / (2 * n * k)
            p[j][i] += 1 / (2 * n * k)
    return p


def forces(p: list[list[float]], y: list[list[float]]) -> tuple[list[list[float]], list[list[float]]]:
    """What attracts, Σ p q (y_i − y_j), and what repels, Σ q² (y_i − y_j) / Z."""
    n = len(y)
    q = [[1 / (1 + (y[i][0] - y[j][0]) ** 2 + (y[i][1] - y[j][1]) ** 2) for j in range(n)] for i in range(n)]
    total = sum(q[i][j] for i in range(n) for j in range(n) if i != j)
    pull, push = [[0.0, 0.0] for _ in range(n)], [[0.0, 0.0] for _ in range(n)]
    for i in range(n):
        for j in range(n):
            for axis in (0, 1):
                pull[i][axis] += p[i][j] * q[i][j] * (y[i][axis] - y[j][axis])
                push[i][axis] += q[i][j] ** 2 * (y[i][axis] - y[j][axis]) / total
    return pull, push
