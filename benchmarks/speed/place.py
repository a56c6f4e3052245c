"""Placing, judged: does the interval of a folder cover its true recall in every kind, and is it better than no look?

A model is trained on 40 % of the classes, calibrated on 30 %, and judged on folders of the rest, not seen before. The
folders that judge are drawn by another rule than those that calibrate: a fixed number of classes and of images a
class, or sizes that fall from class to class. CUB was looked at while the rule was made; Cars and Grocery are judged
once, after it was fixed. A stopped benchmark goes on with the next data set.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.speed import Bar, BenchContext

SETS = ("cub", "cars", "grocery")
UNSEEN = ("cars", "grocery")  # judged once, after the rule was fixed
FOLDERS = 40  # of every kind
CLASS_KINDS = {  # classes, images a class, whether sizes fall from class to class
    "50 classes × 2": (50, 2, False),
    "25 classes × 4": (25, 4, False),
    "40 classes × 5": (40, 5, False),
    "25 classes × 10": (25, 10, False),
    "10 classes × 15": (10, 15, False),
    "6 classes × 25": (6, 25, False),
    "30 classes, falling sizes": (30, 8, True),
}
IMAGES = 30  # of a class: all of them would take hours to render in other styles
LEVEL, COVERED, MOST, PLACED = 0.9, 0.85, 0.97, 0.6
FEWEST = 20  # placed folders from which the coverage of a kind is judged
MODEL: dict[str, Any] = {"size": 160, "pooling": "gem"}


def run(context: BenchContext) -> tuple[dict[str, Any], list[Bar]]:
    from lookalike.core import folders
    from lookalike.core.engine import Jobs
    from lookalike.core.files import FORMAT_VERSIONS

    jobs = Jobs(folders.home() / "jobs" / f"place-{FORMAT_VERSIONS['curve']}")
    rows: list[dict[str, Any]] = []
    figures: dict[str, Any] = {}
    bars: list[Bar] = []
    for name in SETS:
        context.say(name)
        result = jobs.run(name, classes, name=name, data=str(context.folder(name)), folders=FOLDERS)
        rows += [{"set": name, **row} for row in result["rows"]]
        figures, bars = summarize(rows)
        context.keep(figures, bars)
    return figures, bars


def summarize(rows: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], list[Bar]]:
    """Figures by data set and kind, without and with the number of classes, and the bars over all of them."""
    figures: dict[str, Any] = {
        "seen while the rule was made": sorted({row["set"] for row in rows} - set(UNSEEN)),
        "judged once": sorted({row["set"] for row in rows} & set(UNSEEN)),
    }
    bars: list[Bar] = []
    for title, known in (("classes unknown", False), ("classes known", True)):
        chosen = [row for row in rows if row["classes known"] == known]
        kinds = sorted({(row["set"], row["kind"]) for row in chosen})
        table = [
            {"set": name, "kind": kind, **figures_of([r for r in chosen if (r["set"], r["kind"]) == (name, kind)])}
            for name, kind in kinds
        ]
        judged = [row for row in table if row["placed"] >= FEWEST]
        pooled = figures_of(chosen)
        figures[title] = {"pooled": pooled, "kinds": table}
        least = min(judged, key=lambda row: row["covered"], default={"set": "no kind", "kind": "", "covered": 0.0})
        bars += [
            Bar(f"{title}: least coverage of a kind ({least['set']} {least['kind']})", least["covered"], COVERED),
            Bar(f"{title}: pooled coverage", pooled["covered"], MOST, "lower"),
            Bar(f"{title}: fraction of folders of calibrated kinds placed", pooled["placed_fraction"], PLACED),
            Bar(f"{title}: interval score over that of no look", pooled["score_ratio"], 1.0, "lower"),
        ]
    widths = [figures[title]["pooled"]["width"] for title in ("classes known", "classes unknown")]
    bars.append(
        Bar("width with the classes known over unknown", round(widths[0] / max(widths[1], 1e-9), 4), 1.0, "lower")
    )
    return figures, bars


def figures_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Coverage, widths and interval scores of the placed folders beside those of the blind interval."""
    placed = [row for row in rows if row["placed"]]
    out: dict[str, Any] = {
        "folders": len(rows),
        "placed": len(placed),
        "placed_fraction": round(len(placed) / max(len(rows), 1), 4),
    }
    if not placed:
        return {**out, "covered": 0.0, "width": 0.0, "score_ratio": 0.0}
    score, blind = (
        float(np.mean([interval_score(row["truth"], row[f"{name}low"], row[f"{name}high"]) for row in placed]))
        for name in ("", "blind_")
    )
    figures = {
        "covered": np.mean([row["low"] <= row["truth"] <= row["high"] for row in placed]),
        "blind_covered": np.mean([row["blind_low"] <= row["truth"] <= row["blind_high"] for row in placed]),
        "width": np.mean([row["high"] - row["low"] for row in placed]),
        "blind_width": np.mean([row["blind_high"] - row["blind_low"] for row in placed]),
        "score": score,
        "blind_score": blind,
        "score_ratio": score / blind,
        "mean_error": np.mean([abs(row["value"] - row["truth"]) for row in placed]),
        "truth": np.mean([row["truth"] for row in placed]),
        "value": np.mean([row["value"] for row in placed]),
    }
    return {**out, **{name: round(float(value), 4) for name, value in figures.items()}}


def interval_score(truth: float, low: float, high: float, level: float = LEVEL) -> float:
    """Width plus 2/(1 − level) times the distance by which the interval misses (Gneiting and Raftery 2007)."""
    return high - low + 2 / (1 - level) * max(low - truth, truth - high, 0.0)


def classes(*, name: str, data: str, folders: int) -> dict[str, Any]:
    """Folders of classes that neither the model nor its calibration has seen: 40, 30 and 30 % of the classes."""
    from lookalike.core.seeds import numpy_rng
    from lookalike.data import read_table

    table = read_table(data, layout=name).without("split", "official_split", "is_query", "is_gallery")
    codes = table.labels()[0]
    groups = [np.flatnonzero(codes == code)[:IMAGES] for code in np.unique(codes[codes >= 0])]
    table = table.take(np.sort(np.concatenate(groups)))
    codes = table.labels()[0]
    order = numpy_rng(0, "parts of the classes").permutation(np.unique(codes))
    sides = np.split(order, [round(0.4 * len(order)), round(0.7 * len(order))])
    side = np.full(len(table), None, object)
    side[np.isin(codes, sides[0])] = "train"
    side[np.isin(codes, sides[1])] = "test"
    own = table.with_column("split", side).take(side != None)  # noqa: E711
    return judge(own, table.take(np.isin(codes, sides[2])), folders)


def judge(own: Any, other: Any, folders: int) -> dict[str, Any]:
    """Train on a table, calibrate, and place folders of another table whose labels tell the truth."""
    from lookalike.core.seeds import numpy_rng
    from lookalike.data.augmentation import CenterView
    from lookalike.models import Embedder, features_for
    from lookalike.shift.neighbor_features import nearest
    from lookalike.shift.placement import encoder, learn, unit_rows
    from lookalike.shift.shared_features import copy_head
    from lookalike.training import train

    with tempfile.TemporaryDirectory(prefix="lookalike-bench-") as home:
        settings = {
            "model": MODEL,
            "data": {"near_duplicates": False, "split": "table"},
            "keep": "trained",
            "log": {"tensorboard": False},
        }
        done = train(data=own, settings=settings, out=Path(home) / "run", report=False)
        model = Embedder.from_pretrained(done.path)  # type: ignore[union-attr]
        curve = learn(done.path, model, None)  # type: ignore[union-attr]
    labels, rows = other.labels()[0], []
    features = unit_rows(features_for(model, other, views=[CenterView(model.preprocess)])[0])
    vectors = encoder(copy_head(model))(features)
    for kind, (count, images, falling) in CLASS_KINDS.items():
        if count > len(np.unique(labels)):
            continue
        rng = numpy_rng(0, "judged folders", kind)
        for _ in range(folders):
            chosen = draw(labels, rng, count, images, falling=falling)
            first = nearest(vectors[chosen] @ vectors[chosen].T, 1)[1][:, 0]
            truth = float((labels[chosen][first] == labels[chosen]).mean())
            for known in (False, True):
                number = len(np.unique(labels[chosen])) if known else None
                answer = curve.place(vectors[chosen], features[chosen], level=LEVEL, classes=number)
                blind = {"blind_low": answer.baseline.low, "blind_high": answer.baseline.high}
                estimate = answer.recall.to_json() if answer.recall is not None else {}
                verdict = {"placed": answer.recall is not None, "reason": answer.reason}
                rows.append({"kind": kind, "truth": truth, "classes known": known, **verdict, **estimate, **blind})
    return {"rows": rows, "about": curve.about}


def draw(labels: np.ndarray, rng: np.random.Generator, count: int, images: int, *, falling: bool) -> np.ndarray:
    """A folder of so many classes: as many images of each, or sizes that fall from twice as many to a quarter."""
    codes = rng.permutation(np.unique(labels))[:count]
    sizes = [images] * len(codes)
    if falling:
        sizes = [max(1, round(2 * images * np.exp(-2 * k / len(codes)))) for k in range(len(codes))]
    parts = [rng.permutation(np.flatnonzero(labels == code))[:size] for code, size in zip(codes, sizes, strict=True)]
    return np.sort(np.concatenate(parts))
