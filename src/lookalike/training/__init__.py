"""Training: the loop, its settings and recipes, checkpoints, logs, and the verb `train`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# Name -> module; imported on first use, since torch takes seconds.
_LAZY = {
    "Plan": "job",
    "TrainSettings": "settings",
    "pretrain": "pretraining",
    "recipes": "cookbook",
    "resolve": "settings",
    "train": "job",
}

if TYPE_CHECKING:
    from lookalike.training.cookbook import recipes
    from lookalike.training.job import Plan, train
    from lookalike.training.pretraining import pretrain
    from lookalike.training.settings import TrainSettings, resolve

__all__ = ["Plan", "TrainSettings", "pretrain", "recipes", "resolve", "train"]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
