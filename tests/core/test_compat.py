from __future__ import annotations

import subprocess
import sys

import pytest

from lookalike.core.compat import offline

FRESH = """
import sys
from lookalike.core.compat import import_timm
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
