"""Cutting a backbone in two at a stage, so that its lower part can be computed once and cached.

The halves are shallow copies of the backbone that share its modules: what lies on the other side of
the cut is replaced by identities, so the library's own forward code runs unchanged.
"""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass

from torch import Tensor, nn

from lookalike.core.errors import LookalikeError

ENDS = ("pooled", "embedding")


@dataclass(frozen=True)
class Family:
    stem: tuple[str, ...]
    stages: str | tuple[str, ...]  # one Sequential, or modules of the backbone one by one
    after: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()  # methods of the stem that are no modules


FAMILIES = {
    "EfficientNet": Family(("conv_stem", "bn1"), "blocks", ("conv_head", "bn2")),
    "MobileNetV3": Family(("conv_stem", "bn1"), "blocks"),
    "ResNet": Family(("conv1", "bn1", "act1", "maxpool"), ("layer1", "layer2", "layer3", "layer4")),
    "RegNet": Family(("stem",), ("s1", "s2", "s3", "s4"), ("final_conv",)),
    "ConvNeXt": Family(("stem",), "stages", ("norm_pre",)),
    "SwinTransformer": Family(("patch_embed",), "layers", ("norm",)),
    "VisionTransformer": Family(("patch_embed", "patch_drop", "norm_pre"), "blocks", ("norm",), ("_pos_embed",)),
}


def _itself(x: Tensor) -> Tensor:
    return x


def stage_names(backbone: nn.Module) -> list[str]:
    """`stage0` … of a backbone that can be cut, else nothing."""
    family = FAMILIES.get(type(backbone).__name__)
    if family is None:
        return []
    stages = getattr(backbone, family.stages) if isinstance(family.stages, str) else family.stages
    return [f"stage{number}" for number in range(len(stages))]


def check_layer(backbone: nn.Module, layer: str) -> None:
    known = [*stage_names(backbone), *ENDS]
    if layer in known:
        return
    if re.fullmatch(r"stage\d+", layer) and len(known) == len(ENDS):
        raise LookalikeError(
            f"A {type(backbone).__name__} cannot be cut at `{layer}`: only {', '.join(sorted(FAMILIES))} can; "
            "take layer `pooled`."
        )
    raise LookalikeError(f"`{layer}` is not a layer of this model: there are {', '.join(known)}.")


def _split(backbone: nn.Module, layer: str) -> tuple[Family, int]:
    check_layer(backbone, layer)
    return FAMILIES[type(backbone).__name__], int(layer.removeprefix("stage"))


def _shell(backbone: nn.Module) -> nn.Module:
    """A copy with its own list of children; the children themselves are shared."""
    shell = copy.copy(backbone)
    shell._modules = dict(backbone._modules)
    return shell


def lower(backbone: nn.Module, layer: str) -> nn.Module:
    """Call its `forward_features`: normalized images to the output of the stage."""
    family, number = _split(backbone, layer)
    shell = _shell(backbone)
    if isinstance(family.stages, str):
        kept = {*family.stem, family.stages}
        stages = list(getattr(backbone, family.stages).children())
        shell._modules[family.stages] = nn.Sequential(*stages[: number + 1])
    else:
        kept = {*family.stem, *family.stages[: number + 1]}
    for name in shell._modules:
        if name not in kept:
            shell._modules[name] = nn.Identity()
    return shell


def upper(backbone: nn.Module, layer: str) -> nn.Module:
    """Call it: the output of the stage to the backbone's output."""
    family, number = _split(backbone, layer)
    shell = _shell(backbone)
    gone = list(family.stem)
    if isinstance(family.stages, str):
        stages = list(getattr(backbone, family.stages).children())
        shell._modules[family.stages] = nn.Sequential(*stages[number + 1 :])
    else:
        gone += family.stages[: number + 1]
    for name in gone:
        shell._modules[name] = nn.Identity()
    for name in family.steps:
        shell.__dict__[name] = _itself
    shell._parameters = {}  # what hangs on the root itself (position embeddings) belongs to the stem
    return shell
