"""The command `models`: which models can be used, what they cost, and which are on this machine."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lookalike._version import __version__
from lookalike.core import artifacts, folders, seeds
from lookalike.core.device import CPU, threads
from lookalike.core.errors import LookalikeError
from lookalike.core.files import format_bytes
from lookalike.core.imports import import_timm
from lookalike.core.progress import Progress
from lookalike.core.report_blocks import text_table
from lookalike.core.run import Run
from lookalike.models import backbones, hub, pretrained_folder
from lookalike.models.embedder import Embedder
from lookalike.models.inference.pipeline import CropEncoder

# Good first choices among timm's models, from small to large; everything said of them is asked of timm.
SUGGESTED = (
    "mobilenetv4_conv_small.e2400_r224_in1k",
    "resnet50.a1_in1k",
    "convnext_tiny.dinov3_lvd1689m",
    "vit_small_patch14_dinov2.lvd142m",
    "vit_small_patch16_dinov3.lvd1689m",
    "vit_base_patch16_siglip_224.v2_webli",
    "vit_base_patch14_dinov2.lvd142m",
)
SPEED_IMAGES = 64


@dataclass(frozen=True)
class ModelInfo:
    """One model that can be used."""

    name: str
    source: str
    bytes: int  # of its weights in memory
    size: int
    squash: bool  # whether images are squashed to that size instead of cropped
    dim: int
    license: str
    here: bool  # its weights are on this machine
    images_per_second: float | None = None  # measured on this machine, without decoding


@dataclass(frozen=True)
class ModelList:
    """The models that can be used; ``str()`` gives the table."""

    models: list[ModelInfo]
    unreadable: list[str]
    """Cached models that cannot be loaded, with the reason."""

    def to_json(self) -> dict[str, Any]:
        return {"models": [asdict(model) for model in self.models], "unreadable": self.unreadable}

    def __str__(self) -> str:
        head = ("model", "size", "input", "dim", "license", "here", "images/s")
        body = []
        for one in self.models:
            license = one.license if len(one.license) <= 24 else one.license[:23] + "…"
            speed = f"{one.images_per_second:,.0f}" if one.images_per_second else "–"
            facts = (f"{one.size} px{', squashed' if one.squash else ''}", str(one.dim), license)
            body.append((one.name, format_bytes(one.bytes), *facts, "yes" if one.here else "no", speed))
        return "\n".join([*text_table(head, body), *(f"Left out: {text}" for text in self.unreadable)])


def list_models(*, pattern: str | None = None, measure: bool = True, progress: bool = False) -> ModelList:
    """List the models that can be used.

    These are the built-in ones, your runs, models of the Hub that were downloaded before, and some of timm's to begin
    with. Nothing is downloaded.

    Args:
        pattern: List the timm models whose names match this instead of the suggested ones, as `vit_*dinov2*`.
        measure: Measure the speed of models on this machine that were not measured before (seconds each).
        progress: Show progress.

    Returns:
        The models, those on this machine first.

    Raises:
        LookalikeError: If no timm model matches.

    Example:
        >>> la.models.list_models(measure=False).models[0].name
        'efficientnet_lite0'
    """
    here = [(name, "built in") for name in backbones.BUILTIN]
    runs = [path for path in sorted(folders.runs().glob("*")) if Run.is_run(path) and (path / "model").is_dir()]
    here += [(path.name, "run") for path in runs] + [(name, "Hub") for name in _downloaded()]
    models, unreadable = [], []
    with Progress("Measuring models", len(here), shown=progress) as bar:
        for name, source in here:
            try:
                model = Embedder.from_pretrained(name, device=CPU)
            except LookalikeError as error:
                unreadable.append(f"{name}: {error}")
            else:
                license, pre = str(model.card.get("license") or "not stated"), model.preprocess
                license = "not stated" if license == backbones.LITE_LICENSE else license
                facts = (model.weight_bytes, pre.size, pre.squash, model.dim, license, True)
                models.append(ModelInfo(name, source, *facts, _speed(model, measure=measure)))
            bar.advance(1)
    timm = import_timm()
    names = timm.list_models(pattern, pretrained=True) if pattern else [n for n in SUGGESTED if timm.is_model(n)]
    if pattern and not names:
        raise LookalikeError(f"No timm model with weights matches `{pattern}`.")
    return ModelList([*models, *(_timm_info(timm, name) for name in names)], unreadable)


def _speed(model: Embedder, *, measure: bool) -> float | None:
    """Images per second from pixels of the input size to vectors; measured once and remembered."""
    key = {"model": model.fingerprint(), "threads": threads(), "version": __version__}
    path = artifacts.artifact("speed", key)
    if (content := artifacts.read(path)) is not None:
        return float(json.loads(content))
    if not measure:
        return None
    side = model.preprocess.size
    pixels = seeds.numpy_rng(0, "speed").integers(0, 256, (SPEED_IMAGES, side, side, 3)).astype(np.uint8)
    encoder = CropEncoder(model, fast=True)
    encoder.encode(list(pixels))
    start = time.perf_counter()
    encoder.encode(list(pixels))
    speed = SPEED_IMAGES / (time.perf_counter() - start)
    artifacts.write(path, json.dumps(speed).encode())
    return speed


def _timm_info(timm: Any, name: str) -> ModelInfo:
    """Facts of a timm model from its architecture, without its weights."""
    with torch.device("meta"):
        model = timm.create_model(name, pretrained=False, num_classes=0)
    config = model.pretrained_cfg
    pre = backbones.preprocess_of(model)
    count = sum(value.numel() * value.element_size() for value in model.state_dict().values())
    repository = str(config.get("hf_hub_id") or "")
    folder = hub.cached(repository) if repository else None
    weights = Path(torch.hub.get_dir()) / "checkpoints" / str(config.get("url") or "none").rsplit("/", 1)[-1]
    here = (folder is not None and pretrained_folder.is_whole(folder)) or weights.is_file()
    license = str(config.get("license") or "not stated")
    return ModelInfo(name, "timm", count, pre.size, pre.squash, int(model.num_features), license, here)


def _downloaded() -> list[str]:
    """The models of the Hub in the local cache whose files are whole."""
    from huggingface_hub import constants, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    with contextlib.suppress(CacheNotFound):
        repositories = [one.repo_id for one in scan_cache_dir(constants.HF_HUB_CACHE).repos if one.repo_type == "model"]
        pairs = [(name, hub.cached(name)) for name in sorted(repositories)]
        return [name for name, folder in pairs if folder and pretrained_folder.is_whole(folder)]
    return []
