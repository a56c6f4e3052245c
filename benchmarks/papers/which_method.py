"""Which method when: a table of the docs, and the choices of `train --method auto` and `adapt`, from stored results.

Every row is a method on one kind of data: its gain over the model as it was, with the interval over the seeds, and its
cost. A method that was not measured has an empty row. Of the methods that were compared on the same terms one is
chosen: the default, or the first, unless another is surely better (paired by seed). Written by `tools/docs.py`.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.papers import ClaimResult, results_of
from benchmarks.papers.cells import Cells
from benchmarks.papers.paired import Difference, difference
from lookalike.core.errors import LookalikeError
from lookalike.core.files import read_json
from lookalike.core.report_blocks import number

MANY, FEW = "labels, few classes of many images", "labels, many classes of few images"
UNLABELED = "no labels, own images"
CLASSIFIER, EMBEDDER = "new domain, model with a classifier", "new domain, model without classes"
CHOICES = {
    "train": {MANY: "many images", FEW: "few images"},
    "adapt": {CLASSIFIER: "classifier", EMBEDDER: "clusters"},
}
"""Command and its kinds of data, as they are called in the file that the commands read."""


@dataclass(frozen=True)
class Row:
    """A method on one kind of data.

    Args:
        data: The kind of data.
        method: How the method is called, with what else the command needs.
        gain: Over the model as it was, in points; None if it was not measured.
        unit: What the points are of.
        on: The data it was measured on.
        seconds: Cost of one run.
        name: Name of the method, where it was compared on the same terms as the others of that kind.
    """

    data: str
    method: str
    gain: Difference | None
    unit: str = ""
    on: str = ""
    seconds: float | None = None
    name: str = ""


def rows(results: str | Path = "results") -> list[Row]:
    """All rows, by kind of data."""
    claims = {(p, c.key): c for p in ("defaults", "xbn", "dmcac", "t3ar", "carp") for c in results_of(p, results)}
    return [*_many(claims), *_few(claims), *_unlabeled(claims), *_domains(claims, Path(results))]


def _measured(claim: ClaimResult, *, partly: bool = False) -> dict[str, Any] | None:
    """The figures of a claim that can be tested and is finished; with `partly` by however many seeds there are."""
    unfinished = claim.verdict == "not run" or (claim.verdict == "not finished" and not partly)
    return None if unfinished or claim.gate else claim.figures


def _gain(by_seed: list[float]) -> Difference:
    return difference([0.0] * len(by_seed), by_seed)


def _over_sets(by_set: list[list[float]]) -> Difference:
    """The mean over data sets, by seed."""
    return _gain([statistics.fmean(part) for part in zip(*by_set, strict=True)])


def _many(claims: dict[Any, ClaimResult]) -> Iterator[Row]:
    on, unit = "CUB, Cars and Grocery, heads on cached features", "recall@1"
    figures = _measured(claims["defaults", "default-recipe"])
    ran = [] if figures is None else [*figures["finalists"], *figures["best_of_each"]]
    for method in ("ms", "contrastive", "proxy_anchor", "norm_softmax", "supcon", "triplet"):
        found = next((row for row in ran if row["method"] == method and row["views"] == 0), None)
        found = found or next((row for row in ran if row["method"] == method), None)
        gain = _over_sets([found[name] for name in ("cub", "cars", "grocery")]) if found else None
        yield Row(MANY, f"`train --method {method}`", gain, unit, on, name=method)
    cars = _measured(claims["defaults", "cars-end-to-end"])
    runs = [] if cars is None else cars["runs"]
    gain = _gain([100 * (run["trained"] - run["frozen"]) for run in runs]) if runs else None
    seconds = statistics.median(run["seconds"] for run in runs) if runs else None
    yield Row(MANY, "`train --recipe cars` (end to end)", gain, unit, "Cars", seconds)
    dmcac = _measured(claims["dmcac", "7-against-others"])
    gain = _over_sets([part["frozen"]["by_seed"] for part in dmcac["differences"].values()]) if dmcac else None
    yield Row(MANY, "`train --method dmcac`", gain, unit, "Cars, CUB and Grocery, upper stages")


def _few(claims: dict[Any, ClaimResult]) -> Iterator[Row]:
    unit = "recall@1"
    figures = _measured(claims["defaults", "few-images"])
    ran = {} if figures is None else {row["method"]: row for row in figures["best_of_each"]}
    for method in ("ms", "proxy_anchor", "supcon", "xbn"):
        row = ran.get(method)
        gain = _gain(row["products"]) if row else None
        seconds = row["seconds"] if row else None
        yield Row(
            FEW,
            f"`train --method {method}`",
            gain,
            unit,
            "generated products, heads on cached features",
            seconds,
            method,
        )
    figures = _measured(claims["xbn", "0-xbn-over-none"])
    gain = None if figures is None else Difference(**figures["differences"]["pooled"])
    yield Row(FEW, "XBN over no memory, upper stages trained", gain, unit, "generated products")


def _unlabeled(claims: dict[Any, ClaimResult]) -> Iterator[Row]:
    for method in ("carp", "moco"):
        figures = _measured(claims["carp", f"0-{method}-on-own-images"])
        gain = None if figures is None else Difference(**figures["pooled"]["start"])
        yield Row(UNLABELED, f"`pretrain --method {method}`", gain, "recall@1", "sketches, cartoons, cars, groceries")


def _domains(claims: dict[Any, ClaimResult], results: Path) -> Iterator[Row]:
    on = "PACS, photos to art, cartoons and sketches"
    claim = _measured(claims["t3ar", "1-better-than-source"])
    arms = {
        "shot": ("`adapt --method shot`", "method=shot", "shot"),
        "with": ("`adapt --method t3ar --pool …`", "styles", "t3ar"),
        "without": ("`adapt --method t3ar`, no pool", "contrast.pool_set=none", ""),
        "bn": ("`adapt --method bn`", "method=bn", ""),
    }
    for arm, (text, mark, name) in arms.items():
        gain = None if claim is None else Difference(**claim["differences"][arm]["mean"])
        seconds = None if claim is None else _seconds(results, claim, mark)
        yield Row(CLASSIFIER, text, gain, "accuracy", on, seconds, name)
    claim = _measured(claims["t3ar", "7-pure-embedder"], partly=True)
    kinds = {
        "clusters": ("`adapt --method t3ar --pool …` (clusters)", "t3ar"),
        "clusters with shot": ("`adapt --method shot` (clusters)", "shot"),
        "contrast": ("`adapt --method t3ar --pool …` (contrast alone)", "contrast"),
        "gallery": ("`adapt --gallery …`", ""),
    }
    for kind, (text, name) in kinds.items():
        there = claim is not None and kind in claim["differences"]
        gain = Difference(**claim["differences"][kind]) if there and claim else None
        seconds = _seconds(results, claim, f"-{kind}-") if there and claim else None
        yield Row(EMBEDDER, text, gain, "MAP@R", on, seconds, name)


def _seconds(results: Path, figures: dict[str, Any], mark: str) -> float | None:
    """Mean processor time of the cells with this mark in their names."""
    cells, values = Cells(results / "cells" / "t3ar"), []
    for run in figures["runs"]:
        if mark in run["run"]:
            try:
                record = read_json(cells.path(f"{run['run']}-s{run['seed']}"), "cell")
            except LookalikeError:
                continue
            values.append(record["processor_seconds"])
    return round(statistics.fmean(values), 1) if values else None


def chosen(candidates: list[Row]) -> Row | None:
    """The first of the methods that were compared, unless another is surely better; None if it was not measured.

    Args:
        candidates: Methods compared on the same terms, the default first.
    """
    if not candidates or candidates[0].gain is None:
        return None
    first, better = candidates[0].gain, [candidates[0]]
    for row in candidates[1:]:
        if row.gain is not None:
            count = min(len(first.by_seed), len(row.gain.by_seed))  # the same seeds, in the same order
            if count > 1 and difference(first.by_seed[:count], row.gain.by_seed[:count]).low > 0:
                better.append(row)
    return max(better, key=lambda row: row.gain.mean if row.gain is not None else 0.0)


def choices(every: list[Row]) -> dict[str, dict[str, Any]]:
    """What `train --method auto` and `adapt` choose by kind of data, and why."""
    out: dict[str, dict[str, Any]] = {}
    for command, kinds in CHOICES.items():
        out[command] = {}
        for data, kind in kinds.items():
            candidates = [row for row in every if row.data == data and row.name]
            row, count = chosen(candidates), sum(row.gain is not None for row in candidates)
            if row is None or row.gain is None:
                out[command][kind] = {"method": candidates[0].name, "why": "the default; nothing is measured so far"}
                continue
            others = f"no other of the {count} methods compared is surely better"
            if count == 1:
                others = "the only one measured"
            elif min(len(row.gain.by_seed) for row in candidates if row.gain is not None) == 1:
                others = (
                    f"the default; one seed does not show whether another of the {count} methods compared is better"
                )
            why = f"{_points(row.gain)} points of {row.unit} over the model as it was, on {row.on}; {others}"
            out[command][kind] = {"method": row.name, "why": why}
    return out


def _points(gain: Difference) -> str:
    mean, low, high = (number(value, 1, signed=True) for value in (gain.mean, gain.low, gain.high))
    return f"{mean} (one seed)" if len(gain.by_seed) == 1 else f"{mean} ({low} to {high}, {len(gain.by_seed)} seeds)"


def table(every: list[Row]) -> str:
    """The table of the docs; what the commands choose is bold."""
    picked = [
        chosen([row for row in every if row.data == data and row.name]) for part in CHOICES.values() for data in part
    ]
    lines = ["| data | method | gain, points | measured on | cost of a run |\n", "|---|---|---|---|---|\n"]
    for row in every:
        gain = "not measured" if row.gain is None else f"{_points(row.gain)} of {row.unit}"
        cost = "not measured" if row.seconds is None or row.gain is None else f"{row.seconds:.0f} s"
        method = f"**{row.method}**" if any(row is each for each in picked) else row.method
        lines.append(f"| {row.data} | {method} | {gain} | {row.on} | {cost} |\n")
    return "".join(lines)
