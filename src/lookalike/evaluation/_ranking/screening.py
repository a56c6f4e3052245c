"""Fast products with a proven error bound, and the threads they run in.

A screen gives s̃ for a score s with |s̃ − s| ≤ slack + rounding·|s̃|. That decides almost every comparison; the rest is
computed again exactly. bfloat16 halves the time of a product where the processor multiplies it natively; float32 is
the same with a far smaller slack.
"""

from __future__ import annotations

import functools
import timeit
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from lookalike.core.device import threads
from lookalike.evaluation.arrays import Doubles, Floats, Ints

warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
FORBIDDEN = -np.inf
T = TypeVar("T")


def in_threads(function: Callable[[T], None], items: Iterable[T]) -> None:
    """Call a function on every item in a pool of threads, each with products on one core; raises the first error.

    Small products in many threads are faster than one product spread over all cores.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(threads()) as pool:
            for _ in pool.map(function, items):
                pass
    finally:
        torch.set_num_threads(before)


@contextmanager
def numpy_thread_pool() -> Iterator[ThreadPoolExecutor]:
    """A pool with one thread a core for NumPy and SciPy functions, whose products then use one core each."""
    with threadpool_limits(1), ThreadPoolExecutor(threads()) as pool:
        yield pool


def parts(count: int, size: int) -> list[slice]:
    """Divide a range into slices of at most ``size``."""
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def float_error(dim: int) -> float:
    """Error bound of a float32 dot product, relative to the lengths of the vectors, for any order of summation."""
    return 1.01 * (dim + 2) * 2.0**-24


class Screen:
    """Products of blocks of left rows with blocks of right rows, in float32.

    Attributes:
        slack: Absolute error bound of each left row.
        single: Error bound of a single float32 product of each left row, rounding a score to float32 included.
    """

    rounding = 0.0
    dtype: torch.dtype = torch.float32

    def __init__(self, left: Floats, right: Floats) -> None:
        self.left = self._cast(left)
        self.right = self.left if right is left else self._cast(right)
        own = self._errors(left, self.left)
        other = own if right is left else self._errors(right, self.right)
        self.slack = self._slack(own, other)
        self.single = float_error(left.shape[1] + 4) * own[0] * other[0].max(initial=0.0)

    def _cast(self, rows: Floats) -> torch.Tensor:
        return torch.from_numpy(rows).to(self.dtype)

    def _errors(self, rows: Floats, cast: torch.Tensor) -> tuple[Doubles, Doubles]:
        """Length of each row, and of its rounding error by the cast."""
        lengths, lost = np.empty(len(rows)), np.zeros(len(rows))
        for part in parts(len(rows), 4096):
            block = rows[part].astype(np.float64)
            lengths[part] = np.sqrt(np.einsum("ij,ij->i", block, block))
            if self.dtype != torch.float32:
                block -= cast[part].double().numpy()
                lost[part] = np.sqrt(np.einsum("ij,ij->i", block, block))
        return lengths, lost

    def _slack(self, own: tuple[Doubles, Doubles], other: tuple[Doubles, Doubles]) -> Doubles:
        """|x·y − x̃·ỹ| ≤ |x−x̃||y| + |x̃||y−ỹ| by Cauchy–Schwarz, plus the error of summing in float32."""
        length, lost = own
        longest, worst = (values.max(initial=0.0) for values in other)
        sums = 2 * float_error(self.left.shape[1]) * (length + lost) * (longest + worst)
        return np.asarray(1.0001 * (lost * longest + (length + lost) * worst) + sums + 1e-30)

    def band(self, scores: Doubles, slack: Doubles) -> tuple[Floats, Floats]:
        """(low, high): if s̃ is outside, it is certain whether the true score is below or above ``scores``."""
        low, high, u = scores - slack, scores + slack, self.rounding
        low = np.where(low >= 0, low / (1 + u), low / (1 - u))
        high = np.where(high >= 0, high / (1 - u), high / (1 + u))
        return np.nextafter(low.astype(np.float32), -np.inf), np.nextafter(high.astype(np.float32), np.inf)

    def block(self, rows: int, columns: int) -> torch.Tensor:
        return torch.empty(rows, columns, dtype=self.dtype)

    def product(self, i: slice, j: slice, out: torch.Tensor) -> torch.Tensor:
        block = out.view(-1)[: (i.stop - i.start) * (j.stop - j.start)].view(i.stop - i.start, j.stop - j.start)
        return torch.mm(self.left[i], self.right[j].T, out=block)

    def keys(self, block: torch.Tensor) -> Any:
        """The block as an array that sorts like the scores."""
        return block.numpy()

    def floors(self, values: Floats, *, up: bool = False) -> Any:
        """Keys at or below these values, or with ``up`` at or above them."""
        return values

    def expect(self, *keys: Any) -> None:
        """Announce what keys will be compared with from now on."""

    def values(self, keys: Any) -> Floats:
        """Scores from keys."""
        return np.asarray(keys, dtype=np.float32)


class HalfScreen(Screen):
    """A screen in bfloat16. Keys are its 16 bits, reordered for negative numbers: they compare faster than floats."""

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
        # Cutting 16 bits rounds down for positive numbers and up for negative ones; one more never hurts.
        keys = (ordered >> 16).astype(np.int16)
        return np.where(np.isinf(values), keys, keys + np.int16(up) - (keys < 0)).astype(np.int16)

    def expect(self, *keys: Any) -> None:
        self.signed = any(bool((k < 0).any()) for k in keys)

    def values(self, keys: Any) -> Floats:
        bits = keys ^ ((keys >> 15) & 0x7FFF)
        return np.asarray((bits.astype(np.int32) << 16).view(np.float32))

    signed = True  # whether keys below 0 are compared, and must be reordered


@functools.cache
def bfloat16_is_faster() -> bool:
    """Whether bfloat16 products keep their bound on this processor and are faster, tried on one small block.

    Both give the same ranks, so measured time may decide.
    """
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((512, 512), dtype=np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    rows[::2] = np.abs(rows[::2])  # a poor accumulator would show in sums of one sign
    half, full = HalfScreen(rows, rows), Screen(rows, rows)
    everything = slice(0, 512)
    exact = rows.astype(np.float64) @ rows.astype(np.float64).T
    out = half.product(everything, everything, half.block(512, 512)).double().numpy()
    if not (np.abs(out - exact) <= half.slack[:, None] + half.rounding * np.abs(out)).all():
        return False
    times = [
        min(timeit.repeat(functools.partial(s.product, everything, everything, s.block(512, 512)), number=1, repeat=5))
        for s in (half, full)
    ]
    return times[0] < 0.75 * times[1]


def choose_screen(left: Floats, right: Floats) -> Screen:
    """Make the faster screen of this processor."""
    return HalfScreen(left, right) if bfloat16_is_faster() else Screen(left, right)


def single_products(left: Floats, right: Floats, row: Ints, column: Ints) -> Floats:
    """Compute float32 products of single pairs, sorted by row; each within :func:`float_error`."""
    start = np.searchsorted(row, np.arange(len(left) + 1))
    entries = torch.from_numpy(start), torch.from_numpy(column), torch.zeros(len(row))
    pairs = torch.sparse_csr_tensor(*entries, size=(len(left), len(right)), check_invariants=False)
    products = torch.sparse.sampled_addmm(pairs, torch.from_numpy(left), torch.from_numpy(right).T, beta=0.0)
    return np.asarray(products.values().numpy())
