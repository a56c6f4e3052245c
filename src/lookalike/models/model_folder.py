"""Model folders: ``config.json``, ``model.safetensors`` and the model card ``README.md``."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from lookalike._version import __version__
from lookalike.core import artifacts, files, folders
from lookalike.core.errors import LookalikeError
from lookalike.core.locks import wait_for_lock
from lookalike.core.run import Run
from lookalike.core.storage import Mirror, is_url, location
from lookalike.data.decoding import Preprocess
from lookalike.models import backbones, hub, open_clip, pretrained_folder, sentence_modules
from lookalike.models.embedder import Embedder
from lookalike.models.heads import BlockLinear, make_norm, norm_name
from lookalike.models.inference.compiled_embedder import config_checksum, read_config
from lookalike.models.prototypes import Prototypes

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
LOCAL = "local-dir:"


def check_name(model: object) -> None:
    """Raise for what is neither a name nor a path: a network of the user's own, as a rule."""
    if not isinstance(model, (str, os.PathLike)):
        raise LookalikeError(
            f"A {type(model).__name__} is no name or folder of a model: a network of your own becomes one with "
            'Embedder(module, preprocess, factory="package.module:function").'
        )


def _fetched(url: Path) -> Path:
    """The copy of a model folder, or of a run's model, in a bucket; libraries read weights from a disk."""
    tree: Any = url.listed()  # type: ignore[attr-defined]
    place = tree / "model" if (tree / "model" / CONFIG).is_file() else tree
    if not (place / CONFIG).is_file():
        raise LookalikeError(f"There is no model folder at `{url}`.")
    local = folders.cache("models") / files.hash_bytes(str(url)) / "model"
    local.parent.mkdir(parents=True, exist_ok=True)
    with wait_for_lock(local.parent / ".lock"):
        artifacts.hold(local)
        Mirror(place, local).fetch()
    return local


def find(name_or_path: str | Path) -> Path | None:
    """Find the folder of a path, a run, a run's name or a model of the Hub; ``None`` for an architecture's name."""
    check_name(name_or_path)
    if is_url(name_or_path):
        return _fetched(location(name_or_path))
    if isinstance(name_or_path, str):
        plain = name_or_path.removeprefix(open_clip.PREFIX)
        if plain.startswith(LOCAL):
            path = Path(plain.removeprefix(LOCAL)).expanduser()
            if not path.is_dir():
                raise LookalikeError(f"There is no model folder at `{path}`.")
            return path
        if plain != name_or_path and not hub.is_id(plain):
            return None
        name_or_path = plain
    for path in (Path(name_or_path), folders.runs() / name_or_path):
        if Run.is_run(path):
            for model in (path / "model", path / ".model.old"):  # while, or where a kill ended that, it is replaced
                if model.is_dir():
                    return model
            raise LookalikeError(f"The run `{path}` has no model yet: let it finish, or resume it with --resume.")
        if not path.exists():
            files.recover_folder(path)
        if (path / CONFIG).is_file() or (path.is_dir() and str(name_or_path) not in backbones.BUILTIN):
            return path
    if hub.is_id(name_or_path):
        return hub.fetch(str(name_or_path), pretrained_folder.is_whole)
    path = Path(name_or_path)
    if path.is_file():
        raise LookalikeError(f"`{path}` is a file: pass it as `weights` of the timm model it belongs to.")
    if isinstance(name_or_path, Path) or len(path.parts) > 1 or path.is_absolute():
        raise LookalikeError(f"There is no model folder at `{path}`.")
    return None


def save(model: Embedder, path: Path, card: dict[str, Any] | None = None) -> None:
    """Write a model folder, replacing an existing one as a whole; see ``Embedder.save_pretrained``."""
    if card is not None:
        model.card.update(card)
    if model.architecture.startswith(backbones.OWN):
        raise LookalikeError(
            f"`{model.name}` is a network of your own, which could not be loaded again: tell how to make it, with "
            'Embedder(module, preprocess, factory="package.module:function").'
        )
    document = {
        "name": model.name,
        "architecture": model.architecture,
        **({"architecture_config": model.architecture_config} if model.architecture_config else {}),
        "pooling": model.pooling.name,
        "head": model.dim if isinstance(model.head, nn.Linear) else None,
        **({"head_blocks": model.head.blocks} if isinstance(model.head, BlockLinear) else {}),
        "norm": norm_name(model.norm),
        "classes": model.classifier.out_features if model.classifier is not None else None,
        "preprocess": model.preprocess.to_json(),
        "fingerprint": model.fingerprint(),
        "parent": model.parent,
        "card": model.card,
        "lookalike": __version__,
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
    config = files.stamp("model", document)
    foreign = sentence_modules.config_for(model)
    native = bool(foreign) and not foreign.keys() & config.keys()
    config |= foreign if native else {}
    tensors = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    with files.atomic_folder(path) as part:
        save_file(tensors, part / WEIGHTS, metadata={"format": "pt"})
        config = json.loads(json.dumps({**config, "checksum": files.checksum(part / WEIGHTS)}, default=files.to_json))
        files.write_json(part / CONFIG, {**config, "config_checksum": config_checksum(config)})
        files.write_text(part / CARD, render_card(model, config))
        sentence_modules.write(model, part, native)


def load(kind: type[Embedder], path: Path, *, pooling: str | None = None, size: int | None = None) -> Embedder:
    """Read a model folder, with another pooling or input size if given; the model is on the CPU."""
    if not (path / CONFIG).is_file():
        raise LookalikeError(f"`{path}` is not a model folder: there is no `{CONFIG}` in it.")
    config = read_config(path)
    tensors, whole = _read(path / WEIGHTS, config.get("checksum"))
    try:
        preprocess = Preprocess.from_json({**config["preprocess"], **({"size": size} if size else {})})
        about = {name: config[name] for name in ("name", "architecture", "card", "parent")}
        about |= {"architecture_config": config.get("architecture_config"), "pooling": pooling or config["pooling"]}
        backbone = backbones.create_backbone(about["architecture"], preprocess.size, about["architecture_config"])
        model = kind(backbone, preprocess, **about)
        for name, kind_of_layer in (("head", "head"), ("classes", "classifier")):
            if config[name] and config[name] != len(tensors[f"{kind_of_layer}.weight"]):  # before its memory is taken
                raise ValueError(f"{config[name]} outputs of the {kind_of_layer}")
        if config["head"]:
            model.head = nn.Linear(model.feature_dim, config["head"])
        if config.get("head_blocks"):
            model.head = BlockLinear.from_linear(model.head, config["head_blocks"])
        model.norm = make_norm(config.get("norm", "none"), model.dim)
        if config["classes"]:
            model.classifier = nn.Linear(model.dim, config["classes"])
        whole()
        model.prototypes = Prototypes.from_state_dict(tensors)
        model.load_state_dict(tensors, strict=True)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise LookalikeError(
            f"The model `{path}` is damaged: its configuration and weights do not match ({first})."
        ) from error
    return model


def _read(path: Path, expected: str | None) -> tuple[dict[str, torch.Tensor], Callable[[], None]]:
    """The tensors, and a function that raises unless they are those that were saved.

    The file is compared in a thread while the network is made, which hides nearly all of its time.
    """
    if not path.is_file():
        raise LookalikeError(f"The model `{path.parent}` is damaged: `{path.name}` is missing.")
    damaged = LookalikeError(
        f"The model `{path.parent}` is damaged: `{path.name}` is incomplete or was changed. "
        "Put a whole copy in its place, or train the model again."
    )
    pool = ThreadPoolExecutor(1)
    actual = pool.submit(files.checksum, path)
    pool.shutdown(wait=False)

    def whole() -> None:
        if actual.result() != expected:
            raise damaged

    try:
        return load_file(path), whole
    except SafetensorError as error:
        raise damaged from error


# --- the model card ---


def render_card(model: Embedder, config: Mapping[str, Any]) -> str:
    """Render the model card as Markdown.

    ``model.card`` may hold ``description``, ``data``, ``method``, ``results``, ``limits`` and ``license``.
    """
    card, pre = model.card, model.preprocess
    described = f"Embeds an image as a vector of {model.dim} dimensions; similar images have similar vectors."
    limits = f"## Limits\n\n{card['limits']}\n\n" if card.get("limits") else ""
    crop = "squashed" if pre.squash else f"center crop {pre.crop:g}"
    parts = {
        "backbone": f"`{model.architecture}` ({card.get('backbone', 'source of the weights unknown')})",
        "pooling": model.pooling.name,
        "embedding": f"{model.dim} dimensions, unit length, cosine similarity",
        "images": f"{pre.size} × {pre.size} px, {crop}, {pre.interpolation}",
        "normalization": f"mean {_numbers(pre.mean)}, standard deviation {_numbers(pre.std)}",
        **{key: _cell(card[key]) for key in ("data", "method") if card.get(key)},
        "fingerprint": f"`{config['fingerprint']}`",
        **({"derived from": f"`{model.parent}`"} if model.parent else {}),
        "written by": f"lookalike {config['lookalike']}, format {config['format']}",
    }
    return f"""---
{yaml.safe_dump(card_header(model), sort_keys=False, allow_unicode=True).rstrip()}
---

# {model.name}

{card.get("description") or described}

```python
import lookalike as la

model = la.Embedder.from_pretrained("path/to/this/folder")
vectors = model.encode(["a.jpg", "b.jpg"])
model.similarity(vectors, vectors)
```

## Measured results

{_results(card.get("results"))}

## Model

{_table(["part", "value"], parts.items())}

{limits}## License

{card.get("license") or "The license of these weights is unknown."}
"""


def card_header(model: Embedder) -> dict[str, Any]:
    """The YAML header of the model card, as the Hub reads it."""
    card = model.card
    stated = str(card.get("license") or "")
    known = re.fullmatch(r"[a-z0-9][a-z0-9.-]*", stated)
    header: dict[str, Any] = {
        "library_name": "lookalike",
        "pipeline_tag": "image-feature-extraction",
        "tags": ["image-search", "embeddings", "sentence-transformers"],
        "license": stated if known else "other",
    }
    if card.get("base_model"):
        header["base_model"] = card["base_model"]
    data = re.split("[:,]", str(card.get("data") or ""))[0]
    if re.fullmatch(r"[\w.-]+(/[\w.-]+)?", data):
        header["datasets"] = [data]
    results = card.get("results") or {}
    if not isinstance(results, Mapping):  # several models, of which this is one
        results = next((row for row in results if "(this one)" in str(row.get("model"))), {})
    metrics = [
        {"type": key, "name": key, "value": value}
        for key, one in results.items()
        if isinstance(value := one.get("value") if isinstance(one, Mapping) else one, (int, float))
    ]
    if metrics:
        about = {"name": data or "the user's images", "type": data or "images"}
        task = {"type": "image-feature-extraction", "name": "Image retrieval"}
        rows = [{"task": task, "dataset": about, "metrics": metrics}]
        header["model-index"] = [{"name": model.name, "results": rows}]
    return header


def _results(results: Any) -> str:
    if not results:
        return "This model has not been evaluated yet; run `lookalike evaluate`."
    if isinstance(results, Mapping):
        return _table(["metric", "value"], [[key, _cell(value)] for key, value in results.items()])
    columns = list(dict.fromkeys(key for row in results for key in row))
    return _table(columns, [[_cell(row.get(key, "")) for key in columns] for row in results])


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = [[str(cell).replace("|", "\\|").replace("\n", " ") for cell in row] for row in [columns, *rows]]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return "\n".join([lines[0], f"| {' | '.join(['---'] * len(columns))} |", *lines[1:]])


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, Mapping):
        if {"value", "low", "high"} <= value.keys():
            return f"{_cell(value['value'])} ({_cell(value['low'])} to {_cell(value['high'])})"
        return ", ".join(f"{key} {_cell(inner)}" for key, inner in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_cell, value))
    return str(value)


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)
