"""Slow twins of the search for near duplicates: every pair looked at."""

from __future__ import annotations

import math

import numpy as np


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    xs, ys = [float(v) for v in a], [float(v) for v in b]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    top = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    norm = math.sqrt(sum((x - mean_x) ** 2 for x in xs) * sum((y - mean_y) ** 2 for y in ys))
    return top / norm if norm else 0.0


def near_pairs(hashes: np.ndarray, thumbs: np.ndarray, distance: int, least: float) -> set[tuple[int, int]]:
    out = set()
    for i in range(len(hashes)):
        for j in range(i + 1, len(hashes)):
            bits = bin(int(hashes[i]) ^ int(hashes[j])).count("1")
            if bits <= distance and correlation(thumbs[i], thumbs[j]) >= least:
                out.add((i, j))
    return out


def cosine_hash(gray: list[list[float]]) -> int:
    """The hash by its definition, from a square of gray levels."""
    side = len(gray)
    lowest = sorted((u + v, u, v) for u in range(side) for v in range(side))[1:65]
    strengths = []
    for _, u, v in lowest:
        total = 0.0
        for y in range(side):
            for x in range(side):
                wave = math.cos(math.pi * u * (2 * y + 1) / (2 * side)) * math.cos(
                    math.pi * v * (2 * x + 1) / (2 * side)
                )
                total += gray[y][x] * wave
        strengths.append(total)
    middle = sorted(strengths)
    median = (middle[31] + middle[32]) / 2
    bits = [strengths[4 * place + band] > median for band in range(4) for place in range(16)]
    return int("".join("1" if bit else "0" for bit in bits), 2)


def groups(count: int, pairs: set[tuple[int, int]]) -> list[list[int]]:
    label = list(range(count))
    changed = True
    while changed:
        changed = False
        for i, j in pairs:
            low = min(label[i], label[j])
            if label[i] != low or label[j] != low:
                label[i] = label[j] = low
                changed = True
    together: dict[int, list[int]] = {}
    for row, name in enumerate(label):
        together.setdefault(name, []).append(row)
    return sorted(rows for rows in together.values() if len(rows) > 1)
