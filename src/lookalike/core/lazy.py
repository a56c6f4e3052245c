"""Import the public names of a package on first use: torch and timm take seconds, `import lookalike` does not."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any


def lazy_exports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package whose names are imported on first use.

    The names and their modules are read from the `if TYPE_CHECKING:` block of the package's
    `__init__.py`, so a public name is written there and in `__all__`, and linters compare the two.

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
        return sorted({*vars(sys.modules[package]), *modules()})

    return getattr_, dir_
