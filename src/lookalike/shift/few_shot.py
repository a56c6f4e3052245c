"""Few-shot."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lookalike.core import report_blocks as s
from lookalike.core.errors import LookalikeError
from lookalike.core.run import Run
from lookalike.core.seeds import numpy_rng
from lookalike.shift import ags, shared_features
from lookalike.shift.experiment import RECIPE, TABLE, Experiment, select_splits, trial_settings
from lookalike.shift.trials import FROZEN, divide, fit, query_gallery, quiet, retrieval_scores
from lookalike.training.settings import TrainSettings, resolve
from lookalike.training.split import Division

FEWSHOT_KIND = "fewshot"
MEASURES = ("recall@1", "map@1000")
# Only the head moves, by Margin at its start's β, which is what the authors adapt with (docs/decisions/0122).
ADAPT = {"method": {"name": "margin"}, "data": {"validation_fraction": 0.0}}
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
    experiment = Experiment.create_or_resume(FEWSHOT_KIND, config, out, resume)
    with experiment.run.locked():
        return _run(experiment, processes)


def _run(experiment: Experiment, processes: int | None) -> Run:
    config = experiment.config
    table = experiment.table(TABLE, config["data"], config["layout"])

    def settings(method: str, seed: int) -> Any:
        keys = ("recipe", "model", "steps", "settings")
        own = {key: config[key] for key in keys}
        return trial_settings(method, seed=seed, layout=table.notes.get("layout", ""), **own)

    first = settings(config["methods"][0], 0)

    found = experiment.splits(table, first)
    shared_features.load(experiment.path(), first, progress=True)
    jobs, about = {}, {}
    for method in config["methods"]:
        for split in select_splits(config["only"], found):
            for seed in range(config["seeds"]):
                chosen = settings(method, seed)
                key = f"{method} split {split.id} seed {seed}"
                about[key] = {"method": method, "split": split.id, "fid": split.fid, "seed": seed}
                jobs[key] = fewshot_job(experiment.path(), split, method, chosen, config, table.fingerprint())
    rows = []
    for key, result in experiment.run_jobs(jobs, fewshot_trial, "Few-shot", processes):
        rows += [{**about[key], **row} for row in result["episodes"]]
    summary = summarize(rows)
    experiment.run.write_result(finished=True, rows=rows, summary=summary)
    for name, section in report_sections(summary).items():
        experiment.run.write_section(name, section)
    return experiment.run


def fewshot_job(
    table: Path, split: Any, method: str, settings: Any, config: Mapping[str, Any], fingerprint: str
) -> dict[str, Any]:
    """The arguments of one few-shot job."""
    rate = settings.optimizer.head_lr or settings.optimizer.lr
    base = settings.model_dump(mode="json", exclude={"method"})
    further = resolve(base, ADAPT, {"optimizer": {"lr": rate, "head_lr": rate, "loss_lr": STILL}})
    least = min(config["shots"])
    steps = {
        str(k): config["adapt_steps"] if k == least else round(1.5 * config["adapt_steps"]) for k in config["shots"]
    }
    own = (
        {"validation": split.validation, "supports": split.episodes} if split.episodes else {}
    )  # of the authors' files
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


def summarize(rows: ags.Rows) -> list[dict[str, Any]]:
    """Zero- and few-shot of every method, split and number of shots; the gain with its t interval over episodes, each
    the mean over the seeds, which share them."""
    out = []
    keys = sorted({(row["fid"], row["split"], row["method"], row["shots"]) for row in rows})
    for fid, split, method, shots in keys:
        mine = [r for r in rows if (r["split"], r["method"], r["shots"]) == (split, method, shots)]
        episodes = sorted({row["episode"] for row in mine})
        found: dict[str, Any] = {"split": split, "fid": fid, "method": method, "shots": shots, "episodes": len(mine)}
        for name in MEASURES:
            zero, few = (
                np.array([np.mean([r[side][name] for r in mine if r["episode"] == e]) for e in episodes])
                for side in ("zero", "few")
            )
            found[name] = {
                "zero": float(zero.mean()),
                "few": float(few.mean()),
                "gain": ags.t_interval(few - zero).to_json(),
            }
        out.append(found)
    return out


def report_sections(summary: Sequence[Mapping[str, Any]]) -> dict[str, s.Section]:
    blocks: list[s.Block] = []
    for name in MEASURES:
        cells: list[list[s.Cell]] = []
        for row in summary:
            found = row[name]
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
        blocks.append(s.Grid(title=name, columns=columns, rows=cells, whisker="gain, points"))
    gains = [row["recall@1"]["gain"] for row in summary]
    sure = sum(gain["low"] > 0 for gain in gains)
    sentence = f"Few images help in {sure} of {len(gains)} cases beyond chance, by recall@1 on the same queries."
    return {
        "verdict": s.Section(title="Few-shot", order=s.VERDICT, blocks=[s.Verdict(sentence=sentence)]),
        "table": s.Section(title="Zero-shot and few-shot", order=s.TABLE, blocks=blocks),
    }


def episode(
    labels: np.ndarray, rows: np.ndarray, shots: Sequence[int], number: int, gallery: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """Rows of each support (by shots, nested) and of the `queries`. Classes too small for a query are left out.

    Where queries are parted from the `gallery` (by row), supports come from the gallery, of which something is left: a
    image taken a moment after a query would give its answer away.
    """
    most = max(shots)
    supports: dict[str, list[np.ndarray]] = {str(k): [] for k in shots}
    queries = []
    for code in np.unique(labels[rows]):
        group = numpy_rng(number, "episode", int(code)).permutation(rows[labels[rows] == code])
        if gallery is not None:
            group = group[np.argsort(~gallery[group], kind="stable")]
            if not most < gallery[group].sum() < len(group):
                continue
        if len(group) < most + 2:
            continue
        for k in shots:
            supports[str(k)].append(group[:k])
        queries.append(group[most:])
    if len(queries) < 2:
        raise LookalikeError(f"Few-shot needs two test classes or more with at least {most + 2} images.")
    out = {name: np.sort(np.concatenate(parts)) for name, parts in supports.items()}
    return {**out, "queries": np.sort(np.concatenate(queries))}


def stored_episode(
    found: shared_features.SharedFeatures,
    rows: np.ndarray,
    supports: Mapping[str, Any],
    shots: Sequence[int],
    number: int,
) -> dict[str, np.ndarray]:
    """The same of an authors' file, `supports`: shots → episode → class → file names. Its supports are not nested: the
    queries are what none of them holds."""
    files = [str(name) for name in found.table.take(rows).column("path")]
    places = {(found.names[found.labels[row]], Path(f).name): row for row, f in zip(rows.tolist(), files, strict=True)}
    out = {}
    for k in shots:
        try:
            named = supports[str(k)][str(number)]
            wanted = [(name, Path(file).name) for name, files in named.items() for file in files]
            out[str(k)] = np.sort(np.array([places[key] for key in wanted], np.int64))
        except KeyError as error:
            raise LookalikeError(f"Episode {number} with {k} shots needs {error}, which is not there.") from error
    return {**out, "queries": np.setdiff1d(rows, np.concatenate(list(out.values())))}


def fewshot_trial(
    *,
    table: str,
    train: Sequence[str],
    test: Sequence[str],
    method: str,
    settings: Mapping[str, Any],
    adapt: Mapping[str, Any],
    shots: Mapping[str, int],
    episodes: int,
    validation: Sequence[str] = (),
    supports: Mapping[str, Any] | None = None,
    fingerprint: str = "",
) -> dict[str, Any]:
    """Train on the classes `train`, then adapt to each episode's support; `shots` gives steps by number of shots.

    `validation` are training classes that choose the step, `supports` the episodes (both drawn otherwise).
    """
    chosen, further = TrainSettings.model_validate(dict(settings)), TrainSettings.model_validate(dict(adapt))
    with quiet(), tempfile.TemporaryDirectory(prefix="lookalike-shift-") as folder:
        found = shared_features.load(table, chosen)
        run = Run.create(method, {}, path=Path(folder) / "run")
        parts = shared_features.build_setup(
            found, chosen, divide(found, chosen, train, test, validation=validation), run
        )
        if method != FROZEN:
            fit(parts, run)
        top = shared_features.copy_head(found.model)
        rows, counts = found.rows_of(test), [int(k) for k in shots]
        gallery = np.zeros(len(found.labels), bool)
        gallery[rows] = query_gallery(found.table.take(rows), found.labels[rows]).get("gallery", False)
        out = []
        for number in range(episodes):
            if supports:
                sets = stored_episode(found, rows, supports, counts, number)
            else:
                sets = episode(found.labels, rows, counts, number, gallery if gallery.any() else None)
            queries = sets["queries"]
            zero = _measured(found, queries, found.vectors(queries, top))
            for k, steps in shots.items():
                own = further.model_copy(update={"steps": steps, "evaluate_every": max(steps, 1), "seed": number})
                none = queries[:0]
                division = Division(sets[k], none, queries, "few-shot")
                run = Run.create("few-shot", {}, path=Path(folder) / f"{number}-{k}")
                encode, _ = fit(shared_features.build_setup(found, own, division, run, top), run)
                few = _measured(found, queries, encode(queries))
                out.append({"episode": number, "shots": int(k), "zero": zero, "few": few, "queries": len(queries)})
    return {"episodes": out}


def _measured(found: shared_features.SharedFeatures, rows: np.ndarray, vectors: np.ndarray) -> dict[str, float]:
    values = retrieval_scores(found, rows, vectors)
    return {name: values[name] for name in ("recall@1", "map@1000")}
