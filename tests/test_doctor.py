from __future__ import annotations

import importlib.util
from importlib.metadata import PackageNotFoundError
from typing import Any

import pytest

from lookalike import doctor as module
from lookalike.core import device, files
from lookalike.doctor import Check, DoctorReport, doctor


def checks(report: DoctorReport) -> dict[str, Check]:
    return {check.name: check for check in report.checks}


def test_everything_is_checked() -> None:
    report = doctor()
    by_name = checks(report)
    assert report.ok
    assert by_name["torch"].status == "ok" and by_name["torch"].detail.endswith("MB")
    assert by_name["openvino"].status == "ok"
    assert {"heif", "disk", "device", "cpu"} <= set(by_name)
    assert "no license" in report.license and "model.weights" in report.license
    assert all(check.fix for check in report.checks if check.status != "ok")


def test_missing_packages_come_with_their_impact_and_a_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = {"openvino", "pillow_heif", "usearch"}
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name in gone else real(name, *a))
    monkeypatch.setattr(module, "import_timm", lambda: None)
    report = doctor()
    by_name = checks(report)
    assert by_name["openvino"].status == "slow" and "slower" in by_name["openvino"].impact
    assert by_name["heif"].status == "missing" and by_name["heif"].fix == "pip install 'lookalike[heif]'"
    assert by_name["usearch"].status == "missing"
    assert not report.ok, "a required package is missing"


def test_a_failing_import_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr(module, "import_timm", broken)
    report = doctor()
    assert not report.ok
    assert "torchvision::nms" in checks(report)["timm"].detail


def test_slow_machines_and_full_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("device", "cpu", "disk")
    monkeypatch.setattr(module, "import_timm", lambda: None)
    monkeypatch.setattr(device, "available", lambda: ["cpu"])
    monkeypatch.setattr(device, "load_average", lambda: 8.0)
    monkeypatch.setattr(files, "free_bytes", lambda path: 1_000_000)
    by_name = checks(doctor())
    assert [by_name[name].status for name in names] == ["slow", "slow", "slow"]
    monkeypatch.setattr(device, "available", lambda: ["cuda", "cpu"])
    monkeypatch.setattr(device, "load_average", lambda: None)
    monkeypatch.setattr(files, "free_bytes", lambda path: 10**12)
    by_name = checks(doctor())
    assert [by_name[name].status for name in names] == ["ok", "ok", "ok"]


def test_a_package_without_metadata_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str) -> Any:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(module, "distribution", unknown)
    assert module._installed("torch", "torch") is None
