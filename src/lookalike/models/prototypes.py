"""Prototypes that a model keeps from pretraining: every image is assigned to the most similar one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from lookalike.models.embedder import Embedder

PREFIX = "prototypes."


class Assignment(NamedTuple):
    """The prototypes of N images.

    Args:
        prototype: ``(N,)`` int64, index of the prototype with the largest score.
        score: ``(N,)``, inner product of the projected features with that prototype.
        margin: ``(N,)``, difference to the second largest score.
    """

    prototype: np.ndarray
    score: np.ndarray
    margin: np.ndarray


class Prototypes(nn.Module):
    """A projection network and unit prototypes: pooled features in, scores out.

    Its tensors are buffers, since they are no longer trained; batch norm is folded into the linear layers.

    Args:
        tensors: ``rows``, the prototypes ``(K, d)``, and ``weight_0``, ``bias_0``, ``weight_1``, … of the layers.

    References:
        Silva and Ramírez Rivera, "Representation Learning via Consistent Assignment of Views over Random Partitions".

    Example:
        >>> prototypes = Prototypes({"rows": torch.eye(3), "weight_0": torch.eye(3), "bias_0": torch.zeros(3)})
        >>> prototypes.assign(np.eye(3, dtype=np.float32)[::-1]).prototype
        array([2, 1, 0])
    """

    rows: Tensor

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        for name, value in tensors.items():
            self.register_buffer(name, value.detach().clone())
        self.layers = sum(name.startswith("weight_") for name in tensors)

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def from_state_dict(cls, tensors: Mapping[str, Tensor]) -> Prototypes | None:
        """The prototypes in a model's state dict, if it has any."""
        own = {name.removeprefix(PREFIX): value for name, value in tensors.items() if name.startswith(PREFIX)}
        return cls(own) if own else None

    def project(self, features: Tensor) -> Tensor:
        """Project pooled features ``(N, C)`` into the space of the prototypes, ``(N, d)``."""
        x = features
        for number in range(self.layers):
            x = nn.functional.linear(x, self.get_buffer(f"weight_{number}"), self.get_buffer(f"bias_{number}"))
            if number + 1 < self.layers:
                x = nn.functional.gelu(x)
        return x

    @torch.inference_mode()
    def assign(self, features: np.ndarray, batch_size: int = 2048) -> Assignment:
        """Assign images to their most similar prototypes.

        Args:
            features: Pooled features ``(N, C)``, not normalized.
            batch_size: Rows computed at a time.

        Returns:
            Prototype, score and margin of every row.
        """
        parts = []
        for start in range(0, len(features), batch_size):
            block = np.array(features[start : start + batch_size], np.float32)
            z = self.project(torch.from_numpy(block).to(self.rows))
            best = (z @ self.rows.t()).topk(min(2, len(self.rows)), dim=1)
            margin = best.values[:, 0] - best.values[:, -1]
            parts.append((best.indices[:, 0], best.values[:, 0], margin))
        if not parts:
            return Assignment(np.empty(0, np.int64), *(np.empty((2, 0), np.float32)))
        return Assignment(*(torch.cat(column).cpu().numpy() for column in zip(*parts, strict=True)))

    def select_used(self, features: np.ndarray, min_images: int = 2) -> Prototypes:
        """Keep only the prototypes that images are assigned to.

        Args:
            features: Pooled features of the images.
            min_images: How many images a prototype needs.

        Returns:
            The same network with fewer prototypes.
        """
        counts = np.bincount(self.assign(features).prototype, minlength=len(self))
        used = torch.from_numpy(np.flatnonzero(counts >= min_images)).to(self.rows.device)
        return Prototypes({**dict(self.named_buffers()), "rows": self.rows[used]})


def embed_and_assign(model: Embedder, features: np.ndarray) -> tuple[np.ndarray, Assignment]:
    """The embeddings and the prototypes of images from their pooled features."""
    assert model.prototypes is not None
    with torch.inference_mode():
        embeddings = model.from_features(torch.from_numpy(features).to(model.device)).float().cpu().numpy()
    return embeddings, model.prototypes.assign(features)


@torch.no_grad()
def fold_projection(layers: nn.Sequential, prototypes: Tensor) -> dict[str, Tensor]:
    """Convert a trained projection network and its prototypes to the tensors of ``Prototypes``.

    Args:
        layers: Linear layers, batch norm (folded into the layer before) and GELU.
        prototypes: ``(K, d)``; they are scaled to unit length.

    Returns:
        The tensors.
    """
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
