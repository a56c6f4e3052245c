"""Near duplicates in less than N² work: perceptual hashes, looked up by bands, confirmed on thumbnails.

An image's 64 hash bits are the signs of its lowest frequencies. Two hashes that differ in at most 7
bits agree up to one bit in at least one of four bands of 16 bits, so looking up a band's value and
its 16 neighbors finds all of them. Candidates are compared again on thumbnails of 12 × 12 colors.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from PIL import Image

THUMB = 12
DISTANCE = 7  # hash bits; what four bands of 16 bits with one bit flipped are sure to find
ALIKE = 0.985  # correlation of thumbnails (docs/design/data.md)
_FLAT = 2.0  # gray levels: a thumbnail that varies less cannot be told from others
_SIDE = 32
_LEADERS = 16
_CHUNK = 1 << 20
# Where too many hashes resemble each other, the most crowded places are left out: the work stays linear.
_BUDGET = 500  # hashes compared an image and band
_CHECKS = 50  # thumbnails compared an image
_LEAST = 20_000_000

_ONES = np.array([bin(i).count("1") for i in range(1 << 16)], np.uint8)


# The 64 lowest two-dimensional cosines after the mean, as rows over the pixels. Every fourth goes into the same band,
# so that low and high frequencies are spread evenly over them.
_COSINES = [np.cos(np.pi * k * (np.arange(_SIDE) * 2 + 1) / (2 * _SIDE)) for k in range(_SIDE)]
_LOWEST = sorted((u + v, u, v) for u in range(_SIDE) for v in range(_SIDE))[1:65]
_WAVES = np.array([np.outer(_COSINES[u], _COSINES[v]).ravel() for band in range(4) for _, u, v in _LOWEST[band::4]])


def perceptual_hash(pixels: np.ndarray) -> tuple[int, np.ndarray]:
    """Return the perceptual hash (64 bits) and the thumbnail (432 bytes) of an image."""
    small = Image.fromarray(pixels).resize((_SIDE, _SIDE), Image.Resampling.BILINEAR)
    strengths = _WAVES @ np.asarray(small.convert("L"), np.float64).ravel()
    bits = np.packbits(strengths > np.median(strengths)).tobytes()
    thumb = np.asarray(small.resize((THUMB, THUMB), Image.Resampling.BILINEAR))
    return int.from_bytes(bits, "big"), thumb.ravel()


def flat(thumbs: np.ndarray) -> np.ndarray:
    """Return which images have too little contrast to be compared; only equal pixels make those duplicates."""
    out = np.empty(len(thumbs), bool)
    for start in range(0, len(thumbs), 65_536):
        part = thumbs[start : start + 65_536].reshape(-1, THUMB * THUMB, 3)
        out[start : start + len(part)] = part.std(1).max(1) < _FLAT
    return out


def _unit(thumbs: np.ndarray) -> np.ndarray:
    """Thumbnails as centered vectors of length 1, so that a product is a correlation."""
    vectors = thumbs.astype(np.float32)
    vectors -= vectors.mean(1, keepdims=True)
    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
    return vectors / np.maximum(lengths, 1e-6)[:, None]


def alike(thumbs: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return the correlations of pairs of thumbnails."""
    return np.einsum("ij,ij->i", _unit(thumbs[left]), _unit(thumbs[right]))


def near_pairs(
    hashes: np.ndarray, thumbs: np.ndarray, alike_from: float = ALIKE
) -> tuple[list[tuple[int, int, float]], int]:
    """Find near duplicates: pairs whose thumbnails have at least this correlation.

    Returns:
        Pairs (i, j, correlation) that connect every group of near duplicates (not every pair of a group), and the
        number of images that were not searched because too many others have a similar hash.
    """
    hashes = np.asarray(hashes, np.uint64)
    leaders, pairs, unsearched = _same_hash(hashes, thumbs, alike_from)
    crowded = np.zeros(len(leaders), bool)
    checks = 1_000_000 + _CHECKS * len(leaders)
    for i, j in _candidates(hashes[leaders], crowded):
        crowded[i[checks:]] = True
        left, right = leaders[i[:checks]], leaders[j[:checks]]
        checks -= len(left)
        scores = alike(thumbs, left, right)
        for k in np.flatnonzero(scores >= alike_from):
            low, high = sorted((int(left[k]), int(right[k])))
            pairs.append((low, high, float(scores[k])))
    return sorted(pairs), unsearched + int(crowded.sum())


def _same_hash(
    hashes: np.ndarray, thumbs: np.ndarray, alike_from: float
) -> tuple[np.ndarray, list[tuple[int, int, float]], int]:
    """One or a few leaders of every hash, and the others joined to them: linear, however many share a hash."""
    order = np.argsort(hashes, kind="stable")
    starts = np.concatenate([[0], np.flatnonzero(np.diff(hashes[order])) + 1])
    sizes = np.diff(starts, append=len(order))
    leaders = order[starts[sizes == 1]].tolist()
    pairs: list[tuple[int, int, float]] = []
    unsearched = 0
    for start, size in zip(starts[sizes > 1], sizes[sizes > 1], strict=True):
        own: list[int] = []
        vectors: list[np.ndarray] = []
        for first in range(start, start + size, 8192):
            rows = order[first : min(first + 8192, start + size)]
            units = _unit(thumbs[rows])
            tried = 0
            while len(rows) and tried < _LEADERS:
                if tried == len(own):
                    own.append(int(rows[0]))
                    vectors.append(units[0])
                    rows, units = rows[1:], units[1:]
                scores = units @ vectors[tried]
                joined = scores >= alike_from
                pairs += [(own[tried], int(i), float(s)) for i, s in zip(rows[joined], scores[joined], strict=True)]
                rows, units = rows[~joined], units[~joined]
                tried += 1
            unsearched += len(rows)
        leaders += own
    return np.array(leaders, np.int64), pairs, unsearched


def _candidates(hashes: np.ndarray, crowded: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Chunks of index pairs at most DISTANCE bits apart, each pair once; marks in `crowded` what was left out."""
    bands = [((hashes >> np.uint64(16 * b)) & np.uint64(0xFFFF)).astype(np.int32) for b in range(4)]
    budget = max(_BUDGET * len(hashes), _LEAST)
    for band, keys in enumerate(bands):
        order = np.argsort(keys, kind="stable")
        sizes = np.bincount(keys, minlength=1 << 16)
        firsts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        left = budget
        for mask in (0, *(1 << bit for bit in range(16))):
            if mask:  # each such pair has one side where the bit is 0
                sources = np.flatnonzero((keys & mask) == 0)
                first, count = firsts[keys[sources] | mask], sizes[keys[sources] | mask]
            else:
                sources = np.arange(len(keys))
                first = rank + 1
                count = firsts[keys] + sizes[keys] - first
            nonempty = count > 0
            sources, first, count = sources[nonempty], first[nonempty], count[nonempty]
            if count.sum() > left:
                by_size = np.argsort(count, kind="stable")
                fits = by_size[: np.searchsorted(np.cumsum(count[by_size]), left, "right")]
                over = np.ones(len(count), bool)
                over[fits] = False
                crowded[sources[over]] = True
                sources, first, count = sources[fits], first[fits], count[fits]
            left -= int(count.sum())
            for i, places in _expand(sources, first, count):
                j = order[places]
                close = _close(i, j, bands, band)
                yield i[close], j[close]


def _expand(sources: np.ndarray, first: np.ndarray, count: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(source, first … first + count − 1) for every source, a bounded number at a time."""
    ends = np.cumsum(count)
    start = 0
    while start < len(sources):
        done = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, done + _CHUNK, "right")))
        repeats = count[start:stop]
        offsets = np.arange(repeats.sum()) - np.repeat(np.cumsum(repeats) - repeats, repeats)
        yield np.repeat(sources[start:stop], repeats), np.repeat(first[start:stop], repeats) + offsets
        start = stop


def _close(i: np.ndarray, j: np.ndarray, bands: list[np.ndarray], band: int) -> np.ndarray:
    """Which pairs are within DISTANCE and were not yielded by an earlier band."""
    ones = np.stack([_ONES[keys[i] ^ keys[j]] for keys in bands])
    return np.asarray((ones.sum(0, np.uint8) <= DISTANCE) & (ones[:band] > 1).all(0))


def groups(count: int, pairs: list[tuple[int, int, float]] | list[tuple[int, int]]) -> list[list[int]]:
    """Return the connected groups of two or more among `count` rows."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    if not pairs:
        return []
    i, j = np.array([pair[:2] for pair in pairs], np.int64).T
    codes = connected_components(coo_array((np.ones(len(i)), (i, j)), (count, count)), directed=False)[1]
    out: dict[int, list[int]] = {}
    for row in np.unique([i, j]).tolist():
        out.setdefault(codes[row], []).append(row)
    return sorted(out.values())
