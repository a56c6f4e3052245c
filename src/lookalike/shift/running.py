"""The verb `shift run`: splits × methods × seeds, and what they say together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lookalike.core import progress
from lookalike.core.errors import LookalikeError, choose
from lookalike.core.files import read_json
from lookalike.core.run import Run
from lookalike.data.table import Table
from lookalike.shift import curve
from lookalike.shift import material as shared
from lookalike.shift.series import METHODS, RECIPE, TABLE, Series, chosen_splits, settings_for
from lookalike.shift.splitset import Split, SplitSet
from lookalike.shift.trials import FROZEN, trial
from lookalike.training.settings import TrainSettings

KIND = "shift"


def run(
    *,
    data: str | Path | None = None,
    splits: str | Path | None = None,
    methods: Sequence[str] = METHODS,
    models: Sequence[str] = ("efficientnet_lite0",),
    count: int = 9,
    only: Sequence[int] | None = None,
    seeds: int = 3,
    steps: int | None = None,
    recipe: str | Path = RECIPE,
    settings: Mapping[str, Any] | None = None,
    select: str = "validation",
    transfer: Sequence[str | Path] = (),
    layout: str = "auto",
    processes: int | None = None,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    report: bool = True,
) -> Run:
    """Train every method on every split with every seed, and draw how performance falls as the shift grows.

    `splits` is a file that `shift splits` wrote (`count` are made here otherwise); `only` picks some by number.
    Several `models` (NAME, or NAME=WEIGHTS; the first one measures the splits) show what capacity and pretraining do.
    `transfer` names other data sets: the models of the default split are measured on them too. `select="test"` chooses
    the step on the test classes, as the papers' code does, and is marked as such. `resume` goes on with a run that
    was stopped.
    """
    if resume is None and data is None:
        raise LookalikeError("There is nothing to run on: give a folder of images with classes.")
    choose(select, ("validation", "test"), "a way to choose the step")
    from lookalike import methods as known

    for name in methods:
        known.find(name)
    if transfer and (settings or {}).get("views", {}).get("mode") == "end_to_end":
        raise LookalikeError("`transfer` measures heads on cached features; leave `views.mode` at cached.")
    config = {
        "data": str(data),
        "layout": layout,
        "splits": None if splits is None else str(splits),
        "methods": list(methods),
        "models": list(models),
        "count": count,
        "only": list(only or []),
        "seeds": seeds,
        "steps": steps,
        "recipe": str(recipe),
        "settings": dict(settings or {}),
        "select": select,
        "transfer": [str(path) for path in transfer],
    }
    series = Series.begin(KIND, config, out, resume)
    with series.run.locked():
        return _run(series, processes, report=report)


def _run(series: Series, processes: int | None, *, report: bool) -> Run:
    config = series.config
    table = series.table(TABLE, config["data"], config["layout"])
    first = settings_of(config, table, config["methods"][0], config["models"][0], 0)
    found = series.splits(table, first)
    others = dict(zip(short_names(config["transfer"]), config["transfer"], strict=True))
    for name, path in others.items():
        series.table(f"transfer-{name}.parquet", path)
    jobs, about = plan(series, table, found, list(others))
    for model in config["models"]:  # once, before several processes ask for them
        for name in (TABLE, *[f"transfer-{name}.parquet" for name in others]):
            shared.load(series.path(name), settings_of(config, table, config["methods"][0], model, 0), progress=True)
    rows = [{**about[key], **result} for key, result in series.work(jobs, trial, "Runs", processes)]
    facts = summary(rows, config)
    series.run.write_result(finished=True, rows=rows, **facts)
    if report:
        from lookalike.shift import report as sections

        material = shared.load(series.path(), first)
        main = [row for row in rows if row["model"] == config["models"][0]]
        sections.write(series.run, main, found, material, {**facts, "line": _line(config, table)})
    best = next(iter(facts["ags"]["recall@1"]))
    progress.say(f"Best by AGS: {best}, {facts['ags']['recall@1'][best]['value']:.3f}")
    return series.run


def settings_of(config: Mapping[str, Any], table: Table, method: str, model: str, seed: int) -> TrainSettings:
    own = {key: config[key] for key in ("recipe", "steps", "settings")}
    return settings_for(method, model=model, seed=seed, layout=table.notes.get("layout", ""), **own)


def short_names(paths: Sequence[str]) -> list[str]:
    """The last part of each path, with a number behind it where several end alike."""
    ends = [Path(path).name for path in paths]
    return [end if ends.count(end) == 1 else f"{end} {place}" for place, end in enumerate(ends, 1)]


def plan(
    series: Series, table: Table, splits: SplitSet, others: Sequence[str]
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """(arguments, what it is) of every run by name, the longest methods first; the frozen model once a split."""
    config = series.config
    chosen = chosen_splits(config["only"], splits)
    if len(chosen) < 2:
        raise LookalikeError("A curve needs at least 2 splits.")
    check_sides(splits, chosen)
    end, beside = splits.end_of_swapping(), controls(splits, chosen)
    if beside and end not in chosen:
        more = f"add split {end.id}" if end else "make more splits"
        progress.warn(f"Removals are shown without random ones of their size: those start from the last swap ({more}).")
    fingerprint = table.fingerprint()
    jobs, about = {}, {}
    for method in (*config["methods"], FROZEN):
        for model, short in zip(config["models"], short_names(config["models"]), strict=True):
            for split in chosen:
                for seed in range(config["seeds"] if method != FROZEN else 1):
                    own = method if method != FROZEN else config["methods"][0]
                    settings = settings_of(config, table, own, model, seed)
                    key = f"{method} {short} split {split.id} seed {seed}"
                    about[key] = {
                        "method": method,
                        "model": model,
                        "split": split.id,
                        "fid": split.fid,
                        "seed": seed,
                    }
                    jobs[key] = {
                        "table": str(series.path()),
                        "train": split.train,
                        "test": split.test,
                        "method": method,
                        "settings": settings.model_dump(mode="json"),
                        "select": config["select"],
                        "held": split.validation,
                        "controls": beside if split is end else {},
                        "transfer": {name: str(series.path(f"transfer-{name}.parquet")) for name in others}
                        if split.id == splits.default
                        else {},
                        "fingerprint": fingerprint,
                    }
    return jobs, about


def controls(splits: SplitSet, chosen: Sequence[Split]) -> dict[str, list[list[str]]]:
    """Test classes that random removals of the same size would leave, by the id of the removal they stand beside."""
    return {
        str(split.id): [list(test[len(test) - len(split.test) :]) for _, test in splits.random]
        for split in chosen
        if splits.is_removal(split)
    }


def check_sides(splits: SplitSet, chosen: Sequence[Split]) -> None:
    """Refuse, before anything is trained, splits on which nothing could be learned or measured."""
    images = splits.data["classes"]
    for split in chosen:
        for name, side in (("train", split.train), ("test", split.test)):
            if sum(images[one] >= 2 for one in side) < 2:
                raise LookalikeError(
                    f"Split {split.id} has fewer than two classes with two images or more on its {name} side: "
                    "leave classes of one image out, or pick other splits with `--only`."
                )


def summary(rows: curve.Rows, config: Mapping[str, Any]) -> dict[str, Any]:
    """AGS, ranks, gaps, correlations and transfer of the first model; AGS of the others."""
    by_model = {model: [row for row in rows if row["model"] == model] for model in config["models"]}
    main = by_model[config["models"][0]]
    trained = [row for row in main if row["method"] != FROZEN] or main
    out: dict[str, Any] = {"ags": {}, "ranks": {}, "gaps": {}, "trend": {}, "structure": {}}
    for measure in ("recall@1", "map@1000"):
        out["ags"][measure] = curve.scores(main, measure)
        out["ranks"][measure] = curve.ranks(trained, measure)
        out["gaps"][measure] = curve.gaps(trained, measure)
        out["trend"][measure] = {name: curve.trend(main, name, measure) for name in curve.methods_of(main)}
        out["structure"][measure] = curve.correlations(trained, measure)
    out["models"] = {
        model: {m: {k: curve.score(mine, m, k) for k in ("recall@1", "map@1000")} for m in curve.methods_of(mine)}
        for model, mine in by_model.items()
    }
    out["transfer"] = _transfer(main)
    return out


def _transfer(rows: curve.Rows) -> dict[str, Any]:
    import numpy as np

    found: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        for name, values in row.get("transfer", {}).items():
            found.setdefault(name, {}).setdefault(row["method"], []).append(values["recall@1"])
    return {
        name: {method: curve.band(np.array(values)).to_json() for method, values in methods.items()}
        for name, methods in found.items()
    }


def _line(config: Mapping[str, Any], table: Any) -> str:
    peeked = ", step chosen on the test classes (as the authors did)" if config["select"] == "test" else ""
    return f"{table.name}, {len(table):,} images, {config['seeds']} seeds, {config['models'][0]}{peeked}"


def rows_of(run: Run) -> list[dict[str, Any]]:
    """The finished runs of a curve."""
    return list(read_json(run.path / "result.json", "result")["rows"])
