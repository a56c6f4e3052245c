"""Prototypes that a model brings along from pretraining: every image has one that it lies nearest to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from lookalike.models.embedder import Embedder

PREFIX = "prototypes."


class Assigned(NamedTuple):
    prototype: np.ndarray
    """int64: the row of `Prototypes.rows` with the largest score."""
    score: np.ndarray
    """⟨z, ĉ⟩ with it."""
    margin: np.ndarray
    """How much that is above the second best."""


class Prototypes(nn.Module):
    """Pooled features → a small network → scores with unit rows.

    Buffers, not parameters: they are looked at and never trained on. Batch-norm is folded into the layers.
    """

    rows: Tensor

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        """`rows` (K, d) and the layers' `weight_0`, `bias_0`, `weight_1` …"""
        super().__init__()
        for name, value in tensors.items():
            self.register_buffer(name, value.detach().clone())
        self.layers = sum(name.startswith("weight_") for name in tensors)

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def among(cls, tensors: Mapping[str, Tensor]) -> Prototypes | None:
        """Out of a model's state, if it has any."""
        own = {name.removeprefix(PREFIX): value for name, value in tensors.items() if name.startswith(PREFIX)}
        return cls(own) if own else None

    def project(self, features: Tensor) -> Tensor:
        x = features
        for number in range(self.layers):
            x = nn.functional.linear(x, self.get_buffer(f"weight_{number}"), self.get_buffer(f"bias_{number}"))
            if number + 1 < self.layers:
                x = nn.functional.gelu(x)
        return x

    @torch.inference_mode()
    def assign(self, features: np.ndarray, size: int = 2048) -> Assigned:
        """The prototype of every row of un-normalized pooled features; among all K, without any blocks."""
        parts = []
        for start in range(0, len(features), size):
            z = self.project(torch.from_numpy(np.array(features[start : start + size], np.float32)).to(self.rows))
            best = (z @ self.rows.t()).topk(min(2, len(self.rows)), dim=1)
            gap = best.values[:, 0] - best.values[:, -1]
            parts.append((best.indices[:, 0], best.values[:, 0], gap))
        if not parts:
            return Assigned(np.empty(0, np.int64), np.empty(0, np.float32), np.empty(0, np.float32))
        return Assigned(*(torch.cat(column).cpu().numpy() for column in zip(*parts, strict=True)))

    def only(self, kept: np.ndarray) -> Prototypes:
        """The same with some of the rows."""
        state = dict(self.named_buffers())
        return Prototypes({**state, "rows": self.rows[torch.from_numpy(kept).to(self.rows.device)]})

    def in_use(self, features: np.ndarray, least: int = 2) -> Prototypes:
        """Those that at least so many of the images lie nearest to; one that nothing chooses tells nothing."""
        counts = np.bincount(self.assign(features).prototype, minlength=len(self))
        return self.only(np.flatnonzero(counts >= least))


def embed_and_assign(model: Embedder, features: np.ndarray) -> tuple[np.ndarray, Assigned]:
    """The embeddings, and the prototypes, of images whose pooled features are known."""
    assert model.prototypes is not None
    with torch.inference_mode():
        rows = model.from_features(torch.from_numpy(features).to(model.device)).float().cpu().numpy()
    return rows, model.prototypes.assign(features)


@torch.no_grad()
def folded(layers: nn.Sequential, prototypes: Tensor) -> dict[str, Tensor]:
    """A network of linear layers, batch-norm and GELU as what `Prototypes` takes, the rows brought to length one."""
    out: dict[str, Tensor] = {"rows": nn.functional.normalize(prototypes.detach(), dim=1)}
    number = -1
    for layer in layers:
        if isinstance(layer, nn.Linear):
            number += 1
            out[f"weight_{number}"], out[f"bias_{number}"] = layer.weight.clone(), layer.bias.clone()
        elif isinstance(layer, nn.BatchNorm1d) and layer.running_var is not None and layer.running_mean is not None:
            scale = layer.weight * torch.rsqrt(layer.running_var + layer.eps)
            out[f"weight_{number}"] *= scale[:, None]
            out[f"bias_{number}"] = (out[f"bias_{number}"] - layer.running_mean) * scale + layer.bias
    return out
