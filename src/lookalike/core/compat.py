"""What a library needs before its first import, and what keeps it off the network."""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from typing import Any

_KEEP: list[Any] = []  # a torch Library is undone when it is collected


def prepare_torchvision() -> None:
    """Make `import torchvision` work beside a CPU build of torch.

    Its binary operators want CUDA libraries; without them the import itself fails on two missing
    operators. Declaring these lets everything in Python work; nms and roi_align stay absent.
    """
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        import torch

        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _KEEP.append(library)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module("torchvision")


def import_timm() -> Any:
    prepare_torchvision()
    import timm

    return timm


def import_openvino() -> Any:
    """OpenVINO without its telemetry: with that module out of reach it falls back to a stub that sends nothing."""
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    return importlib.import_module("openvino")


def offline(name: str = "HF_HUB_OFFLINE") -> bool:
    """Whether weights may not be fetched: the user has to ask for the network."""
    return os.environ.get(name, "1") not in ("0", "false", "no")
