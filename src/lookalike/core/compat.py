"""What a library needs before its first import, and what keeps it off the network."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

_KEEP: list[Any] = []  # a torch Library is undone when it is collected
_IMPORTING = threading.Lock()


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
    """timm in two seconds of processor time instead of seven (docs/decisions/0086).

    torchvision and timm import the compiler of torch for a decorator and an optimizer we do not use, and
    timm imports wandb if it is there, which then listens to the console. For the time of the import both are
    out of reach; whoever needs them later gets the real ones.
    """
    with _IMPORTING:
        if "timm" not in sys.modules:
            with _instead({"wandb": None, **_no_compiler()}):
                prepare_torchvision()
                importlib.import_module("timm")
    return sys.modules["timm"]


def _no_compiler() -> dict[str, ModuleType]:
    compiler, helpers = ModuleType("torch._dynamo"), ModuleType("torch._dynamo.utils")
    compiler.__path__ = []
    compiler.disable = lambda function=None, *_, **__: function or (lambda f: f)  # type: ignore[attr-defined]
    compiler.utils = helpers  # type: ignore[attr-defined]
    helpers.is_compile_supported = lambda kind: False  # type: ignore[attr-defined]
    return {module.__name__: module for module in (compiler, helpers)}


@contextlib.contextmanager
def _instead(modules: Mapping[str, ModuleType | None]) -> Iterator[None]:
    """Have these modules in place of the real ones, unless those are there already. None: cannot be imported."""
    placed = [name for name in modules if name not in sys.modules]
    for name in placed:
        sys.modules[name] = modules[name]  # type: ignore[assignment]
    try:
        yield
    finally:
        for name in placed:
            sys.modules.pop(name, None)


def import_openvino() -> Any:
    """OpenVINO without its telemetry: with that module out of reach it falls back to a stub that sends nothing."""
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    return importlib.import_module("openvino")


def offline(name: str = "HF_HUB_OFFLINE") -> bool:
    """Whether weights may not be fetched: the user has to ask for the network."""
    return os.environ.get(name, "1") not in ("0", "false", "no")
