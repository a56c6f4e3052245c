from __future__ import annotations

import subprocess
import sys

import pytest

from lookalike.core.compat import offline


def test_timm_can_be_imported_in_a_fresh_process() -> None:
    """Beside a CPU build of torch, torchvision's import fails until its two operators are declared."""
    code = "from lookalike.core.compat import import_timm; print(len(import_timm().list_models()) > 500)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "True", done.stderr


def test_nothing_is_fetched_unless_the_user_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    assert offline()
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    assert not offline()
