"""Results of `evaluate` and `compare`: figures with intervals, a verdict in words, tables and report sections."""

from __future__ import annotations

import csv
import html
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from lookalike.core.files import atomic_file, format_bytes
from lookalike.core.report_blocks import Section, Verdict, number, text_table
from lookalike.core.run import Run
from lookalike.data import Table
from lookalike.evaluation import report_sections as sections
from lookalike.evaluation.arrays import Bools, Ints
from lookalike.evaluation.bootstrap import Interval, PairedDifference
from lookalike.evaluation.classification import Classification
from lookalike.evaluation.report_sections import EvaluatedModel, ReportImages
from lookalike.evaluation.retrieval import Verification
from lookalike.evaluation.training_overlap import Overlap
from lookalike.evaluation.verdicts import interval_text, metric_name, p_text


def _metrics(model: EvaluatedModel) -> dict[str, Any]:
    return {key: value.to_json() for key, value in model.intervals.items()}


@dataclass(frozen=True)
class Evaluation:
    """Result of :func:`~lookalike.evaluation.evaluate`; ``str()`` gives the table for a terminal.

    Attributes:
        table: The images that were evaluated.
        model: The model with its retrieval metrics and calibration.
        labels: Class of each image, or a boolean matrix (images, labels) if they have several.
        names: Names of the classes.
        mode: ``"leave-one-out"`` or ``"query-gallery"``.
        gallery: Rows that were searched.
        ids: Content id of each image.
        verification: Error rates of deciding whether two images show the same class.
        nmi: Agreement of clusters with classes.
        classification: Accuracies of k-NN, probes and fine-tuning.
        failures: Images that could not be read.
        baseline: The evaluation of the model it is compared with.
        overlap: Images that trained one of the models.

    Example:
        >>> from lookalike.evaluation import evaluate
        >>> evaluation = evaluate(data="photos")  # doctest: +SKIP
        >>> evaluation.model.intervals["recall@1"].value  # doctest: +SKIP
        0.958
    """

    table: Table
    model: EvaluatedModel
    labels: Ints | Bools
    names: list[str]
    mode: str
    gallery: Ints
    ids: Ints | None = None
    verification: Verification | None = None
    nmi: float | None = None
    classification: Classification | None = None
    failures: list[Any] = field(default_factory=list)
    baseline: Evaluation | None = None
    overlap: Overlap | None = None

    @property
    def evaluations(self) -> list[Evaluation]:
        """The baseline if there is one, and this one."""
        return [self] if self.baseline is None else [self.baseline, self]

    @cached_property
    def differences(self) -> dict[str, PairedDifference]:
        """Every metric minus the baseline's, paired by query."""
        return {} if self.baseline is None else sections.differences(self.baseline.model, self.model)

    @property
    def verdict(self) -> str:
        """The result in a sentence."""
        return self._judged.message

    @cached_property
    def _judged(self) -> Verdict:
        return sections.verdict(*(one.model for one in self.evaluations), line=self.note)

    @property
    def note(self) -> str:
        """Which images were left out because they trained a model, in a sentence; empty if none were."""
        if self.overlap is None:
            return ""
        if self.baseline is None:
            return self.overlap.message()
        points = number(100 * self.differences["recall@1"].difference, 1, signed=True)
        return self.overlap.message(f"{points} points of recall@1")

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = {"data": self.table.name, "model": self.model.name, "mode": self.mode}
        document |= {k: v for k, v in self.model.result.to_json().items() if k != "mean"}
        document |= {"metrics": _metrics(self.model), "unreadable": [one.to_json() for one in self.failures]}
        document |= {"verdict": self.verdict, "note": self.note}
        if self.overlap is not None:
            document["training_overlap"] = asdict(self.overlap)
        if self.nmi is not None:
            document["nmi"] = self.nmi
        parts = {"verification": self.verification, "classification": self.classification}
        document |= {name: part.to_json() for name, part in parts.items() if part is not None}
        if self.labels.ndim == 1:
            each = self.model.result.per_class()
            document["per_class"] = {self.names[code]: metrics for code, metrics in each.items()}
        if self.model.calibration is not None:
            document["calibration"] = self.model.calibration.to_json()
            document["calibration_note"] = self.model.note
        elif self.model.no_calibration:
            document["no_calibration"] = self.model.no_calibration
        if self.baseline is not None:
            document["baseline"] = {"model": self.baseline.model.name, "metrics": _metrics(self.baseline.model)}
            document["differences"] = {key: value.to_json() for key, value in self.differences.items()}
        return document

    def lines(self) -> dict[str, str]:
        """Name → value of everything measured besides retrieval."""
        out: dict[str, str] = {}
        if self.nmi is not None:
            out["NMI"] = number(self.nmi)
        if self.classification is not None:
            out |= self.classification.lines()
        if (pairs := self.verification) is not None:
            out["Same or not: equal error rate"] = number(pairs.equal_error)
            best = f"{number(pairs.best_threshold)} (right in {number(pairs.accuracy)} of both kinds)"
            out["Same or not: best threshold"] = best
        return out

    def write_queries(self, path: Path) -> None:
        """Write a CSV file with one line a query: row, class, number of relevant items, and every metric."""
        result = self.model.result
        columns = {
            "row_id": self.table.column("row_id")[result.query_index],
            "label": [self.names[code] if code >= 0 else "" for code in result.labels],
            "relevant": result.relevant,
            **result.per_query,
        }
        with atomic_file(path) as part, part.open("w", encoding="utf-8", errors="replace", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))

    def rows(self) -> tuple[list[str], list[list[str]]]:
        """The table as text: a header, and one row a metric."""
        head = ["metric", *(one.model.name for one in self.evaluations)]
        body = []
        for key in self.model.intervals:
            cells = [metric_name(key), *(interval_text(one.model.intervals[key]) for one in self.evaluations)]
            if key in self.differences:
                d = self.differences[key]
                points = number(100 * d.difference, 1, signed=True)
                cells += [f"{points} ({number(100 * d.low, 1)} to {number(100 * d.high, 1)})", p_text(d.p)]
            body.append(cells)
        empty = ["", ""] if self.baseline else []
        body += [[name, *(one.lines()[name] for one in self.evaluations), *empty] for name in self.lines()]
        return [*head, *(["difference, points", ""] if self.baseline else [])], body

    def __str__(self) -> str:
        head, body = self.rows()
        return "\n".join([*text_table(head, body), *filter(None, [self.note]), self.verdict])

    def _repr_html_(self) -> str:
        head, body = self.rows()
        rows = "".join(f"<tr>{''.join(f'<td>{html.escape(c)}</td>' for c in row)}</tr>" for row in body)
        top = "".join(f"<th>{html.escape(c)}</th>" for c in head)
        return f"<p>{html.escape(f'{self.note} {self.verdict}'.strip())}</p><table><tr>{top}</tr>{rows}</table>"

    def sections(self, run: Run, *, seed: int = 0) -> dict[str, Section]:
        """Make the report sections by name; thumbnails are stored in the run."""
        models = [one.model for one in self.evaluations]
        out = {"verdict": sections.verdict_section(self._judged), "table": sections.table_section(models)}
        if self.labels.ndim == 2:  # several labels an image: no class to show a hit by
            return out
        images = ReportImages(self.table, run, self.labels.astype(np.int64), self.names, self.gallery, self.ids)
        out["worst"] = sections.extremes_section(images, self.model)
        out["calibration"] = sections.calibration_section(self.model)
        if self.verification is not None:
            out["verification"] = sections.verification_section(self.verification, self.lines())
        if self.classification is not None and self.classification.retriever is not None:
            out["retriever"] = sections.retriever_section(images, models, self.classification.retriever)
        out["map"] = sections.map_section(images, models, seed=seed)
        if self.baseline is None:
            out["classes"] = sections.classes_section(self.model, self.names)
        else:
            out["changed"] = sections.changed_section(images, models[0], models[1], seed=seed)
            out["classes"] = sections.class_changes_section(models[0], models[1], self.names)
        return out


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
