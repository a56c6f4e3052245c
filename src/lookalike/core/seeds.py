"""Random streams: all randomness comes from a seed and a name, which give a stream of their own."""

from __future__ import annotations

import hashlib
import random
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch


def derive(seed: int, *names: object) -> int:
    """Return a 63-bit seed for one purpose, so that a new consumer never changes the numbers of another."""
    text = "\x1f".join([str(seed), *map(str, names)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def numpy_rng(seed: int, *names: object) -> np.random.Generator:
    """Return the NumPy generator of a seed and names.

    Example:
        >>> int(numpy_rng(0, "order", 1).integers(100)) == int(numpy_rng(0, "order", 1).integers(100))
        True
    """
    return np.random.Generator(np.random.PCG64(derive(seed, *names)))


def sample_rows(rows: np.ndarray, count: int, seed: int, *names: object) -> np.ndarray:
    """Return the rows themselves, or a sorted random sample of `count` if there are more."""
    return rows if len(rows) <= count else np.sort(numpy_rng(seed, *names).choice(rows, count, replace=False))


def torch_rng(seed: int, *names: object) -> torch.Generator:
    """Return the torch generator of a seed and names."""
    import torch

    generator = torch.Generator()
    generator.manual_seed(derive(seed, *names))
    return generator


def seed_everything(seed: int) -> None:
    """Seed the global streams that libraries draw from; called once, when a job starts."""
    import torch

    random.seed(derive(seed, "random"))
    np.random.seed(derive(seed, "numpy") % 2**32)
    torch.manual_seed(derive(seed, "torch"))


def global_state() -> dict[str, Any]:
    """Return the states of the global streams, for a checkpoint."""
    import torch

    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "random": [version, list(words), gauss],
        "numpy": [str(kind), torch.from_numpy(np.array(keys).astype(np.int64)), position, has_gauss, cached],
        "torch": torch.get_rng_state(),
    }


def set_global_state(state: dict[str, Any]) -> None:
    """Restore the states of the global streams from a checkpoint."""
    import torch

    version, words, gauss = state["random"]
    random.setstate((version, tuple(words), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
