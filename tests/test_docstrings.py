"""Examples in docstrings are run; every public name says what its arguments are."""

from __future__ import annotations

import ast
import doctest
import importlib
from pathlib import Path

import numpy as np
import pytest

from tests.helpers import ROOT, make_images

SOURCE = ROOT / "src"
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
MODULES = sorted(
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
    for path in (SOURCE / "lookalike").rglob("*.py")
    if ">>>" in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name: str, tmp_path: Path) -> None:
    import torch

    import lookalike as la

    module = importlib.import_module(name)
    make_images(tmp_path / "photos")
    runner = doctest.DocTestRunner(optionflags=FLAGS, verbose=False)
    for test in doctest.DocTestFinder(exclude_empty=True).find(module, name):
        torch.manual_seed(0)
        test.globs |= {"np": np, "torch": torch, "la": la}
        runner.run(test)
    assert runner.summarize(verbose=False).failed == 0


def _public(package: Path) -> list[str]:
    """The names of a package's `__all__`."""
    for node in ast.parse(package.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    return []


PUBLIC = {
    ".".join(path.parent.relative_to(SOURCE).parts): _public(path)
    for path in sorted((SOURCE / "lookalike").rglob("__init__.py"))
}


@pytest.mark.parametrize("package", [name for name, names in PUBLIC.items() if names])
def test_public_names_are_documented(package: str) -> None:
    """A summary, and an entry under `Args:` for every parameter (ruff's D417 checks the entries)."""
    module = importlib.import_module(package)
    for name in PUBLIC[package]:
        if name.startswith("__"):
            continue
        value = getattr(module, name)
        if callable(value):
            assert (value.__doc__ or "").strip(), f"{package}.{name} has no docstring"
