"""Results of `evaluate` and `compare`: figures with intervals, a verdict in words, tables and report sections."""

from __future__ import annotations

import csv
import html
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from lookalike.core.files import atomic_file
from lookalike.core.report_blocks import Section, Verdict, number, text_table
from lookalike.core.run import Run
from lookalike.data import Table
from lookalike.evaluation import report_sections as sections
from lookalike.evaluation.arrays import Bools, Ints
from lookalike.evaluation.bootstrap import PairedDifference
from lookalike.evaluation.classification import Classification
from lookalike.evaluation.report_sections import EvaluatedModel, ReportImages
from lookalike.evaluation.verdicts import interval_text, metric_name, p_text
from lookalike.evaluation.verification import Verification


def _metrics(model: EvaluatedModel) -> dict[str, Any]:
    return {key: value.to_json() for key, value in model.intervals.items()}


@dataclass(frozen=True)
class Overlap:
    """Images that trained one of the evaluated models, or chose its best step."""

    evaluated: int
    trained: int
    models: list[str]  # that were trained on them
    unknown: list[str]  # models whose training images are not known
    left_out: bool
    identical: bool = False  # the two models are one

    def message(self, figure: str = "", *, verb: str = "measured") -> str:
        """Say which images were left out, with a figure on the others; empty if no image trained a model."""
        lines = ["Both are the same model."] if self.identical else []
        lines += [f"It is not known which images trained {name}." for name in self.unknown]
        if self.trained:
            images = self.evaluated + self.trained * self.left_out
            text = f"{self.trained:,} of these {images:,} images trained {' or '.join(self.models)}"
            rest = f"on the other {self.evaluated:,}"
            rest = f"{rest}: {figure}" if figure else f"{verb} {rest}"
            lines.append(f"{text}; {rest}." if self.left_out else f"{text}, so its figures are too high.")
        return " ".join(lines)


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
        for name in ("verification", "classification"):
            if (part := getattr(self, name)) is not None:
                document[name] = part.to_json()
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
