"""One tiny model of every family, from its real configuration class, with random weights, as its library saves it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lookalike.core.imports import import_timm
from lookalike.data.decoding import Preprocess

SIZE = 32
WIDTH = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
VIT = {**WIDTH, "image_size": SIZE, "patch_size": 16}
TEXT = {**WIDTH, "num_hidden_layers": 1, "vocab_size": 64}
SQUASH = {"image_processor_type": "ViTImageProcessor", "size": {"height": SIZE, "width": SIZE}, "resample": 2}
CROP = {
    "image_processor_type": "CLIPImageProcessor",
    "do_center_crop": True,
    "size": {"shortest_edge": 40},
    "crop_size": {"height": SIZE, "width": SIZE},
    "resample": 3,
}
DINO = {**CROP, "image_processor_type": "BitImageProcessor"}
SWIN = {**SQUASH, "resample": 3}
SIGLIP = {**SWIN, "image_processor_type": "SiglipImageProcessor"}
CONVNEXT = {"image_processor_type": "ConvNextImageProcessor", "size": {"shortest_edge": SIZE}, "crop_pct": 0.8}
NORM = {"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.25, 0.3]}


@dataclass(frozen=True)
class Family:
    """A family of models.

    Args:
        name: How the documentation calls it.
        source: The library that wrote the folder.
        build: Writes a folder and returns the family's own forward pass, from normalized images to features.
        squash: Whether its preprocessing squashes.
        preprocessing: How the documentation describes it.
        pooling: The same of the pooling.
    """

    name: str
    source: str
    build: Callable[[Path], Callable[[Tensor], Tensor]]
    squash: bool
    preprocessing: str
    pooling: str


def _transformers(
    kind: str, options: dict[str, Any], processor: dict[str, Any], suffix: str = "", **nested: Any
) -> Any:
    def build(folder: Path) -> Callable[[Tensor], Tensor]:
        import_timm()
        import transformers

        torch.manual_seed(0)
        config = getattr(transformers, f"{kind}Config")(**options, **nested)
        model = getattr(transformers, f"{kind}Model{suffix}")(config).eval()
        for parameter in model.parameters():  # zeros, as of layer scales, would hide what is wrong
            nn.init.normal_(parameter, std=0.1)
        transformers.utils.logging.disable_progress_bar()
        model.save_pretrained(folder)
        (folder / "preprocessor_config.json").write_text(json.dumps({**processor, **NORM}))
        (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n# A model\n")

        def forward(images: Tensor) -> Tensor:
            if hasattr(model, "get_image_features"):
                output = model.get_image_features(images)
                return output if isinstance(output, Tensor) else output.pooler_output
            output = model(images)
            return output.image_embeds if hasattr(output, "image_embeds") else output.pooler_output.flatten(1)

        return forward

    return build


def _timm(folder: Path) -> Callable[[Tensor], Tensor]:
    timm = import_timm()
    from timm.models import save_for_hf

    torch.manual_seed(0)
    model = timm.create_model("test_vit", pretrained=False).eval()
    squash = {**model.pretrained_cfg, "crop_mode": "squash", "license": "apache-2.0", "mean": NORM["image_mean"]}
    save_for_hf(model, str(folder), model_config={"pretrained_cfg": squash}, safe_serialization=True)
    return lambda images: model.forward_head(model.forward_features(images), pre_logits=True)


def _open_clip(folder: Path) -> Callable[[Tensor], Tensor]:
    import_timm()
    import open_clip
    from safetensors.torch import save_file

    config = {
        "embed_dim": 24,
        "vision_cfg": {"image_size": SIZE, "layers": 2, "width": 32, "patch_size": 16, "head_width": 16},
        "text_cfg": {"context_length": 16, "vocab_size": 64, "width": 32, "heads": 2, "layers": 1},
    }
    folder.mkdir(parents=True)
    pre = {"mean": NORM["image_mean"], "std": NORM["image_std"], "interpolation": "bicubic", "resize_mode": "squash"}
    torch.manual_seed(0)
    model = open_clip.CLIP(**config).eval()
    save_file({k: v.contiguous() for k, v in model.state_dict().items()}, folder / "open_clip_model.safetensors")
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": config, "preprocess_cfg": pre}))
    return model.encode_image


def _sentence_transformers(folder: Path) -> Callable[[Tensor], Tensor]:
    forward = FAMILIES["clip"].build(folder / "0_CLIPModel")
    kinds = ["sentence_transformers.models.CLIPModel", "sentence_transformers.models.Normalize"]
    paths = ["0_CLIPModel", "1_Normalize"]
    modules = [{"idx": n, "name": str(n), "path": paths[n], "type": kind} for n, kind in enumerate(kinds)]
    (folder / "modules.json").write_text(json.dumps(modules))
    return forward


class OwnNetwork(nn.Module):
    """A network of a user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 5, stride=4)
        self.norm = nn.BatchNorm2d(16)

    def forward(self, images: Tensor) -> Tensor:
        return self.norm(self.conv(images)).relu().mean((2, 3))


def own_network() -> nn.Module:
    """What a user would name as `factory`."""
    return OwnNetwork()


def _own(folder: Path) -> Callable[[Tensor], Tensor]:
    from lookalike.models import Embedder

    torch.manual_seed(0)
    model = own_network().eval()
    pre = Preprocess(size=SIZE, crop=1.0, mean=tuple(NORM["image_mean"]), std=tuple(NORM["image_std"]), squash=True)
    Embedder(model, pre, factory="tests.models.families:own_network").save_pretrained(folder)
    return model


def _lookalike(folder: Path) -> Callable[[Tensor], Tensor]:
    from lookalike.models import Embedder

    model = Embedder.from_pretrained("resnet10_small", weights="random", size=SIZE)
    model.save_pretrained(folder)
    return model.backbone


def needs(name: str) -> Any:
    """A parameter of a test: the family, with the mark of the library it needs."""
    source = FAMILIES[name].source
    library = {"sentence-transformers": "transformers"}.get(source, source)
    return pytest.param(name, marks=[pytest.mark.needs(library)] if library in ("transformers", "open_clip") else [])


_POOLER, _CROP, _SQUASH = "the model's own pooler", "crop", "squash"
DINO3 = {**VIT, "num_register_tokens": 2}
FAMILIES: dict[str, Family] = {
    key: Family(*rest)
    for key, *rest in [
        ("lookalike", "a saved model or run", "lookalike", _lookalike, False, "as saved", "as saved"),
        ("own", "your own `nn.Module`", "lookalike", _own, True, "as you state it", "as you state it"),
        ("timm", "any timm model", "timm", _timm, True, "crop or squash", "the model's own"),
        ("open_clip", "any open_clip model", "open_clip", _open_clip, True, "crop or squash", "the image embedding"),
        ("dinov2", "DINOv2", "transformers", _transformers("Dinov2", VIT, DINO), False, _CROP, "class token"),
        (
            "dinov3",
            "DINOv3 ViT",
            "transformers",
            _transformers("DINOv3ViT", DINO3, SQUASH),
            True,
            _SQUASH,
            "class token",
        ),
        (
            "siglip",
            "SigLIP, SigLIP 2",
            "transformers",
            _transformers("Siglip", {}, SIGLIP, vision_config=VIT, text_config=TEXT),
            True,
            _SQUASH,
            "attention pooling head",
        ),
        (
            "clip",
            "CLIP",
            "transformers",
            _transformers("CLIP", {"projection_dim": 24}, CROP, vision_config=VIT, text_config=TEXT),
            False,
            _CROP,
            "the image embedding",
        ),
        (
            "clip_vision",
            "CLIP without its text side",
            "transformers",
            _transformers("CLIPVision", {**VIT, "projection_dim": 24}, CROP, "WithProjection"),
            False,
            _CROP,
            "the image embedding",
        ),
        (
            "metaclip2",
            "MetaCLIP 2",
            "transformers",
            _transformers("MetaClip2", {"projection_dim": 24}, SQUASH, vision_config=VIT, text_config=TEXT),
            True,
            _SQUASH,
            "the image embedding",
        ),
        ("vit", "ViT", "transformers", _transformers("ViT", VIT, SQUASH), True, _SQUASH, _POOLER),
        (
            "swin",
            "Swin, Swin v2",
            "transformers",
            _transformers(
                "Swin",
                {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4, "image_size": SIZE},
                SWIN,
            ),
            True,
            _SQUASH,
            "mean of tokens",
        ),
        (
            "convnext",
            "ConvNeXt, ConvNeXt v2",
            "transformers",
            _transformers("ConvNext", {"hidden_sizes": [16, 32], "depths": [1, 1], "num_stages": 2}, CONVNEXT),
            False,
            "crop below 384 px, else squash",
            "mean of the map",
        ),
        (
            "sentence_transformers",
            "CLIP folders of sentence-transformers",
            "sentence-transformers",
            _sentence_transformers,
            False,
            _CROP,
            "the image embedding",
        ),
    ]
}
