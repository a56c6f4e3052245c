"""How many prototypes, in blocks of how many: from the images and the batch, unless told."""

from __future__ import annotations

import math
from typing import NamedTuple

from lookalike.core.errors import LookalikeError
from lookalike.losses.carp import check_blocks

SMALLEST, LARGEST, MOST = 16, 512, 65_536


class Blocks(NamedTuple):
    prototypes: int
    """K."""
    block: int
    """N_B."""
    why: str

    def __str__(self) -> str:
        return f"{self.prototypes:,} prototypes in blocks of {self.block:,} ({self.why})"


def choose_blocks(images: int, batch: int, prototypes: int | None = None, block: int | None = None) -> Blocks:
    """The paper has 512 for a batch of 256 and 65,536 for 1.3 million images.

    N_B is the largest power of two up to twice the batch, within 16 … 512; K a power of two near a quarter of the
    images, at most 65,536 and at least four blocks, for which the block shrinks first (docs/decisions/0183).
    """
    if prototypes is not None and block is not None:
        check_blocks(prototypes, block)
        return Blocks(prototypes, block, "as asked for")
    wide = min(max(_below(2 * batch), SMALLEST), LARGEST)
    if prototypes is not None:
        check_blocks(prototypes, 2)
        size = _divisor(prototypes, wide)
        return Blocks(prototypes, size, f"for a batch of {batch:,}")
    near = min(2 ** round(math.log2(max(images / 4, 1))), MOST)
    if block is None:
        block = max(min(wide, near // 4), SMALLEST)
        if block > images // 2:  # a handful of images
            block = max(_below(images // 2), 2)
    many = max(near - near % block, 4 * block)
    if many > images:
        many = max(images - images % block, block)
    check_blocks(many, block)
    return Blocks(many, block, f"for {images:,} images and a batch of {batch:,}")


def _below(count: int) -> int:
    """The largest power of two that is not above."""
    return 1 << (max(count, 1).bit_length() - 1)


def _divisor(prototypes: int, most: int) -> int:
    """The largest block up to `most` that divides, a power of two if one does."""
    powers = [2**n for n in range(1, 17) if 2**n <= most and prototypes % 2**n == 0]
    if powers and powers[-1] >= SMALLEST:
        return powers[-1]
    found = max(size for size in range(1, min(most, prototypes) + 1) if prototypes % size == 0)
    if found == 1:
        raise LookalikeError(f"{prototypes} prototypes cannot be divided into blocks; use a number with divisors.")
    return found
