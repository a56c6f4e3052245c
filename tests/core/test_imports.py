from __future__ import annotations

import importlib
import subprocess
import sys

import pytest
from tests.helpers import ROOT

from lookalike.core.imports import offline, package_versions

FRESH = """
import sys
from lookalike.core.imports import import_timm
import torch
timm = import_timm()
assert import_timm() is timm
model = timm.create_model("tf_efficientnet_lite0", num_classes=0)
print(tuple(model(torch.zeros(1, 3, 64, 64)).shape))
print([name for name in ("wandb", "torch._dynamo", "torch._dynamo.utils", "sympy") if name in sys.modules])
import torch._dynamo.utils
print(torch._dynamo.config.cache_size_limit > 0, torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1)).item())
"""


def test_timm_can_be_imported_in_a_fresh_process() -> None:
    """Beside a CPU build of torch, torchvision's import fails until its two operators are declared.

    The compiler of torch is not imported with it, and the real one is there for whoever asks later.
    """
    done = subprocess.run([sys.executable, "-c", FRESH], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["(1, 1280)", "[]", "True 2.0"], done.stderr


def test_nothing_is_fetched_unless_the_user_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    assert offline()
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    assert not offline()


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


def test_versions_name_what_decides_a_result() -> None:
    assert {"python", "lookalike", "torch", "numpy"} <= set(package_versions())
