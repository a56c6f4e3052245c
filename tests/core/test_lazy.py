"""Public names are imported on first use, and every package has all of its own."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest
from tests.helpers import ROOT

PACKAGES = ["lookalike", *(f"lookalike.{path.parent.name}" for path in ROOT.glob("src/lookalike/*/__init__.py"))]


@pytest.mark.parametrize("name", PACKAGES)
def test_every_public_name_is_there(name: str) -> None:
    package = importlib.import_module(name)
    for public in getattr(package, "__all__", ()):
        assert getattr(package, public) is not None
        assert public in dir(package)


def test_an_unknown_name_is_an_attribute_error() -> None:
    import lookalike

    with pytest.raises(AttributeError, match="module 'lookalike' has no attribute 'trian'"):
        _ = lookalike.trian
    with pytest.raises(ImportError):
        exec("from lookalike.data import nothing")


def test_importing_a_package_imports_nothing_heavy() -> None:
    heavy = ("torch", "pyarrow", "timm", "PIL")
    code = f"import sys, {', '.join(PACKAGES)}; print([name for name in {heavy!r} if name in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
