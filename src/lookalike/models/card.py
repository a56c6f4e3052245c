"""The model card: what a model is, what was measured with it, and what is known of its license."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lookalike.models.embedder import Embedder


def render(model: Embedder, config: Mapping[str, Any]) -> str:
    """The card as Markdown. `model.card` may hold `description`, `data`, `method`, `results`, `limits`, `license`."""
    card, pre = model.card, model.preprocess
    lines = [
        "---",
        "library_name: lookalike",
        "pipeline_tag: image-feature-extraction",
        "tags: [image-search, embeddings]",
        "---",
        "",
        f"# {model.name}",
        "",
        card.get("description") or f"Turns an image into a vector of {model.dim} numbers; similar images lie close.",
        "",
        "```python",
        "import lookalike as la",
        "",
        'model = la.Embedder.from_pretrained("path/to/this/folder")',
        'vectors = model.encode(["a.jpg", "b.jpg"])',
        "model.similarity(vectors, vectors)",
        "```",
        "",
        "## Measured results",
        "",
        *_results(card.get("results")),
        "",
        "## What it is",
        "",
        *_table(
            ["part", "value"],
            [
                ["backbone", f"`{model.architecture}` ({card.get('backbone', 'weights not named')})"],
                ["pooling", model.pooling.name],
                ["vector", f"{model.dim} numbers, length one, cosine similarity"],
                ["images", f"{pre.size} × {pre.size} px, center crop {pre.crop:g}, {pre.interpolation}"],
                ["normalization", f"mean {_numbers(pre.mean)}, standard deviation {_numbers(pre.std)}"],
                *[[key, _cell(card[key])] for key in ("data", "method") if card.get(key)],
                ["fingerprint", f"`{config['fingerprint']}`"],
                *([["made from", f"`{model.parent}`"]] if model.parent else []),
                ["written by", f"lookalike {config['lookalike']}, format {config['format']}"],
            ],
        ),
        "",
    ]
    if card.get("limits"):
        lines += ["## Limits", "", str(card["limits"]), ""]
    lines += ["## License", "", card.get("license") or "Nothing is known of the license of these weights.", ""]
    return "\n".join(lines)


def _results(results: Any) -> list[str]:
    if not results:
        return ["Nothing was measured with this model yet: `lookalike evaluate` does it."]
    if isinstance(results, Mapping):
        return _table(["measure", "value"], [[key, _cell(value)] for key, value in results.items()])
    columns = list(dict.fromkeys(key for row in results for key in row))
    return _table(columns, [[_cell(row.get(key, "")) for key in columns] for row in results])


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

    return [line(columns), line(["---"] * len(columns)), *map(line, rows)]


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
