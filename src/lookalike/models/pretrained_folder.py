"""Folders of models that other libraries wrote: timm, open_clip, transformers and sentence-transformers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from torch import Tensor

from lookalike.core.errors import LookalikeError
from lookalike.core.files import hash_bytes, read_json
from lookalike.models import backbones, open_clip, transformers
from lookalike.models.backbones import LoadedBackbone, read_tensors

CONFIG, INDEX = "config.json", "model.safetensors.index.json"
OPEN_CLIP = "open_clip_config.json"
PREPROCESS = ("preprocessor_config.json", "processor_config.json")
WEIGHTS = {
    "open_clip": ("open_clip_model.safetensors", "open_clip_pytorch_model.bin"),
    "timm": ("model.safetensors", "pytorch_model.bin"),
    "transformers": ("model.safetensors", INDEX, "pytorch_model.bin"),
}


def kind(folder: Path, *, prefer_open_clip: bool = False) -> str | None:
    """The library that wrote a folder, or "lookalike"; None if it is not a model.

    A folder that is of open_clip and of another library is of the other one, unless open_clip is preferred.
    """
    is_clip = (folder / OPEN_CLIP).is_file()
    if is_clip and prefer_open_clip:
        return "open_clip"
    config = read_json(folder / CONFIG, "model's configuration") if (folder / CONFIG).is_file() else None
    if isinstance(config, dict):
        if "format" in config or config.get("kind") == "model":
            return "lookalike"
        if not is_clip or any((folder / name).is_file() for name in WEIGHTS["transformers"]):
            if "pretrained_cfg" in config or ("architecture" in config and "model_type" not in config):
                return "timm"
            if "model_type" in config:
                return "transformers"
    if is_clip:
        return "open_clip"
    modules = folder / "modules.json"
    text = modules.read_text(encoding="utf-8", errors="replace") if modules.is_file() else ""
    return "sentence_transformers" if text and "LookalikeModule" not in text else None


def is_whole(folder: Path) -> bool:
    """Whether configuration and weights are in a folder."""
    family = kind(folder)
    if family == "sentence_transformers":
        return True
    names = WEIGHTS["timm" if family == "lookalike" else family] if family else ()
    return any((folder / name).is_file() for name in names)


def load(folder: Path, name: str, *, size: int | None = None, prefer_open_clip: bool = False) -> LoadedBackbone:
    """Load the backbone of a folder, with the preprocessing, the pooling and the license that its files state.

    Args:
        folder: The folder.
        name: What the user called it, for messages and the model card.
        size: Input size in pixels; the model's own without it.
        prefer_open_clip: Take open_clip's files where there are others too.

    Raises:
        LookalikeError: If it is no model, of an unknown family, or its files do not fit together.
    """
    pooling, part = "own", folder
    family = kind(folder, prefer_open_clip=prefer_open_clip)
    if family == "sentence_transformers" or (family == "transformers" and (folder / "modules.json").is_file()):
        part, pooling = _sentence_transformers(folder)
        family = kind(part)
    loader = {"timm": _timm, "open_clip": _open_clip, "transformers": _transformers}.get(family or "")
    if loader is None:
        raise LookalikeError(
            f"`{folder}` is not a model: it holds none of lookalike, timm, open_clip, transformers or "
            "sentence-transformers (config.json and weights)."
        )
    loaded = loader(part, name, size)
    stated = _license(folder) or (loaded.license if family == "timm" else "")
    loaded.license = stated or "The files of this model state no license."
    loaded.source, loaded.pooling = f"{family} {name}", pooling
    return loaded


def _timm(folder: Path, name: str, size: int | None) -> LoadedBackbone:
    config = read_json(folder / CONFIG, "model's configuration")
    options: dict[str, Any] = dict(config.get("model_args") or {})
    if config.get("global_pool"):
        options.setdefault("global_pool", config["global_pool"])
    stated = dict(config.get("pretrained_cfg") or {})
    options.pop("num_classes", None)
    model = backbones.create_backbone(config["architecture"], size, options or None)
    model.pretrained_cfg = {**(model.pretrained_cfg or {}), **stated}
    backbones.load_weights(model, _file(folder, "timm"), name)
    license, pre = str(stated.get("license") or ""), backbones.preprocess_of(model, size)
    return LoadedBackbone(model.eval(), config["architecture"], pre, license, "", options or None)


def _open_clip(folder: Path, name: str, size: int | None) -> LoadedBackbone:
    config = read_json(folder / OPEN_CLIP, "model's configuration")
    architecture = f"{open_clip.PREFIX}custom-{hash_bytes(json.dumps(config, sort_keys=True))[:8]}"
    model = open_clip.create(architecture, config=config)
    backbones.load_weights(model.clip, _file(folder, "open_clip"), name)
    return LoadedBackbone(model.eval(), architecture, backbones.preprocess_of(model, size), "", "", config)


def _transformers(folder: Path, name: str, size: int | None) -> LoadedBackbone:
    config = read_json(folder / CONFIG, "model's configuration")
    transformers.check_family(config)
    described = next((folder / name for name in PREPROCESS if (folder / name).is_file()), None)
    if described is None:
        raise LookalikeError(f"`{folder}` has no {PREPROCESS[0]}: its preprocessing is unknown.")
    pre = transformers.preprocess(read_json(described, "preprocessing"), size)
    model = transformers.create(config, pre.size, _tensors(folder))
    config = transformers.stored_config(config, model)
    return LoadedBackbone(model, transformers.PREFIX + config["model_type"], pre, "", "", config)


def _sentence_transformers(folder: Path) -> tuple[Path, str]:
    """The folder of the transformers model in a folder of sentence-transformers, and the pooling behind it."""
    modules = read_json(folder / "modules.json", "list of modules")
    kinds = [str(module["type"]).rpartition(".")[2] for module in modules]
    part, pooling = folder / modules[0]["path"], "own"
    if kinds[0] in ("CLIPModel", "Transformer"):
        for module, name in list(zip(modules, kinds, strict=True))[1:]:
            if name == "Pooling":
                config = read_json(folder / module["path"] / CONFIG, "pooling")
                mean = config.get("pooling_mode") == "mean" or config.get("pooling_mode_mean_tokens")
                pooling = "avg" if mean else "cls"
            elif name != "Normalize":
                raise LookalikeError(f"`{folder}` has a module `{name}` behind its model, which lookalike cannot load.")
        return part, pooling
    raise LookalikeError(f"`{folder}` begins with a module `{kinds[0]}`, which embeds no images.")


def _file(folder: Path, library: str) -> Path:
    for name in WEIGHTS[library]:
        if (folder / name).is_file():
            return folder / name
    raise LookalikeError(f"`{folder}` has no weights: none of {', '.join(WEIGHTS[library])} is in it.")


def _tensors(folder: Path) -> dict[str, Tensor]:
    file = _file(folder, "transformers")
    if file.name != INDEX:
        return read_tensors(file)
    shards = sorted(set(read_json(file, "list of weight files")["weight_map"].values()))
    if any(Path(shard).name != shard for shard in shards):
        raise LookalikeError(f"`{file}` names files outside its folder.")
    return {key: value for shard in shards for key, value in read_tensors(folder / shard).items()}


def _license(folder: Path) -> str:
    """The license that the YAML header of the model card states."""
    import yaml

    card = folder / "README.md"
    text = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else ""
    header = re.match(r"---\s*\n(.*?)\n---", text, re.S)
    try:
        document = yaml.safe_load(header[1]) if header else None
    except yaml.YAMLError:
        return ""
    document = document if isinstance(document, dict) else {}
    return str(document.get("license_name") or document.get("license") or "")
