from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

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
def test_cuda_is_detected() -> None:
    assert device.resolve("auto").type == "cuda"


@pytest.mark.device("mps")
def test_mps_is_detected() -> None:
    assert device.resolve("auto").type == "mps"


@pytest.mark.device("xpu")
def test_xpu_is_detected() -> None:
    assert device.resolve("xpu").type == "xpu"


def test_threads_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOKALIKE_THREADS", "3")
    assert device.threads() == 3
    for wrong in ("0", "two", "-1"):
        monkeypatch.setenv("LOOKALIKE_THREADS", wrong)
        with pytest.raises(LookalikeError, match="LOOKALIKE_THREADS"):
            device.threads()
    monkeypatch.delenv("LOOKALIKE_THREADS")
    monkeypatch.setenv("OMP_NUM_THREADS", "5,2")
    assert device.threads() == 5
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert device.threads() >= 1


V1 = "12:memory:/docker/ab\n4:cpu,cpuacct:/docker/ab\n"


@pytest.mark.parametrize(
    ("groups", "files", "cpus"),
    [
        pytest.param("0::/\n", {"cpu.max": "200000 100000\n"}, 2, id="v2 container"),
        pytest.param("0::/\n", {"cpu.max": "max 100000\n"}, 64, id="v2 without a limit"),
        pytest.param("0::/a/b\n", {"a/cpu.max": "350000 100000", "a/b/cpu.max": "max 100000"}, 3, id="v2 parent"),
        pytest.param("0::/a\n", {"a/cpu.max": "50000 100000"}, 1, id="v2 half a core"),
        pytest.param(
            V1, {"cpu,cpuacct/cpu.cfs_quota_us": "200000\n", "cpu,cpuacct/cpu.cfs_period_us": "100000\n"}, 2, id="v1"
        ),
        pytest.param(
            V1,
            {"cpu/docker/ab/cpu.cfs_quota_us": "400000", "cpu/docker/ab/cpu.cfs_period_us": "100000"},
            4,
            id="v1 host",
        ),
        pytest.param(
            V1, {"cpu,cpuacct/cpu.cfs_quota_us": "-1", "cpu,cpuacct/cpu.cfs_period_us": "100000"}, 64, id="v1 no limit"
        ),
        pytest.param("1:name=systemd:/x\n0::/x\n", {"unified/x/cpu.max": "300000 100000"}, 3, id="hybrid"),
        pytest.param("0::/\n", {}, 64, id="no controller"),
    ],
)
def test_a_container_with_a_cpu_quota_does_not_start_a_thread_for_every_core_of_the_host(
    groups: str, files: dict[str, str], cpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {"proc/self/cgroup": groups, **{f"sys/fs/cgroup/{k}": v for k, v in files.items()}}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    for name in ("LOOKALIKE_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name)
    quota = device.cpu_quota(tmp_path)
    monkeypatch.setattr(device, "cpu_quota", lambda: quota)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert device.threads() == cpus
    device.configure_openmp()
    assert os.environ.get("OMP_NUM_THREADS") == (None if cpus == 64 else str(cpus))


def test_affinity_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOOKALIKE_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name)
    monkeypatch.setattr(device, "cpu_quota", lambda: 8.0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3, 5}, raising=False)
    assert device.threads() == 3


@pytest.mark.parametrize("chosen", [{}, {"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "ACTIVE"}])
def test_waiting_threads_spin_little_unless_the_user_says_so_also_in_subprocesses(chosen: dict[str, str]) -> None:
    names = ("GOMP_SPINCOUNT", "KMP_BLOCKTIME")
    environment = {k: v for k, v in os.environ.items() if k not in (*names, "OMP_WAIT_POLICY")} | chosen
    show = f"import os; print([os.environ.get(n) for n in {names}])"
    code = f"import lookalike, sys, subprocess; subprocess.run([sys.executable, '-c', {show!r}])"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    expected = [None, None] if "OMP_WAIT_POLICY" in chosen else [chosen.get("GOMP_SPINCOUNT", "1000"), "1"]
    assert done.stdout.strip() == str(expected)


def test_no_package_but_core_names_a_device() -> None:
    # Not in docstrings (``"cpu"``), nor the name of a check of the doctor or of a field with the name of the processor.
    literal = re.compile(r"""(?<!\[)(?<!`)(?<!Check\()["'](cpu|cuda|mps|xpu)(:\d+)?["'](?!: cpu_name)|\.cuda\(\)""")
    literals = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in sorted((ROOT / "src" / "lookalike").rglob("*.py"))
        if "core" not in path.parts
        for line in path.read_text(encoding="utf-8").splitlines()
        if literal.search(line.split("#")[0])
    ]
    assert literals == []
