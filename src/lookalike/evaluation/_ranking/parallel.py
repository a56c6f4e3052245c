"""Threads that each keep to one core: small products in many threads beat one product spread over all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch
from threadpoolctl import threadpool_limits

from lookalike.core.device import threads

T = TypeVar("T")


def in_threads(function: Callable[[T], None], items: Iterable[T]) -> None:
    """Call a function on every item, as many at a time as there are threads; the first error is raised."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(threads()) as pool:
            for _ in pool.map(function, items):
                pass
    finally:
        torch.set_num_threads(before)


@contextmanager
def crew() -> Iterator[ThreadPoolExecutor]:
    """A thread a core, for functions of NumPy and SciPy: their products take one core each meanwhile."""
    with threadpool_limits(1), ThreadPoolExecutor(threads()) as pool:
        yield pool


def parts(count: int, size: int) -> list[slice]:
    """Slices of at most `size` that cover `count` things."""
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]
