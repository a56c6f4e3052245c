"""Fast products with a proven error: they decide almost every comparison, the rest is computed again exactly.

A screen gives s̃ for a score s with |s̃ − s| ≤ slack + rounding·|s̃|. bfloat16 halves the time of a product where the
processor multiplies it natively; float32 is the same thing with a far smaller slack.
"""

from __future__ import annotations

import functools
import time
import warnings
from typing import Any

import numpy as np
import torch

from lookalike.evaluation.arrays import Doubles, Floats, Ints

FORBIDDEN = -np.inf


def float_error(dim: int) -> float:
    """Bound of a float32 dot product's error, relative to the rows' lengths, in whatever order it is summed."""
    return 1.01 * (dim + 2) * 2.0**-24


class Screen:
    """Products of blocks of left rows with blocks of right rows, in float32."""

    rounding = 0.0
    dtype: torch.dtype = torch.float32

    def __init__(self, left: Floats, right: Floats) -> None:
        self.left = self._cast(left)
        self.right = self.left if right is left else self._cast(right)
        own = self._errors(left, self.left)
        other = own if right is left else self._errors(right, self.right)
        self.slack = self._slack(own, other)  # of each left row
        # What a single float32 product may be off by, for each left row, and rounding a score to float32 beside it.
        self.single = float_error(left.shape[1] + 4) * own[0] * other[0].max(initial=0.0)

    def _cast(self, rows: Floats) -> torch.Tensor:
        return torch.from_numpy(rows).to(self.dtype)

    def _errors(self, rows: Floats, cast: torch.Tensor) -> tuple[Doubles, Doubles]:
        """Length of each row, and of what the cast took from it."""
        lengths, lost = np.empty(len(rows)), np.zeros(len(rows))
        for start in range(0, len(rows), 4096):
            part = slice(start, start + 4096)
            block = rows[part].astype(np.float64)
            lengths[part] = np.sqrt(np.einsum("ij,ij->i", block, block))
            if self.dtype != torch.float32:
                block -= cast[part].double().numpy()
                lost[part] = np.sqrt(np.einsum("ij,ij->i", block, block))
        return lengths, lost

    def _slack(self, own: tuple[Doubles, Doubles], other: tuple[Doubles, Doubles]) -> Doubles:
        """|x·y − x̃·ỹ| ≤ |x−x̃||y| + |x̃||y−ỹ| by Cauchy and Schwarz, plus what summing in float32 may lose."""
        (length, lost), (far, gone) = own, other
        most, worst = far.max(initial=0.0), gone.max(initial=0.0)
        sums = 2 * float_error(self.left.shape[1]) * (length + lost) * (most + worst)
        return np.asarray(1.0001 * (lost * most + (length + lost) * worst) + sums + 1e-30)

    def band(self, scores: Doubles, slack: Doubles) -> tuple[Floats, Floats]:
        """(low, high): outside of them s̃ has told whether the true score lies below or above."""
        under, over = scores - slack, scores + slack
        u = self.rounding
        low = np.where(under >= 0, under / (1 + u), under / (1 - u))
        high = np.where(over >= 0, over / (1 - u), over / (1 + u))
        return np.nextafter(low.astype(np.float32), -np.inf), np.nextafter(high.astype(np.float32), np.inf)

    # --- blocks ---

    def block(self, rows: int, columns: int) -> torch.Tensor:
        return torch.empty(rows, columns, dtype=self.dtype)

    def product(self, i: slice, j: slice, out: torch.Tensor) -> torch.Tensor:
        block = out.view(-1)[: (i.stop - i.start) * (j.stop - j.start)].view(i.stop - i.start, j.stop - j.start)
        return torch.mm(self.left[i], self.right[j].T, out=block)

    def keys(self, block: torch.Tensor) -> Any:
        """The block as an array whose order is that of the scores."""
        return block.numpy()

    def floors(self, values: Floats, *, up: bool = False) -> Any:
        """Keys that lie at or below these values, or with `up` at or above them."""
        return values

    def expect(self, *keys: Any) -> None:
        """What keys will be compared with from now on."""

    def values(self, keys: Any) -> Floats:
        """Scores from keys."""
        return np.asarray(keys, dtype=np.float32)


class HalfScreen(Screen):
    """bfloat16: keys are its 16 bits, put in order for negative numbers, which compare faster than floats."""

    rounding = 2.0**-8
    dtype = torch.bfloat16

    def keys(self, block: torch.Tensor) -> Any:
        bits = block.view(torch.int16).numpy()
        if self.signed:
            bits ^= (bits >> 15) & 0x7FFF
        return bits

    def floors(self, values: Floats, *, up: bool = False) -> Any:
        bits = values.view(np.int32)
        ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
        # Cutting 16 bits goes down for positive numbers and up for negative ones; one more never hurts.
        keys = (ordered >> 16).astype(np.int16)
        return np.where(np.isinf(values), keys, keys + np.int16(up) - (keys < 0)).astype(np.int16)

    def expect(self, *keys: Any) -> None:
        self.signed = any(bool((k < 0).any()) for k in keys)

    def values(self, keys: Any) -> Floats:
        bits = keys ^ ((keys >> 15) & 0x7FFF)
        return np.asarray((bits.astype(np.int32) << 16).view(np.float32))

    signed = True  # whether keys below 0 are compared, and have to be put in order


@functools.cache
def half_pays() -> bool:
    """Whether bfloat16 products keep their bound here and are worth it: tried on one small block.

    Either answer gives the same ranks, so the clock may decide.
    """
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((512, 512), dtype=np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    rows[::2] = np.abs(rows[::2])  # sums of one sign are where a poor accumulator would show
    half, full = HalfScreen(rows, rows), Screen(rows, rows)
    everything = slice(0, 512)
    exact = rows.astype(np.float64) @ rows.astype(np.float64).T
    out = half.product(everything, everything, half.block(512, 512)).double().numpy()
    if not (np.abs(out - exact) <= half.slack[:, None] + half.rounding * np.abs(out)).all():
        return False
    return _seconds(half) < 0.75 * _seconds(full)


def _seconds(screen: Screen) -> float:
    best, out, part = np.inf, screen.block(512, 512), slice(0, 512)
    for _ in range(5):
        start = time.perf_counter()
        screen.product(part, part, out)
        best = min(best, time.perf_counter() - start)
    return best


def choose_screen(left: Floats, right: Floats) -> Screen:
    return HalfScreen(left, right) if half_pays() else Screen(left, right)


@functools.cache
def _announce_sparse() -> None:
    """Torch says once that its sparse matrices are young; here they only name the pairs to multiply."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.sparse_csr_tensor(torch.tensor([0, 0]), torch.empty(0, dtype=torch.int64), torch.empty(0), size=(1, 1))


def single_products(left: Floats, right: Floats, row: Ints, column: Ints) -> Floats:
    """float32 products of single pairs, the rows rising; each within `float_error` of the rows' lengths."""
    _announce_sparse()
    start = np.searchsorted(row, np.arange(len(left) + 1))
    wanted = torch.sparse_csr_tensor(
        torch.from_numpy(start),
        torch.from_numpy(column),
        torch.zeros(len(row)),
        size=(len(left), len(right)),
        check_invariants=False,
    )
    found = torch.sparse.sampled_addmm(wanted, torch.from_numpy(left), torch.from_numpy(right).T, beta=0.0)
    return np.asarray(found.values().numpy())
