"""The verb `shift fewshot`: does a handful of labeled images repair what the shift has broken?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lookalike.core import report_blocks as s
from lookalike.core.errors import LookalikeError
from lookalike.core.run import Run
from lookalike.shift import curve
from lookalike.shift import material as shared
from lookalike.shift.episodes import fewshot_trial
from lookalike.shift.series import RECIPE, TABLE, Series, chosen_splits, settings_for
from lookalike.training.settings import resolve

KIND = "fewshot"
MEASURES = ("recall@1", "map@1000")
# Only the head moves, by Margin at its start's β, which is what the authors adapt with (docs/decisions/0122).
ADAPT = {"method": {"name": "margin"}, "data": {"validation": 0.0}}
STILL = 1e-12  # a rate at which β stays what it was


def fewshot(
    *,
    data: str | Path | None = None,
    splits: str | Path | None = None,
    methods: Sequence[str] = ("ms", "arcface", "diva", "s2sd"),
    model: str = "efficientnet_lite0",
    shots: Sequence[int] = (2, 5),
    episodes: int = 10,
    adapt_steps: int = 200,
    count: int = 9,
    only: Sequence[int] | None = None,
    seeds: int = 1,
    steps: int | None = None,
    recipe: str | Path = RECIPE,
    settings: Mapping[str, Any] | None = None,
    layout: str = "auto",
    processes: int | None = None,
    out: str | Path | None = None,
    resume: str | Path | None = None,
) -> Run:
    """Adapt each method's head to `shots` images of every test class, over random episodes.

    The unadapted model answers the same queries. Nothing is chosen on the test classes: `adapt_steps` are taken for
    the smallest number of shots and half as many again for the others.
    """
    if resume is None and data is None:
        raise LookalikeError("There is nothing to run on: give a folder of images with classes.")
    if not shots or min(shots) < 2:
        raise LookalikeError("Few-shot needs at least 2 images of every class: one alone has no pair to learn from.")
    if (settings or {}).get("views", {}).get("mode") == "end_to_end":
        raise LookalikeError("Few-shot adapts heads on cached features; leave `views.mode` at cached.")
    config = {
        "data": str(data),
        "layout": layout,
        "splits": None if splits is None else str(splits),
        "methods": list(methods),
        "model": model,
        "shots": sorted(set(shots)),
        "episodes": episodes,
        "adapt_steps": adapt_steps,
        "count": count,
        "only": list(only or []),
        "seeds": seeds,
        "steps": steps,
        "recipe": str(recipe),
        "settings": dict(settings or {}),
    }
    series = Series.begin(KIND, config, out, resume)
    with series.run.locked():
        return _run(series, processes)


def _run(series: Series, processes: int | None) -> Run:
    config = series.config
    table = series.table(TABLE, config["data"], config["layout"])

    def settings(method: str, seed: int) -> Any:
        keys = ("recipe", "model", "steps", "settings")
        own = {key: config[key] for key in keys}
        return settings_for(method, seed=seed, layout=table.notes.get("layout", ""), **own)

    first = settings(config["methods"][0], 0)

    found = series.splits(table, first)
    shared.load(series.path(), first, progress=True)
    jobs, about = {}, {}
    for method in config["methods"]:
        for split in chosen_splits(config["only"], found):
            for seed in range(config["seeds"]):
                chosen = settings(method, seed)
                key = f"{method} split {split.id} seed {seed}"
                about[key] = {"method": method, "split": split.id, "fid": split.fid, "seed": seed}
                jobs[key] = job(series.path(), split, method, chosen, config, table.fingerprint())
    rows = []
    for key, result in series.work(jobs, fewshot_trial, "Few-shot", processes):
        rows += [{**about[key], **row} for row in result["episodes"]]
    summary = summarize(rows)
    series.run.write_result(finished=True, rows=rows, summary=summary)
    for name, section in report_sections(summary).items():
        series.run.write_section(name, section)
    return series.run


def job(
    table: Path, split: Any, method: str, settings: Any, config: Mapping[str, Any], fingerprint: str
) -> dict[str, Any]:
    """The arguments of one few-shot job."""
    rate = settings.optimizer.head_rate or settings.optimizer.rate
    base = settings.model_dump(mode="json", exclude={"method"})
    further = resolve(base, ADAPT, {"optimizer": {"rate": rate, "head_rate": rate, "loss_rate": STILL}})
    least = min(config["shots"])
    steps = {
        str(k): config["adapt_steps"] if k == least else round(1.5 * config["adapt_steps"]) for k in config["shots"]
    }
    own = {"held": split.validation, "supports": split.episodes} if split.episodes else {}  # of the authors' files
    return {
        **own,
        "table": str(table),
        "train": split.train,
        "test": split.test,
        "method": method,
        "settings": settings.model_dump(mode="json"),
        "adapt": further.model_dump(mode="json"),
        "shots": steps,
        "episodes": config["episodes"],
        "fingerprint": fingerprint,
    }


def summarize(rows: curve.Rows) -> list[dict[str, Any]]:
    """Zero- and few-shot of every method, split and number of shots; the gain with its t interval over episodes, each
    the mean over the seeds, which share them."""
    out = []
    keys = sorted({(row["fid"], row["split"], row["method"], row["shots"]) for row in rows})
    for fid, split, method, shots in keys:
        mine = [r for r in rows if (r["split"], r["method"], r["shots"]) == (split, method, shots)]
        episodes = sorted({row["episode"] for row in mine})
        found: dict[str, Any] = {"split": split, "fid": fid, "method": method, "shots": shots, "episodes": len(mine)}
        for measure in MEASURES:
            zero, few = (
                np.array([np.mean([r[side][measure] for r in mine if r["episode"] == e]) for e in episodes])
                for side in ("zero", "few")
            )
            found[measure] = {
                "zero": float(zero.mean()),
                "few": float(few.mean()),
                "gain": curve.band(few - zero).to_json(),
            }
        out.append(found)
    return out


def report_sections(summary: Sequence[Mapping[str, Any]]) -> dict[str, s.Section]:
    blocks: list[s.Block] = []
    for measure in MEASURES:
        cells: list[list[s.Cell]] = []
        for row in summary:
            found = row[measure]
            gain = {k: 100 * v for k, v in found["gain"].items()}
            cells.append(
                [
                    f"split {row['split']}",
                    row["method"],
                    row["shots"],
                    s.Value(value=found["zero"]),
                    s.Value(value=found["few"]),
                    s.Value(**gain, digits=1, signed=True),
                ]
            )
        columns = ["split", "method", "shots", "zero-shot", "few-shot", "gain, points"]
        blocks.append(s.Grid(title=measure, columns=columns, rows=cells, whisker="gain, points"))
    gains = [row["recall@1"]["gain"] for row in summary]
    sure = sum(gain["low"] > 0 for gain in gains)
    sentence = f"Few images help in {sure} of {len(gains)} cases beyond chance, by recall@1 on the same queries."
    return {
        "verdict": s.Section(title="Few-shot", order=s.VERDICT, blocks=[s.Verdict(sentence=sentence)]),
        "table": s.Section(title="Zero-shot and few-shot", order=s.TABLE, blocks=blocks),
    }
