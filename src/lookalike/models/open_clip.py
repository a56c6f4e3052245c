"""Models with a text side: open_clip's, as `open_clip:NAME` or `open_clip:NAME:WEIGHTS` (extra `clip`).

Images and words land in one space, so words can ask an index of images. A head would be made for images
alone; with one, words are no longer read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lookalike.core.errors import LookalikeError, nearest
from lookalike.core.imports import import_timm, offline

PREFIX = "open_clip:"


class Clip(nn.Module):
    """Both towers of an open_clip model; called on images it gives their features."""

    def __init__(self, model: Any, name: str) -> None:
        super().__init__()
        self.clip, self.clip_name = model, name
        size = getattr(model.visual, "image_size", 224)
        mean, std = _statistics(model)
        self.pretrained_cfg = {
            "input_size": (3, *(size if isinstance(size, tuple) else (size, size))),
            "crop_pct": 1.0,
            "interpolation": "bicubic",
            "mean": mean,
            "std": std,
        }

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.clip.encode_image(images)
        return features

    def read(self, texts: Sequence[str]) -> Tensor:
        """Features of words."""
        import open_clip

        tokens = open_clip.get_tokenizer(self.clip_name)(list(texts))
        features: Tensor = self.clip.encode_text(tokens.to(next(self.parameters()).device))
        return features


def _statistics(model: Any) -> tuple[Any, Any]:
    from open_clip import OPENAI_DATASET_MEAN, OPENAI_DATASET_STD

    visual = model.visual
    return getattr(visual, "image_mean", None) or OPENAI_DATASET_MEAN, (
        getattr(visual, "image_std", None) or OPENAI_DATASET_STD
    )


def is_clip(name: str) -> bool:
    return name.startswith(PREFIX)


def split(name: str) -> tuple[str, str | None]:
    """`open_clip:ViT-B-32:laion2b` as the architecture's name and its weights'."""
    model, _, weights = name.removeprefix(PREFIX).partition(":")
    return model, weights or None


def create(name: str, *, weights: str | None = None) -> Clip:
    """An open_clip model; without `weights` (a name open_clip knows) its numbers are random."""
    import_timm()  # open_clip imports it too, and cannot do so by itself everywhere
    try:
        import open_clip
    except ImportError as error:
        raise LookalikeError(f"`{name}` needs open_clip: pip install 'lookalike[clip]'.") from error
    model, _ = split(name)
    known = open_clip.list_models()
    if model not in known:
        raise LookalikeError(f"`{model}` is not a model of open_clip{nearest(model, known) or '.'}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Clip(open_clip.create_model(model, pretrained=weights), model)


def pretrained(name: str) -> Clip:
    """With the weights its name says; they are fetched where the network is allowed."""
    model, weights = split(name)
    if weights is None:
        raise LookalikeError(
            f"`{name}` does not say which weights: write `{PREFIX}{model}:WEIGHTS`, or give a file with weights=."
        )
    if offline():
        raise LookalikeError(
            f"The weights `{weights}` of `{PREFIX}{model}` are not on this machine and the network is off: "
            "HF_HUB_OFFLINE=0 in the environment allows the download."
        )
    return create(name, weights=weights)
