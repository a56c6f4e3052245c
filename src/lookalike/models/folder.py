"""A model on disk: `config.json`, `model.safetensors`, `README.md` (the card)."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from lookalike._version import __version__
from lookalike.core import folders
from lookalike.core.errors import LookalikeError
from lookalike.core.files import atomic_folder, check_format, read_json, recover_folder, stamp, write_json, write_text
from lookalike.core.run import Run
from lookalike.data.decoding import Preprocess
from lookalike.models import backbones, card
from lookalike.models.heads import BlockLinear
from lookalike.models.norms import make_norm, name_of
from lookalike.models.prototypes import Prototypes

if TYPE_CHECKING:
    from lookalike.models.embedder import Embedder

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"


def find(name_or_path: str | Path) -> Path | None:
    """The model folder meant, if a folder is meant at all; a run stands for the model in it."""
    for path in (Path(name_or_path), folders.runs() / name_or_path):
        if Run.is_run(path):
            if not (path / "model").is_dir():
                raise LookalikeError(f"The run `{path}` has no model yet: let it finish, or --resume it.")
            return path / "model"
        if not path.exists():
            recover_folder(path)
        if (path / CONFIG).is_file() or (path.is_dir() and str(name_or_path) not in backbones.BUILTIN):
            return path
    path = Path(name_or_path)
    if path.is_file():
        raise LookalikeError(f"`{path}` is a file: give it as `weights` of the timm model it belongs to.")
    if isinstance(name_or_path, Path) or len(path.parts) > 1 or path.is_absolute():
        raise LookalikeError(f"There is no model folder at `{path}`.")
    return None


def save(model: Embedder, path: Path, results: dict[str, Any] | None) -> None:
    if results is not None:
        model.card.update(results)
    config = stamp(
        "model",
        {
            "name": model.name,
            "architecture": model.architecture,
            "pooling": model.pooling.name,
            "head": model.dim if isinstance(model.head, nn.Linear) else None,
            **({"head_blocks": model.head.blocks} if isinstance(model.head, BlockLinear) else {}),
            "norm": name_of(model.norm),
            "classes": model.classifier.out_features if model.classifier is not None else None,
            "preprocess": model.preprocess.to_json(),
            "fingerprint": model.fingerprint(),
            "parent": model.parent,
            "card": model.card,
            "lookalike": __version__,
            "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        },
    )
    tensors = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    with atomic_folder(path) as part:
        write_json(part / CONFIG, config)
        save_file(tensors, part / WEIGHTS, metadata={"format": "pt"})
        write_text(part / CARD, card.render(model, config))


def load(kind: type[Embedder], path: Path, *, pooling: str | None = None, size: int | None = None) -> Embedder:
    if not (path / CONFIG).is_file():
        raise LookalikeError(f"`{path}` is a folder but not a model: there is no `{CONFIG}` in it.")
    config = check_format("model", read_json(path / CONFIG, "model's configuration"), path)
    tensors = _read(path / WEIGHTS)
    try:
        preprocess = Preprocess.from_json({**config["preprocess"], **({"size": size} if size else {})})
        model = kind(
            backbones.create(config["architecture"], preprocess.size),
            preprocess,
            name=config["name"],
            architecture=config["architecture"],
            pooling=pooling or config["pooling"],
            card=config["card"],
            parent=config["parent"],
        )
        if config["head"]:
            model.head = nn.Linear(model.feature_dim, config["head"])
        if config.get("head_blocks"):
            model.head = BlockLinear.of(model.head, config["head_blocks"])
        model.norm = make_norm(config.get("norm", "none"), model.dim)
        if config["classes"]:
            model.classifier = nn.Linear(model.dim, config["classes"])
        model.prototypes = Prototypes.among(tensors)
        model.load_state_dict(tensors, strict=True)
    except (KeyError, TypeError, RuntimeError) as error:
        first = str(error).strip().splitlines()[0]
        raise LookalikeError(f"The model `{path}` is damaged: its parts do not fit together ({first}).") from error
    return model


def _read(path: Path) -> dict[str, torch.Tensor]:
    if not path.is_file():
        raise LookalikeError(f"The model `{path.parent}` is damaged: `{path.name}` is missing.")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise LookalikeError(f"The model `{path.parent}` is damaged: `{path.name}` is cut short or changed.") from error
