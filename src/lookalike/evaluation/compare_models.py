"""Comparing several models: which one to start from."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lookalike.core.errors import LookalikeError
from lookalike.core.files import format_bytes
from lookalike.core.report_blocks import Figure, Value, Verdict, number
from lookalike.core.run import Run
from lookalike.evaluation import report_sections as sections
from lookalike.evaluation.bootstrap import Interval, PairedDifference
from lookalike.evaluation.report_sections import EvaluatedModel
from lookalike.evaluation.verdicts import interval_text, p_text

if TYPE_CHECKING:
    from lookalike.models import Embedder

LEVEL = 0.05


@dataclass(frozen=True)
class ModelRow:
    """One of the compared models.

    Attributes:
        name: Name of the model.
        metrics: Every metric with its interval.
        to_best: Its recall@1 minus the best model's, paired by query; None for the best.
        p: p-value of that difference, adjusted for the number of models (Holm); None for the best.
        ties: Whether no difference to the best model was found.
        images_per_second: Measured on these images, decoding included.
        bytes: Size of its weights.
        dim: Embedding dimension.
    """

    name: str
    metrics: dict[str, Interval]
    to_best: PairedDifference | None
    p: float | None
    ties: bool
    images_per_second: float
    bytes: int
    dim: int


@dataclass(frozen=True)
class ModelComparison:
    """Result of ``compare(models=…)``; ``str()`` gives the table for a terminal.

    Attributes:
        data: Name of the images.
        queries: Number of queries.
        rows: The models, best first.
        failures: Images that a model could not read, which are left out for all.
    """

    data: str
    queries: int
    rows: list[ModelRow]
    failures: list[Any]

    @property
    def verdict(self) -> str:
        """Which model is best, and which tie with it."""
        best = self.rows[0]
        first = f"{best.name} is best: recall@1 {interval_text(best.metrics['recall@1'])} on {self.queries:,} queries."
        ties = [row for row in self.rows[1:] if row.ties]
        if not ties:
            return f"{first} It is better than all others."
        fastest = max([best, *ties], key=lambda row: row.images_per_second)
        text = f"{first} No difference to it was found for {', '.join(row.name for row in ties)}"
        return f"{text}; the fastest of these is {fastest.name}."

    def to_json(self) -> dict[str, Any]:
        failures = [failure.to_json() for failure in self.failures]
        return {**asdict(self), "failures": failures, "verdict": self.verdict}

    def table(self) -> tuple[list[str], list[list[str]]]:
        """The table as text: a header, and one row a model."""
        keys = [key for key in ("recall@1", "map@r") if key in self.rows[0].metrics]
        head = ["model", *("Recall@1" if key == "recall@1" else "MAP@R" for key in keys)]
        head += ["to the best, points", "", "dim", "vectors of a million", "weights", "images/s"]
        body = []
        for row in self.rows:
            change = row.to_best
            gap = "best"
            if change is not None:
                points = number(100 * change.difference, 1, signed=True)
                gap = f"{points} ({number(100 * change.low, 1)} to {number(100 * change.high, 1)})"
            note = "" if row.p is None else f"tie, {p_text(row.p)}" if row.ties else p_text(row.p)
            cost = [str(row.dim), format_bytes(row.dim * 4_000_000), format_bytes(row.bytes)]
            metrics = [interval_text(row.metrics[key]) for key in keys]
            body.append([row.name, *metrics, gap, note, *cost, number(row.images_per_second, 0)])
        return head, body

    def __str__(self) -> str:
        head, body = self.table()
        widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
        lines = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in (head, *body)]
        if self.failures:
            lines.append(f"{len(self.failures):,} images could not be read and are left out.")
        return "\n".join([self.verdict, "", *lines])


def encode_all(
    sources: Sequence[str | Path | Embedder], table: Any, load: Any, options: dict[str, Any]
) -> tuple[list[dict[str, Any]], np.ndarray, list[Any]]:
    """Embed the images by one model after the other; only one of them is in memory at a time.

    Args:
        sources: The models.
        table: The images.
        load: Loads a model.
        options: Options of ``Embedder.encode``.

    Returns:
        Per model its name, vectors and costs; which images every model read; and the failures.
    """
    from lookalike.models.inference.pipeline import CropEncoder
    from lookalike.models.inference.torch_runtime import MIN_IMAGES

    made: list[dict[str, Any]] = []
    readable = np.ones(len(table), bool)
    masks, failures = [], []
    for source in sources:
        model = load(source)
        name = model.name if all(model.name != other["name"] for other in made) else f"{model.name} ({len(made) + 1})"
        if options["runtime"] == "auto" and len(table) >= MIN_IMAGES:
            CropEncoder(model, fast=True)  # a conversion is no cost of embedding: it is made once
        start = time.perf_counter()
        rows, failures = model.encode(table, on_error="skip", **options)
        seconds = time.perf_counter() - start
        mask = np.ones(len(table), bool)
        mask[[failure.index for failure in failures]] = False
        masks.append(mask)
        readable &= mask
        count = sum(value.numel() * value.element_size() for value in model.state_dict().values())
        made.append({"name": name, "rows": rows, "bytes": count, "dim": model.dim, "speed": len(table) / seconds})
    for one, mask in zip(made, masks, strict=True):
        one["rows"] = one["rows"][readable[mask]]
    return made, readable, failures


def rank(
    data: str, models: list[EvaluatedModel], costs: list[dict[str, Any]], failures: list[Any], out: Path | None
) -> ModelComparison:
    """Order models by recall@1 and test each against the best, paired by query."""
    order = sorted(range(len(models)), key=lambda n: -models[n].intervals["recall@1"].value)
    best = models[order[0]]
    changes = {n: sections.differences(best, models[n])["recall@1"] for n in order[1:]}
    adjusted: dict[int, float] = {}
    largest = 0.0
    for place, n in enumerate(sorted(changes, key=lambda n: changes[n].p)):  # Holm
        largest = adjusted[n] = max(largest, min(1.0, changes[n].p * (len(changes) - place)))
    rows = []
    for n in order:
        p = adjusted.get(n)
        costs_of = costs[n]["speed"], costs[n]["bytes"], costs[n]["dim"]
        row = ModelRow(models[n].name, models[n].intervals, changes.get(n), p, p is not None and p >= LEVEL, *costs_of)
        rows.append(row)
    done = ModelComparison(data, len(best.result.query_index), rows, failures)
    if out is not None:
        run = Run.create("evaluate", {"data": data, "models": [row.name for row in rows]}, path=out)
        with run.removed_if_failed():
            figure = Figure(label="recall@1", value=Value.of(best.intervals["recall@1"]))
            run.write_section("verdict", sections.verdict_section(Verdict(message=done.verdict, figures=[figure])))
            run.write_section("metrics", sections.table_section([models[n] for n in reversed(order)]))
            run.write_result(**done.to_json())
    return done


def names_of(models: str | Sequence[Any]) -> list[Any]:
    """The models of `--models a,b,c`, which may also be given one by one."""
    listed = [models] if isinstance(models, str) else models
    names = [name for item in listed for name in (item.split(",") if isinstance(item, str) else [item])]
    if len(names) < 2 or not all(names):
        raise LookalikeError("`models` needs at least two models, as in --models efficientnet_lite0,resnet50.")
    return names
