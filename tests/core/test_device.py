from __future__ import annotations

import re

import pytest
import torch
from tests.helpers import ROOT

from lookalike.core import device
from lookalike.core.errors import LookalikeError


def test_auto_takes_the_best_and_the_processor_is_always_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device.available()[-1] == "cpu"
    monkeypatch.setattr(device, "available", lambda: ["cuda", "cpu"])
    assert device.resolve("auto") == torch.device("cuda")
    assert device.resolve("cuda:1") == torch.device("cuda:1")
    assert device.resolve(torch.device("cpu")) == torch.device("cpu")


def test_a_missing_or_misspelt_device_is_an_error_never_a_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "available", lambda: ["cpu"])
    with pytest.raises(LookalikeError, match="no device `cuda` that torch can use: there is cpu"):
        device.resolve("cuda")
    with pytest.raises(LookalikeError, match=r"`cudda` is not a device; did you mean `cuda`\?"):
        device.resolve("cudda")


@pytest.mark.device("cuda")
def test_cuda_is_found_where_it_is() -> None:
    assert device.resolve("auto").type == "cuda"


@pytest.mark.device("mps")
def test_mps_is_found_where_it_is() -> None:
    assert device.resolve("auto").type == "mps"


@pytest.mark.device("xpu")
def test_xpu_is_found_where_it_is() -> None:
    assert device.resolve("xpu").type == "xpu"


def test_threads_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOKALIKE_THREADS", "3")
    assert device.threads() == 3
    for wrong in ("0", "two", "-1"):
        monkeypatch.setenv("LOOKALIKE_THREADS", wrong)
        with pytest.raises(LookalikeError, match="LOOKALIKE_THREADS"):
            device.threads()
    monkeypatch.delenv("LOOKALIKE_THREADS")
    assert device.threads() >= 1


def test_no_package_but_core_names_a_device() -> None:
    # Not in docstrings (``"cpu"``), nor the name of a check of the doctor.
    literal = re.compile(r"""(?<!\[)(?<!`)(?<!Check\()["'](cpu|cuda|mps|xpu)(:\d+)?["']|\.cuda\(\)""")
    literals = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in sorted((ROOT / "src" / "lookalike").rglob("*.py"))
        if "core" not in path.parts
        for line in path.read_text(encoding="utf-8").splitlines()
        if literal.search(line.split("#")[0])
    ]
    assert literals == []
