from __future__ import annotations

import importlib.util
from importlib.metadata import PackageNotFoundError
from typing import Any

import pytest

from lookalike.core import device, files
from lookalike.doctor import doctor as doctor_function


@pytest.fixture
def module() -> Any:
    import sys

    return sys.modules["lookalike.doctor"]


def parts(health: Any) -> dict[str, Any]:
    return {part.name: part for part in health.parts}


def test_everything_is_looked_at(module: Any) -> None:
    health = doctor_function()
    found = parts(health)
    assert health.ok
    assert found["torch"].state == "ok" and found["torch"].cost.endswith("MB")
    assert found["openvino"].state == "ok"
    assert {"heif", "disk", "device", "processor"} <= set(found)
    assert "no license" in health.license and "model.weights" in health.license
    assert all(part.how for part in health.parts if part.state != "ok")


def test_what_is_missing_is_told_with_its_cost_and_how_to_get_it(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = {"openvino", "pillow_heif", "qdrant_edge"}
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name in gone else real(name, *a))
    monkeypatch.setattr(module, "import_timm", lambda: None)
    health = doctor_function()
    found = parts(health)
    assert found["openvino"].state == "slow" and "slower" in found["openvino"].cost
    assert found["heif"].state == "missing" and found["heif"].how == "pip install 'lookalike[heif]'"
    assert found["qdrant-edge-py"].state == "missing"
    assert not health.ok, "what is required is missing"


def test_an_import_that_breaks_is_found(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr(module, "import_timm", broken)
    health = doctor_function()
    assert not health.ok
    assert "torchvision::nms" in parts(health)["timm"].what


def test_slow_machines_and_full_disks(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "import_timm", lambda: None)
    monkeypatch.setattr(device, "available", lambda: ["cpu"])
    monkeypatch.setattr(device, "load_average", lambda: 8.0)
    monkeypatch.setattr(files, "free_bytes", lambda path: 1_000_000)
    found = parts(doctor_function())
    assert [found[name].state for name in ("device", "processor", "disk")] == ["slow", "slow", "slow"]
    monkeypatch.setattr(device, "available", lambda: ["cuda", "cpu"])
    monkeypatch.setattr(device, "load_average", lambda: None)
    monkeypatch.setattr(files, "free_bytes", lambda path: 10**12)
    found = parts(doctor_function())
    assert [found[name].state for name in ("device", "processor", "disk")] == ["ok", "ok", "ok"]


def test_a_package_without_metadata_is_not_installed(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(module, "distribution", unknown)
    assert module._installed("torch") is None
