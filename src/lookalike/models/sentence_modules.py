"""What sentence-transformers reads of a model folder: modules of its own where it has them, else one of lookalike's.

Its ``Transformer`` loads any model of timm or transformers from the same ``config.json`` and ``model.safetensors``, and
its ``Dense`` and ``Normalize`` are heads. What it has no module for (GeM, open_clip, own networks, heads of blocks)
is loaded by ``lookalike.integrations.sentence_transformers``, for which it asks for ``trust_remote_code``.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from lookalike.data.decoding import Preprocess
from lookalike.models import backbones
from lookalike.models.embedder import Embedder
from lookalike.models.heads import BlockLinear
from lookalike.models.transformers import TransformersBackbone

OWN = "lookalike.integrations.sentence_transformers.LookalikeModule"
MODULES = "sentence_transformers.{}.modules.{}"
TYPES = {
    "Transformer": MODULES.format("base", "transformer.Transformer"),
    "Pooling": MODULES.format("sentence_transformer", "pooling.Pooling"),
    "Normalize": MODULES.format("base", "normalize.Normalize"),
    "Dense": MODULES.format("base", "dense.Dense"),
    "LayerNorm": MODULES.format("sentence_transformer", "layer_norm.LayerNorm"),
}
RESAMPLING = {"bilinear": 2, "bicubic": 3}  # Pillow's numbers
OTHERS = r"^(head|norm|classifier|prototypes)\."  # tensors that are not the backbone's


def config_for(model: Embedder) -> dict[str, Any]:
    """What ``config.json`` must hold besides for transformers to load the backbone; empty where it cannot."""
    network, pre = model.backbone, model.preprocess
    impossible = isinstance(model.head, BlockLinear) or (pre.squash and pre.crop != 1) or pre.interpolation == "lanczos"
    if impossible or _output(model) is None:
        return {}
    if isinstance(network, TransformersBackbone):
        document: dict[str, Any] = network.network.config.to_diff_dict()
        return {key: value for key, value in document.items() if key not in ("architectures", "transformers_version")}
    size = {"img_size": pre.size} if network.pretrained_cfg.get("fixed_input_size") else {}
    options = {**(model.architecture_config or {}), **size}
    about = {"model_type": "timm_wrapper", "num_classes": 0, "num_features": model.feature_dim}
    return {**about, "model_args": options}


def _output(model: Embedder) -> tuple[str, str | None] | None:
    """The output of the backbone that sentence-transformers reads, and its pooling behind it; None if it cannot."""
    network, pooling = model.backbone, model.pooling.name
    if isinstance(network, TransformersBackbone):
        possible = pooling in ("own", "cls") or (pooling == "avg" and not network.num_prefix_tokens)
        if not possible or network.options or _prefix(network) is None:
            return None
        if pooling == "own" and network.pools:
            return "pooler_output", None
        cls = pooling == "cls" or (pooling == "own" and network.num_prefix_tokens)
        return "last_hidden_state", "cls" if cls else "mean"
    is_timm = ":" not in model.architecture and model.architecture not in backbones.SMALL
    return ("pooler_output", None) if is_timm and pooling == "own" else None


def _prefix(backbone: TransformersBackbone) -> str | None:
    """A pattern of what stands before the names that transformers reads weights by; None if it reads others."""
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping
    from transformers.core_model_loading import rename_source_key
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    network, start = backbone.network, r"^backbone\.network\."
    if hasattr(network, "visual_projection"):
        network, start = network.vision_model, start + r"vision_model\."
    kind, names = network.config.model_type, list(network.state_dict())
    own = get_checkpoint_conversion_mapping(type(network).__name__) or get_checkpoint_conversion_mapping(kind) or []
    for prefix in ("", "model.") if kind in MODEL_MAPPING_NAMES else ():
        if all(rename_source_key(name.removeprefix(prefix), own, [])[0] == name for name in names):
            return start + (f"(?:{re.escape(prefix)})?" if prefix else "")
    return None


def write(model: Embedder, folder: Path, native: bool) -> None:
    """Write ``modules.json`` and what it names; ``native`` if `config_for` gave a configuration."""
    modules: list[tuple[str, dict[str, Any], dict[str, Tensor]]] = []
    if native:
        output, pooling = _output(model) or ("", None)
        projection = getattr(getattr(model.backbone, "network", None), "visual_projection", None)
        start, prefix = r"^backbone\.", "timm_model."
        if isinstance(model.backbone, TransformersBackbone):
            start, prefix = _prefix(model.backbone) or "", ""
        image = {"method": "forward", "method_output_name": output}
        about = {
            "transformer_task": "feature-extraction",
            "modality_config": {"image": image},
            "module_output_name": "token_embeddings" if pooling else "sentence_embedding",
            "model_kwargs": {"key_mapping": {OTHERS: r"lookalike.\1.", start: prefix}},
        }
        _write(folder / "sentence_bert_config.json", about)
        _write(folder / "preprocessor_config.json", _processor(model.preprocess))
        if pooling:
            modules.append(("Pooling", {"embedding_dimension": model.feature_dim, "pooling_mode": pooling}, {}))
        modules += [_dense(projection.weight)] if isinstance(projection, nn.Linear) else []
        modules.append(("Normalize", {}, {}))
        if isinstance(model.head, nn.Linear):
            modules += [_dense(model.head.weight, model.head.bias), ("Normalize", {}, {})]
        modules += _norm(model)
    paths = [f"{number}_{kind}" for number, (kind, *_) in enumerate(modules, 1)]
    for path, (_, config, tensors) in zip(paths, modules, strict=True):
        (folder / path).mkdir()
        _write(folder / path / "config.json", config)
        if tensors:
            save_file(tensors, folder / path / "model.safetensors")
    types = [TYPES["Transformer"], *(TYPES[kind] for kind, *_ in modules)] if native else [OWN]
    rows = enumerate(zip(types, ["", *paths], strict=True))
    _write(folder / "modules.json", [{"idx": n, "name": str(n), "path": p, "type": t} for n, (t, p) in rows])


def _write(path: Path, document: Any) -> None:
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _dense(weight: Tensor, bias: Tensor | None = None) -> tuple[str, dict[str, Any], dict[str, Tensor]]:
    sizes = {"in_features": weight.shape[1], "out_features": weight.shape[0], "bias": bias is not None}
    tensors = {"linear.weight": weight, **({} if bias is None else {"linear.bias": bias})}
    whole = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    return "Dense", {**sizes, "activation_function": "torch.nn.modules.linear.Identity"}, whole


def _norm(model: Embedder) -> list[tuple[str, dict[str, Any], dict[str, Tensor]]]:
    """The norm layer, and the unit length behind it."""
    norm = model.norm
    if isinstance(norm, nn.LayerNorm):
        tensors = {f"norm.{name}": value.detach().cpu() for name, value in norm.state_dict().items()}
        return [("LayerNorm", {"dimension": model.dim}, tensors), ("Normalize", {}, {})]
    if not isinstance(norm, nn.BatchNorm1d):
        return []
    assert norm.running_var is not None and norm.running_mean is not None
    scale = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
    return [_dense(torch.diag(scale), norm.bias - scale * norm.running_mean), ("Normalize", {}, {})]


def _processor(pre: Preprocess) -> dict[str, Any]:
    """An image processor of transformers that gives the same pixels; Perceiver's crops before it resizes."""
    size = {"height": pre.size, "width": pre.size}
    about: dict[str, Any] = {"image_processor_type": "ViTImageProcessor", "size": size}
    if not pre.squash:
        side = pre.size / pre.crop
        near = (side, math.nextafter(side, 0), math.nextafter(side, math.inf))
        side = next((x for x in near if pre.size / x == pre.crop), side)  # it divides to get the crop again
        about |= {"image_processor_type": "PerceiverImageProcessor", "crop_size": {"height": side, "width": side}}
    norm = {"image_mean": list(pre.mean), "image_std": list(pre.std)}
    return {**about, "resample": RESAMPLING[pre.interpolation], "do_convert_rgb": True, **norm}
