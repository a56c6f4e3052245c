"""Models of open_clip, which embed images and texts into one space (extra ``clip``).

They are named ``open_clip:NAME`` or ``open_clip:NAME:WEIGHTS``. A projection head is made for images only: a model
with a head has no text encoder any more.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lookalike.core.errors import LookalikeError, suggest
from lookalike.core.imports import import_timm, offline

PREFIX = "open_clip:"


class OpenClipBackbone(nn.Module):
    """Image and text encoder of an open_clip model; called on images it returns their features."""

    def __init__(self, model: Any, name: str) -> None:
        super().__init__()
        self.clip, self.clip_name = model, name
        import open_clip

        config = open_clip.get_model_preprocess_cfg(model)
        size = config.get("size", 224)
        if config.get("resize_mode") == "longest":
            raise LookalikeError(f"The model `{name}` pads images to a square, which lookalike cannot do.")
        self.pretrained_cfg = {
            "input_size": (3, *(size if isinstance(size, (tuple, list)) else (size, size))),
            "crop_mode": "squash" if config.get("resize_mode") == "squash" else "center",
            "interpolation": config.get("interpolation", "bicubic"),
            **{"crop_pct": 1.0, "mean": config["mean"], "std": config["std"]},
        }

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.clip.encode_image(images)
        return features

    def encode_text(self, texts: Sequence[str]) -> Tensor:
        """Features of texts, ``(N, D)``."""
        import open_clip

        tokens = open_clip.get_tokenizer(self.clip_name)(list(texts))
        features: Tensor = self.clip.encode_text(tokens.to(next(self.parameters()).device))
        return features


def split_name(name: str) -> tuple[str, str | None]:
    """Split ``open_clip:ViT-B-32:laion2b`` into the architecture and the weights, if given."""
    model, _, weights = name.removeprefix(PREFIX).partition(":")
    return model, weights or None


def create(name: str, *, weights: str | None = None, config: dict[str, Any] | None = None) -> OpenClipBackbone:
    """Create an open_clip model, with the pretrained weights of that name in open_clip or with random ones.

    ``config`` is the ``open_clip_config.json`` of a model that open_clip does not know by name.
    """
    import_timm()  # open_clip imports timm, which fails on some machines without our workaround
    try:
        import open_clip
    except ImportError as error:
        raise LookalikeError(f"`{name}` needs open_clip: pip install 'lookalike[clip]'.") from error
    model, _ = split_name(name)
    if config is not None:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / f"{model}.json").write_text(json.dumps(config["model_cfg"]), encoding="utf-8")
            open_clip.add_model_config(Path(folder))
    names = open_clip.list_models()
    if model not in names:
        raise LookalikeError(f"`{model}` is not a model of open_clip{suggest(model, names) or '.'}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = open_clip.create_model(model, pretrained=weights)
        if config is not None:
            stated = {**open_clip.get_model_preprocess_cfg(made), **(config.get("preprocess_cfg") or {})}
            open_clip.set_model_preprocess_cfg(made, stated)
        return OpenClipBackbone(made, model)


def load_pretrained(name: str) -> OpenClipBackbone:
    """Load ``open_clip:NAME:WEIGHTS``; open_clip downloads the weights where the network is allowed."""
    model, weights = split_name(name)
    if weights is None:
        raise LookalikeError(
            f"`{name}` does not name its weights: write `{PREFIX}{model}:WEIGHTS`, or pass a file with weights=."
        )
    if offline():
        raise LookalikeError(
            f"The weights `{weights}` of `{PREFIX}{model}` are not on this machine and downloads are off: "
            "set HF_HUB_OFFLINE=0 in the environment to allow them."
        )
    return create(name, weights=weights)
