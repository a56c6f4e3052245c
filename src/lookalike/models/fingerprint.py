"""Telling cheaply whether tensors changed since they were last looked at."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class Snapshot:
    """Which tensors there were, and what of them changes when they are written to.

    torch counts writes to a tensor, but not those through `.data`: the first element of each is
    remembered too. Weak references tell a new tensor from an old one at the same address.
    """

    def __init__(self, words: str, tensors: Sequence[Tensor]) -> None:
        self.words = words
        self.tensors = [weakref.ref(value) for value in tensors]
        self.marks = [(value.data_ptr(), value.shape, value.dtype) for value in tensors]
        self.versions = [_version(value) for value in tensors]
        first = [value.detach().reshape(-1)[0].double() for value in tensors if value.numel()]
        self.first: Any = torch.stack(first).tolist() if first else []

    def same(self, other: Snapshot) -> bool:
        return self.same_tensors(other) and self.versions == other.versions and self.first == other.first

    def same_tensors(self, other: Snapshot) -> bool:
        """The tensors are the same ones, whatever was written to them."""
        return (
            self.words == other.words
            and self.marks == other.marks
            and all(a() is not None and a() is b() for a, b in zip(self.tensors, other.tensors, strict=True))
        )


def _version(value: Tensor) -> int:
    return 0 if value.is_inference() else value._version


def raw_bytes(value: Tensor) -> bytes:
    """A tensor's type, shape and content, to be hashed."""
    flat = value.detach().cpu().contiguous().reshape(-1)
    return f"{value.dtype}{tuple(value.shape)}".encode() + flat.view(torch.uint8).numpy().tobytes()
