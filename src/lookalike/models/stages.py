"""Splitting a backbone at a stage, so that its lower part can be computed once and cached.

Both parts are shallow copies of the backbone that share its modules. What lies on the other side of the split is
replaced by identities, so timm's own forward code runs unchanged.
"""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass

from torch import Tensor, nn

from lookalike.core.errors import LookalikeError

FINAL_LAYERS = ("pooled", "embedding")


@dataclass(frozen=True)
class Family:
    """Where the modules of a family of architectures lie.

    Args:
        stem: Modules before the stages.
        stages: Name of the ``Sequential`` of stages, or the names of the stages.
        stem_methods: Methods of the backbone that belong to the stem and are not modules.
    """

    stem: tuple[str, ...]
    stages: str | tuple[str, ...]
    stem_methods: tuple[str, ...] = ()


FAMILIES = {
    "EfficientNet": Family(("conv_stem", "bn1"), "blocks"),
    "MobileNetV3": Family(("conv_stem", "bn1"), "blocks"),
    "ResNet": Family(("conv1", "bn1", "act1", "maxpool"), ("layer1", "layer2", "layer3", "layer4")),
    "RegNet": Family(("stem",), ("s1", "s2", "s3", "s4")),
    "ConvNeXt": Family(("stem",), "stages"),
    "SwinTransformer": Family(("patch_embed",), "layers"),
    "VisionTransformer": Family(("patch_embed", "patch_drop", "norm_pre"), "blocks", ("_pos_embed",)),
}


def stage_names(backbone: nn.Module) -> list[str]:
    """``stage0``, ``stage1``, … of a backbone that can be split; empty for others."""
    family = FAMILIES.get(type(backbone).__name__)
    if family is None:
        return []
    stages = getattr(backbone, family.stages) if isinstance(family.stages, str) else family.stages
    return [f"stage{number}" for number in range(len(stages))]


def check_layer(backbone: nn.Module, layer: str) -> None:
    """Raise ``LookalikeError`` unless the layer exists in this backbone."""
    layers = [*stage_names(backbone), *FINAL_LAYERS]
    if layer in layers:
        return
    if re.fullmatch(r"stage\d+", layer) and len(layers) == len(FINAL_LAYERS):
        raise LookalikeError(
            f"A {type(backbone).__name__} cannot be split at `{layer}`: only {', '.join(sorted(FAMILIES))} can; "
            "use layer `pooled`."
        )
    raise LookalikeError(f"`{layer}` is not a layer of this model; its layers are {', '.join(layers)}.")


def _cut(backbone: nn.Module, layer: str, *, lower: bool) -> tuple[nn.Module, Family, set[str]]:
    """A copy that shares its modules and keeps one side of the stages; the family; and the modules up to the stage."""
    check_layer(backbone, layer)
    family, count = FAMILIES[type(backbone).__name__], int(layer.removeprefix("stage")) + 1
    part = copy.copy(backbone)
    part._modules = dict(backbone._modules)
    if not isinstance(family.stages, str):
        return part, family, {*family.stem, *family.stages[:count]}
    stages = list(getattr(backbone, family.stages).children())
    part._modules[family.stages] = nn.Sequential(*(stages[:count] if lower else stages[count:]))
    return part, family, {*family.stem, family.stages} if lower else set(family.stem)


def lower_part(backbone: nn.Module, layer: str) -> nn.Module:
    """The backbone up to and including a stage; call its ``forward_features`` on normalized images."""
    part, _, names = _cut(backbone, layer, lower=True)
    for name in part._modules:
        if name not in names:
            part._modules[name] = nn.Identity()
    return part


def upper_part(backbone: nn.Module, layer: str) -> nn.Module:
    """The backbone after a stage; call it on the output of the stage."""
    part, family, names = _cut(backbone, layer, lower=False)
    for name in names:
        part._modules[name] = nn.Identity()
    for name in family.stem_methods:
        part.__dict__[name] = _identity
    part._parameters = {}  # parameters of the root itself (position embeddings) belong to the stem
    return part


def _identity(x: Tensor) -> Tensor:
    return x
