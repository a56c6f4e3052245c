"""What `evaluate` and `compare` answer: figures with intervals, a verdict in words, the parts of a report."""

from __future__ import annotations

import csv
import html
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from lookalike.core.files import atomic_file
from lookalike.core.report_blocks import Section, number
from lookalike.core.run import Run
from lookalike.data import Table
from lookalike.evaluation import report as sections
from lookalike.evaluation.arrays import Bools, Ints
from lookalike.evaluation.bootstrap import Paired
from lookalike.evaluation.classifying import Classified
from lookalike.evaluation.query_images import Measured, Subject
from lookalike.evaluation.retriever_knn import retriever_section
from lookalike.evaluation.verification import Verification


@dataclass(frozen=True)
class Evaluation:
    """What `evaluate` found; `str()` is the table for a terminal, `sections(run)` the parts of a report."""

    table: Table
    model: Measured
    labels: Ints | Bools
    names: list[str]
    mode: str
    gallery: Ints
    ids: Ints | None = None
    verification: Verification | None = None
    nmi: float | None = None
    classified: Classified | None = None
    failures: list[Any] = field(default_factory=list)
    baseline: Evaluation | None = None

    @cached_property
    def differences(self) -> dict[str, Paired]:
        """Every measure less the baseline's, paired by query."""
        return {} if self.baseline is None else sections.differences(self.baseline.model, self.model)

    @property
    def verdict(self) -> str:
        if self.baseline is None:
            only = self.model.intervals["recall@1"]
            where = f"{len(self.model.result.query_index):,} queries"
            return f"Recall@1 is {number(only.value)} ({number(only.low)} to {number(only.high)}) on {where}."
        return sections.compared(self.baseline.model, self.model, self.differences["recall@1"])

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "data": self.table.name,
            "model": self.model.name,
            "mode": self.mode,
            **{k: v for k, v in self.model.result.to_json().items() if k != "mean"},
            "measures": {key: value.to_json() for key, value in self.model.intervals.items()},
            "unreadable": [failure.to_json() for failure in self.failures],
            "verdict": self.verdict,
        }
        if self.verification is not None:
            document["verification"] = self.verification.to_json()
        if self.nmi is not None:
            document["nmi"] = self.nmi
        if self.classified is not None:
            document["classification"] = self.classified.to_json()
        if self.labels.ndim == 1:
            each = self.model.result.per_class()
            document["per_class"] = {self.names[code]: measures for code, measures in each.items()}
        if self.model.calibration is not None:
            document["calibration"] = self.model.calibration.to_json()
            document["calibration_note"] = self.model.note
        elif self.model.why_not:
            document["no_calibration"] = self.model.why_not
        if self.baseline is not None:
            document["baseline"] = {
                "model": self.baseline.model.name,
                "measures": {key: value.to_json() for key, value in self.baseline.model.intervals.items()},
            }
            document["differences"] = {key: value.to_json() for key, value in self.differences.items()}
        return document

    def further(self) -> dict[str, str]:
        """What was measured beside retrieval, as words."""
        out: dict[str, str] = {}
        if self.nmi is not None:
            out["NMI"] = number(self.nmi)
        if self.classified is not None:
            out |= self.classified.further()
        if (pairs := self.verification) is not None:
            out["Same or not: equal error rate"] = number(pairs.equal_error)
            best = f"{number(pairs.best_threshold)} (right in {number(pairs.accuracy)} of both kinds)"
            out["Same or not: best threshold"] = best
        return out

    def write_queries(self, path: Path) -> None:
        """One line a query: the row, its class, how many there were to find, and every measure."""
        found = self.model.result
        codes = found.labels
        columns = {
            "row_id": self.table.column("row_id")[found.query_index],
            "label": [self.names[code] if code >= 0 else "" for code in codes],
            "relevant": found.relevant,
            **found.per_query,
        }
        with atomic_file(path) as part, part.open("w", encoding="utf-8", errors="replace", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))

    def rows(self) -> tuple[list[str], list[list[str]]]:
        """The table as words: a header and one row a measure."""
        models = [self.model] if self.baseline is None else [self.baseline.model, self.model]
        head = ["measure", *(model.name for model in models)]
        body = []
        for key in self.model.intervals:
            cells = [sections.measure_name(key)]
            for model in models:
                i = model.intervals[key]
                cells.append(f"{number(i.value)} ({number(i.low)}–{number(i.high)})")
            if key in self.differences:
                d = self.differences[key]
                points = f"{number(100 * d.difference, 1, signed=True)}"
                cells.append(f"{points} ({number(100 * d.low, 1)} to {number(100 * d.high, 1)})")
                cells.append(sections.p_text(d.p))
            body.append(cells)
        shown = [self] if self.baseline is None else [self.baseline, self]
        for name in self.further():
            cells = [name, *(one.further()[name] for one in shown)]
            body.append([*cells, *([""] * (2 if self.baseline else 0))])
        return [*head, *(["difference, points", ""] if self.baseline else [])], body

    def __str__(self) -> str:
        head, body = self.rows()
        widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
        lines = [
            "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in [head, *body]
        ]
        return "\n".join([*lines, self.verdict])

    def _repr_html_(self) -> str:
        head, body = self.rows()
        rows = "".join(f"<tr>{''.join(f'<td>{html.escape(c)}</td>' for c in row)}</tr>" for row in body)
        top = "".join(f"<th>{html.escape(c)}</th>" for c in head)
        return f"<p>{html.escape(self.verdict)}</p><table><tr>{top}</tr>{rows}</table>"

    def sections(self, run: Run, *, seed: int = 0) -> dict[str, Section]:
        """The report's parts by name; images are stored in the run."""
        models = [self.model] if self.baseline is None else [self.baseline.model, self.model]
        out = {
            "verdict": sections.verdict_section(self.model)
            if self.baseline is None
            else sections.comparison_section(models[0], models[1], self.verdict),
            "table": sections.table_section(models),
        }
        if self.labels.ndim == 2:  # several labels an image: no class to show a hit by
            return out
        subject = Subject(self.table, run, self.labels.astype(np.int64), self.names, self.gallery, self.ids)
        out["worst"] = sections.extremes_section(subject, self.model)
        out["calibration"] = sections.calibration_section(self.model)
        if self.verification is not None:
            out["verification"] = sections.verification_section(self.verification, self.further())
        if self.classified is not None and self.classified.retriever is not None:
            out["retriever"] = retriever_section(subject, models, self.classified.retriever)
        if self.baseline is None:
            out["classes"] = sections.one_model_classes(self.model, self.names)
        out["map"] = sections.map_section(subject, models, seed=seed)
        if self.baseline is not None:
            out["changed"] = sections.changed_section(subject, models[0], models[1], seed=seed)
            out["classes"] = sections.classes_section(models[0], models[1], self.names)
        return out


@dataclass(frozen=True)
class Comparison:
    """What `compare` found: both models on the same queries, and the paired difference b − a."""

    a: Evaluation
    b: Evaluation

    @property
    def differences(self) -> dict[str, Paired]:
        return self.b.differences

    @property
    def verdict(self) -> str:
        return self.b.verdict

    def to_json(self) -> dict[str, Any]:
        return {
            "data": self.b.table.name,
            "mode": self.b.mode,
            "a": {"model": self.a.model.name, "measures": {k: v.to_json() for k, v in self.a.model.intervals.items()}},
            "b": {"model": self.b.model.name, "measures": {k: v.to_json() for k, v in self.b.model.intervals.items()}},
            "differences": {k: v.to_json() for k, v in self.differences.items()},
            "verdict": self.verdict,
        }

    def __str__(self) -> str:
        return str(self.b)

    def _repr_html_(self) -> str:
        return self.b._repr_html_()

    def sections(self, run: Run, *, seed: int = 0) -> dict[str, Section]:
        return self.b.sections(run, seed=seed)
