"""The method behind `train(loss=…)`: a loss object of the user's own, with or without a miner."""

from __future__ import annotations

import inspect
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lookalike.core.errors import LookalikeError
from lookalike.losses.pml import PMLLoss
from lookalike.methods.base import Batch, Context, Method


class OwnLoss(Method):
    """A loss object on one view of each image: a callable of embeddings and labels.

    A module is trained and stored with the run. The result of `miner`, called alike, is the loss's third argument.
    """

    name = "own_loss"
    default_overrides: ClassVar = {"optimizer": {"lr": 3e-4}}

    def __init__(self, settings: Any, context: Context, loss: Any = None, miner: Any = None) -> None:
        super().__init__(settings, context)
        if loss is None:
            raise LookalikeError("The run was started with a loss object: pass it as `loss=` in Python.")
        self.criterion, self.miner = loss, miner
        forward = loss.forward if isinstance(loss, nn.Module) else loss
        self.takes_ids = "ids" in inspect.signature(forward).parameters

    def loss(self, embeddings: dict[str, Tensor], batch: Batch) -> Tensor:
        z, labels = embeddings["z"], batch.labels
        mined = () if self.miner is None else (self.miner(z, labels),)
        value = self.criterion(z, labels, *mined, **({"ids": batch.ids} if self.takes_ids else {}))
        if not isinstance(value, Tensor) or value.ndim:
            what = f"tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise LookalikeError(f"The loss returns a {what}; it must be a tensor with one number.")
        if torch.is_grad_enabled() and not value.requires_grad:
            raise LookalikeError("The loss does not depend on the embeddings: nothing would be learned.")
        return value


def attach_miner(method: Method, miner: Any) -> Method:
    """Return the method with a miner in front of its loss, which must be one of pytorch-metric-learning."""
    criterion = getattr(method, "criterion", None)
    if not isinstance(criterion, PMLLoss):
        raise LookalikeError(
            f"The method {method.name} takes no miner: pass it with `loss=`, or take ms, contrastive or triplet."
        )
    criterion.miner = miner
    return method
