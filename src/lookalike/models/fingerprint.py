"""Fingerprints of models: detecting cheaply whether tensors changed since they were last hashed."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class Snapshot:
    """The state of a set of tensors and a text on what else decides the result, compared without reading contents.

    torch counts writes to a tensor, except those through ``.data``: the first element of each tensor is stored too.
    Weak references distinguish a new tensor from an old one at the same address.

    Example:
        >>> x = torch.zeros(3)
        >>> before = Snapshot("x", [x])
        >>> before.same(Snapshot("x", [x])), before.same(Snapshot("x", [x.add_(1)]))
        (True, False)
    """

    def __init__(self, description: str, tensors: Sequence[Tensor]) -> None:
        self.description = description
        self.tensors = [weakref.ref(value) for value in tensors]
        self.layouts = [(value.data_ptr(), value.shape, value.dtype) for value in tensors]
        self.versions = [0 if value.is_inference() else value._version for value in tensors]
        first = [value.detach().reshape(-1)[0].double() for value in tensors if value.numel()]
        self.first_elements: Any = torch.stack(first).tolist() if first else []

    def same(self, other: Snapshot) -> bool:
        """Whether neither the tensors nor their contents changed."""
        unwritten = self.versions == other.versions and self.first_elements == other.first_elements
        return unwritten and self.same_tensors(other)

    def same_tensors(self, other: Snapshot) -> bool:
        """Whether the tensors are the same objects, whatever was written to them."""
        return (
            self.description == other.description
            and self.layouts == other.layouts
            and all(a() is not None and a() is b() for a, b in zip(self.tensors, other.tensors, strict=True))
        )


def tensor_bytes(value: Tensor) -> bytes:
    """A tensor's type, shape and contents as bytes, for hashing."""
    flat = value.detach().cpu().contiguous().reshape(-1)
    return f"{value.dtype}{tuple(value.shape)}".encode() + flat.view(torch.uint8).numpy().tobytes()
