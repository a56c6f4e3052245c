"""Training: the loop, settings and recipes, checkpoints, logs, and the commands `train` and `pretrain`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lookalike.core.imports import lazy_exports

if TYPE_CHECKING:
    from lookalike.training.estimate import Plan
    from lookalike.training.own_parts import Callback, CallbackState
    from lookalike.training.recipe import recipes
    from lookalike.training.settings import TrainSettings, resolve
    from lookalike.training.train_command import pretrain, train

__all__ = ["Callback", "CallbackState", "Plan", "TrainSettings", "pretrain", "recipes", "resolve", "train"]

__getattr__, __dir__ = lazy_exports(__name__)
