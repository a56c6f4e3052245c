"""Imports that need care: names of packages on first use, and libraries that must be prepared before they load."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import platform
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any

_LIBRARIES: list[Any] = []  # a torch Library is undone when it is garbage-collected
_IMPORT_LOCK = threading.Lock()
_PACKAGES = (
    *("lookalike", "torch", "timm", "numpy", "openvino", "pytorch-metric-learning"),
    *("pillow", "simplejpeg", "onnxruntime", "transformers", "open-clip-torch"),
)


def lazy_exports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package whose names are imported on first use.

    torch and timm take seconds to import, so `import lookalike` must not. The names and their modules are
    read from the `if TYPE_CHECKING:` block of the package's `__init__.py`: a public name is written there
    and in `__all__`, and linters compare the two.

    Args:
        package: The package's `__name__`.

    Returns:
        The two functions, to be assigned to `__getattr__` and `__dir__` of the package.

    Example:
        In the `__init__.py` of a package::

            if TYPE_CHECKING:
                from lookalike.models.embedder import Embedder

            __all__ = ["Embedder"]
            __getattr__, __dir__ = lazy_exports(__name__)
    """

    @functools.cache
    def modules() -> dict[str, str]:
        import ast
        import inspect

        tree = ast.parse(inspect.getsource(sys.modules[package]))
        blocks = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
        imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
        return {alias.name: str(node.module) for node in imports for alias in node.names}

    def getattr_(name: str) -> Any:
        if name.startswith("__") or name not in modules():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = modules()[name]
        if module == package:  # a subpackage
            return importlib.import_module(f"{package}.{name}")
        value = getattr(importlib.import_module(module), name)
        setattr(sys.modules[package], name, value)
        return value

    def dir_() -> list[str]:
        return sorted(sys.modules[package].__all__)

    return getattr_, dir_


def prepare_torchvision() -> None:
    """Make `import torchvision` work beside a CPU build of torch.

    Its binary operators need CUDA libraries; without them the import itself fails on two missing
    operators. Declaring these lets everything in Python work; nms and roi_align stay unavailable.
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
        _LIBRARIES.append(library)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module("torchvision")


def import_timm() -> Any:
    """Import timm in two seconds of processor time instead of seven.

    torchvision and timm import torch's compiler for a decorator and an optimizer that are not used here, and
    timm imports wandb if it is installed, which then captures the console. Both are hidden during the import;
    code that needs them later gets the real ones.
    """
    with _IMPORT_LOCK:
        if "timm" not in sys.modules:
            with _replaced_modules({"wandb": None, **_compiler_stubs()}):
                prepare_torchvision()
                importlib.import_module("timm")
    return sys.modules["timm"]


def _compiler_stubs() -> dict[str, ModuleType]:
    compiler, helpers = ModuleType("torch._dynamo"), ModuleType("torch._dynamo.utils")
    compiler.__path__ = []
    compiler.disable = lambda function=None, *_, **__: function or (lambda f: f)  # type: ignore[attr-defined]
    compiler.utils = helpers  # type: ignore[attr-defined]
    helpers.is_compile_supported = lambda kind: False  # type: ignore[attr-defined]
    return {module.__name__: module for module in (compiler, helpers)}


@contextlib.contextmanager
def _replaced_modules(modules: Mapping[str, ModuleType | None]) -> Iterator[None]:
    """Put stand-ins (None: not importable) in place of modules that are not imported yet."""
    replaced = [name for name in modules if name not in sys.modules]
    for name in replaced:
        sys.modules[name] = modules[name]  # type: ignore[assignment]
    try:
        yield
    finally:
        for name in replaced:
            sys.modules.pop(name, None)


def import_openvino() -> Any:
    """Import OpenVINO without its telemetry, whose absence it replaces by a stub that sends nothing."""
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    return importlib.import_module("openvino")


def function_name(function: Callable[..., Any]) -> str:
    """Return `package.module:name`, by which `import_function` finds a function in another process."""
    return f"{function.__module__}:{function.__qualname__}"


def import_function(name: str) -> Any:
    """Import a function, a method or a class by `package.module:name`."""
    module, _, path = name.partition(":")
    return functools.reduce(getattr, path.split("."), importlib.import_module(module))


def offline(*, unset: bool = True) -> bool:
    """Return whether downloads are off; `unset` says so where the user did not set `HF_HUB_OFFLINE`."""
    return os.environ.get("HF_HUB_OFFLINE", str(int(unset))).lower() not in ("", "0", "false", "no", "off")


def package_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that decide a result."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions
