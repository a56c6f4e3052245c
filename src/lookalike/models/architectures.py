"""Small architectures that timm does not have, registered with timm under their own names."""

from __future__ import annotations

from typing import Any

from torch import nn

from lookalike.core.imports import import_timm

CIFAR = {
    "input_size": (3, 32, 32),
    "crop_pct": 1.0,
    "interpolation": "bilinear",
    "mean": (0.4914, 0.4822, 0.4465),
    "std": (0.2023, 0.1994, 0.2010),
    "num_classes": 0,
    "first_conv": "conv1",
    "classifier": "fc",
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


def register() -> None:
    """Register the architectures of this module with timm, once."""
    timm = import_timm()
    for architecture in (resnet18_cifar, resnet10_small):
        if not timm.is_model(architecture.__name__):
            from timm.models import register_model

            register_model(architecture)
