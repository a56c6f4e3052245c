"""Comparing several models: which one to start from."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from lookalike.core.errors import LookalikeError
from lookalike.core.files import format_bytes
from lookalike.core.report_blocks import Figure, Value, Verdict, number, text_table
from lookalike.core.run import Run
from lookalike.evaluation import report_sections as sections
from lookalike.evaluation.arrays import Bools, Floats
from lookalike.evaluation.bootstrap import Interval, PairedDifference
from lookalike.evaluation.report_sections import EvaluatedModel
from lookalike.evaluation.results import Overlap
from lookalike.evaluation.verdicts import interval_text, p_text

LEVEL = 0.05


@dataclass(frozen=True)
class ModelRow:
    """One of the compared models, with what it costs."""

    name: str
    metrics: dict[str, Interval]
    to_best: PairedDifference | None  # its recall@1 minus the best model's, paired by query
    p: float | None  # of that difference, adjusted for the number of models (Holm)
    ties: bool  # no difference to the best model was found
    images_per_second: float  # on these images, decoding included
    bytes: int  # of its weights
    dim: int


@dataclass(frozen=True)
class ModelComparison:
    """Result of ``compare(models=…)``, best model first; ``str()`` gives the table for a terminal."""

    data: str
    queries: int
    rows: list[ModelRow]
    failures: list[Any]  # images that a model could not read, which are left out for all
    overlap: Overlap  # images that trained one of the models

    @property
    def verdict(self) -> str:
        """Which model is best, and which tie with it."""
        best, *others = self.rows
        first = f"{best.name} is best: recall@1 {interval_text(best.metrics['recall@1'])} on {self.queries:,} queries."
        if not (ties := [row for row in others if row.ties]):
            return f"{first} It is better than all others."
        fastest = max([best, *ties], key=lambda row: row.images_per_second)
        text = f"{first} No difference to it was found for {', '.join(row.name for row in ties)}"
        return f"{text}; the fastest of these is {fastest.name}."

    @property
    def note(self) -> str:
        """Which images were left out because they trained a model, in a sentence; empty if none were."""
        return self.overlap.message(verb="compared")

    def to_json(self) -> dict[str, Any]:
        fields = asdict(self)
        fields |= {"failures": [one.to_json() for one in self.failures], "training_overlap": fields.pop("overlap")}
        return {**fields, "verdict": self.verdict, "note": self.note}

    def __str__(self) -> str:
        head = ["model", "Recall@1", "MAP@R", "to the best, points", "", "dim"]
        head += ["a million vectors", "weights", "images/s"]
        body = []
        for row in self.rows:
            gap, note = "best", ""
            if row.to_best is not None and row.p is not None:
                low, high = (number(100 * value, 1) for value in (row.to_best.low, row.to_best.high))
                gap = f"{number(100 * row.to_best.difference, 1, signed=True)} ({low} to {high})"
                note = f"{'tie, ' if row.ties else ''}{p_text(row.p)}"
            metrics = [interval_text(row.metrics[key]) for key in ("recall@1", "map@r")]
            cost = [str(row.dim), format_bytes(row.dim * 4_000_000), format_bytes(row.bytes)]
            body.append([row.name, *metrics, gap, note, *cost, number(row.images_per_second, 0)])
        failed = [f"{len(self.failures):,} images could not be read and are left out."] if self.failures else []
        return "\n".join([self.verdict, *filter(None, [self.note]), "", *text_table(head, body), *failed])


def names_of(models: str | Sequence[Any]) -> list[Any]:
    """The models of `--models a,b,c`, which may also be given one by one."""
    listed = [models] if isinstance(models, str) else models
    names = [name for item in listed for name in (item.split(",") if isinstance(item, str) else [item])]
    if len(names) < 2 or not all(names):
        raise LookalikeError("`models` needs at least two models, as in --models efficientnet_lite0,resnet50.")
    return names


def readable_rows(count: int, encoded: Sequence[tuple[Floats, list[Any]]]) -> tuple[Bools, list[Floats]]:
    """Which of the images every model read, so that all answer the same queries, and the vectors of these."""
    read = np.ones((len(encoded), count), bool)
    for mask, (_, failures) in zip(read, encoded, strict=True):
        mask[[failure.index for failure in failures]] = False
    readable: Bools = np.asarray(read.all(0))
    return readable, [rows[readable[mask]] for mask, (rows, _) in zip(read, encoded, strict=True)]


def encode_all(
    sources: Sequence[Any], table: Any, load: Callable[[Any], Any], options: dict[str, Any]
) -> dict[str, tuple[tuple[Floats, list[Any]], tuple[float, int, int]]]:
    """Embed the images by one model after the other; only one of them is in memory at a time.

    Args:
        sources: The models.
        table: The images.
        load: Loads a model.
        options: Options of ``Embedder.encode``.

    Returns:
        By name, what ``encode`` returned and the model's costs.
    """
    from lookalike.models.inference.pipeline import CropEncoder
    from lookalike.models.inference.torch_runtime import MIN_IMAGES

    made: dict[str, tuple[tuple[Floats, list[Any]], tuple[float, int, int]]] = {}
    for source in sources:
        model = load(source)
        name = model.name if model.name not in made else f"{model.name} ({len(made) + 1})"
        if options["runtime"] == "auto" and len(table) >= MIN_IMAGES:
            CropEncoder(model, fast=True)  # a conversion is no cost of embedding: it is made once
        start = time.perf_counter()
        encoded = model.encode(table, on_error="skip", **options)
        made[name] = encoded, (len(table) / (time.perf_counter() - start), model.weight_bytes, model.dim)
    return made


def rank(
    data: str, models: list[EvaluatedModel], costs: list[Any], failures: list[Any], overlap: Overlap, out: Any
) -> ModelComparison:
    """Order models by recall@1 and test each against the best, paired by query."""
    order = sorted(range(len(models)), key=lambda n: -models[n].intervals["recall@1"].value)
    best = models[order[0]]
    changes = {n: sections.differences(best, models[n])["recall@1"] for n in order[1:]}
    adjusted, largest = dict.fromkeys(order[:1], 1.0), 0.0
    for place, n in enumerate(sorted(changes, key=lambda n: changes[n].p)):  # Holm
        largest = adjusted[n] = max(largest, min(1.0, changes[n].p * (len(changes) - place)))
    rows = []
    for n in order:
        p = adjusted[n] if n in changes else None
        ties = p is not None and p >= LEVEL
        rows.append(ModelRow(models[n].name, models[n].intervals, changes.get(n), p, ties, *costs[n]))
    done = ModelComparison(data, len(best.result.query_index), rows, failures, overlap)
    if out is not None:
        run = Run.create("evaluate", {"data": data, "models": [row.name for row in rows]}, path=out)
        with run.removed_if_failed():
            figure = Figure(label="recall@1", value=Value.of(best.intervals["recall@1"]))
            verdict = Verdict(message=done.verdict, figures=[figure], line=done.note)
            run.write_section("verdict", sections.verdict_section(verdict))
            run.write_section("metrics", sections.table_section([models[n] for n in reversed(order)]))
            run.write_result(**done.to_json())
    return done
