"""Placing, judged: does the interval of a folder cover its true recall, and is it narrower than knowing nothing?

CUB: at splits from easy to hard a model is trained on the train side, its curve learned on three quarters of the test
classes, and folders are class subsets of the last quarter, which nothing has seen. PACS: a model of each domain,
folders of the three others. Folders that are out of range count like the others.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.speed import Bar, BenchContext

FOLDERS = {"cub": 40, "pacs": 8}  # of every split, and of every pair of domains
SPLITS, JUDGED = 5, (1, 3, 5)
IMAGES = 30  # of a class of CUB: all of them would take hours to render in other styles
LEVEL, COVERED, WIDTH = 0.9, 0.85, 0.75
LOOK: dict[str, Any] = {"size": 160, "pooling": "gem"}


def run(context: BenchContext) -> tuple[dict[str, Any], list[Bar]]:
    from lookalike.core import folders
    from lookalike.core.files import FORMAT_VERSIONS
    from lookalike.core.job_cache import Jobs

    jobs = Jobs(folders.home() / "jobs" / f"place-{FORMAT_VERSIONS['curve']}")
    figures: dict[str, Any] = {}
    bars: list[Bar] = []
    for name, parts in (("cub", JUDGED), ("pacs", ("art_painting", "cartoon", "photo", "sketch"))):
        rows: list[dict[str, Any]] = []
        for part in parts:
            context.say(f"{name}, {part}")
            given = {"data": str(context.folder(name)), "part": part, "folders": FOLDERS[name]}
            rows += jobs.run(f"{name}-{part}", cub if name == "cub" else pacs, **given)["rows"]
        found = figures[name] = summary(rows)
        bars.append(Bar(f"{name}: share of {found['folders']} folders covered", found["covered"], COVERED))
        bars.append(Bar(f"{name}: width over that of knowing nothing", found["width_ratio"], WIDTH, "lower"))
    return figures, bars


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Coverage with its binomial interval, widths, and how far off the value itself is."""
    from scipy.stats import binomtest

    covered = [row["low"] <= row["truth"] <= row["high"] for row in rows]
    blind = [row["blind_low"] <= row["truth"] <= row["blind_high"] for row in rows]
    width = float(np.mean([row["high"] - row["low"] for row in rows]))
    without = float(np.mean([row["blind_high"] - row["blind_low"] for row in rows]))
    low, high = binomtest(sum(covered), len(rows)).proportion_ci(method="wilson")
    off = [abs(row["value"] - row["truth"]) for row in rows]
    return {
        "folders": len(rows),
        "covered": round(sum(covered) / len(rows), 4),
        "covered_low": round(low, 4),
        "covered_high": round(high, 4),
        "width": round(width, 4),
        "width_knowing_nothing": round(without, 4),
        "width_ratio": round(width / without, 4),
        "covered_knowing_nothing": round(sum(blind) / len(rows), 4),
        "out_of_range": sum(row["verdict"] == "out_of_range" for row in rows),
        "mean_error": round(float(np.mean(off)), 4),
        "recall": [round(float(np.quantile([row["truth"] for row in rows], q)), 3) for q in (0.05, 0.5, 0.95)],
    }


def cub(*, data: str, part: int, folders: int) -> dict[str, Any]:
    """Folders of a quarter of the test classes of a split, which neither the model nor its curve has seen."""
    from lookalike.core.seeds import numpy_rng
    from lookalike.data import read_table
    from lookalike.models import Embedder
    from lookalike.shift.make_splits import make_splits

    table = read_table(data, layout="cub")
    labels = table.labels()[0]
    table = table.take(np.concatenate([np.flatnonzero(labels == code)[:IMAGES] for code in np.unique(labels)]))
    splits = make_splits(table, Embedder.from_pretrained("efficientnet_lite0", **LOOK), count=SPLITS, draws=1)
    split = splits.split(part)
    new = numpy_rng(part, "judged classes").permutation(sorted(split.test))[: len(split.test) // 4].tolist()
    labels = table.column("label")
    side = np.full(len(table), None, object)
    side[np.isin(labels, split.train)] = "train"
    side[np.isin(labels, [name for name in split.test if name not in new])] = "test"
    own = table.without("split", "official_split").with_column("split", side).take(side != None)  # noqa: E711
    return judge(own, {f"split {part}": table.take(np.isin(labels, new))}, folders, {"data": {"split": "table"}})


def pacs(*, data: str, part: str, folders: int) -> dict[str, Any]:
    """Folders of the three other domains, for a model of one."""
    from lookalike.data import read_table

    table = read_table(data, layout="pacs")
    domain = table.column("domain")
    own = table.take(domain == part).without("split")
    others = {str(name): table.take(domain == name) for name in sorted(set(domain)) if name != part}
    # No validation: of seven known classes it would always choose step 0, and nothing would be trained.
    return judge(own, others, folders, {"data": {"split": "images", "validation_fraction": 0.0}})


def judge(own: Any, others: dict[str, Any], folders: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Train on a table, learn its curve, and place folders of other tables whose labels tell the truth."""
    from lookalike.core.seeds import numpy_rng
    from lookalike.core.settings import merge
    from lookalike.data.augmentation import CenterView
    from lookalike.models import Embedder, features_for
    from lookalike.shift.graded_folders import Classes, draw_folder, folder_recall
    from lookalike.shift.placement import encoder, learn, unit_rows
    from lookalike.shift.shared_features import copy_head
    from lookalike.training import train

    with tempfile.TemporaryDirectory(prefix="lookalike-bench-") as home:
        more = {"model": LOOK, "data": {"near_duplicates": False}, "keep": "trained", "log": {"tensorboard": False}}
        done = train(data=own, settings=merge(more, settings), out=Path(home) / "run", report=False)
        model = Embedder.from_pretrained(done.path)  # type: ignore[union-attr]
        curve = learn(done.path, model, None)  # type: ignore[union-attr]
    encode, rows = encoder(copy_head(model)), []
    for name, table in others.items():
        labels = table.labels()[0]
        features = unit_rows(features_for(model, table, views=[CenterView(model.preprocess)])[0])
        classes = Classes.of(features, labels, np.arange(len(labels)), curve.reference.mean)
        rng = numpy_rng(0, "judged folders", name)
        for _ in range(folders):
            chosen = draw_folder(classes, rng)
            vectors = encode(features[chosen])
            truth, queries = folder_recall(vectors, labels[chosen])
            said = curve.place(vectors, features[chosen], level=LEVEL)
            assert said.recall is not None  # none of them is too small
            blind = {"blind_low": said.baseline.low, "blind_high": said.baseline.high}
            row = {"from": name, "truth": truth, "queries": queries, "verdict": said.verdict}
            rows.append({**row, **said.recall.to_json(), **blind})
    return {"rows": rows, "about": curve.about, "splits": [s.recall for s in curve.splits]}
