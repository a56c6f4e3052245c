"""The command ``shift fewshot``: adapt a trained head to a few labeled images of every test class.

Support and queries never overlap, the number of steps is fixed beforehand, and adapted and unadapted models are
evaluated on the same queries: those left over by the largest support, of which the smaller ones are subsets.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lookalike import methods
from lookalike.core import report_blocks as s
from lookalike.core.engine import Engine, open_engine
from lookalike.core.errors import LookalikeError
from lookalike.core.run import Run
from lookalike.core.seeds import numpy_rng
from lookalike.methods.margin import MarginSettings
from lookalike.shift import ags, shared_features
from lookalike.shift.experiment import RECIPE, Experiment, select_splits
from lookalike.shift.split_set import Split
from lookalike.shift.trials import FROZEN, divide, fit, query_gallery, quiet, retrieval_scores
from lookalike.training.settings import TrainSettings, resolve
from lookalike.training.split import Division

FEWSHOT_KIND = "fewshot"
MEASURES = ("recall@1", "map@1000")
# As the authors do, only the head is adapted, by Margin with β fixed at the run's value.
ADAPT = {"method": {"name": "margin"}, "data": {"validation_fraction": 0.0}}
FROZEN_LR = 1e-12  # a learning rate at which β does not move


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
    image_column: str | None = None,
    label_column: str | None = None,
    split_column: str | None = None,
    processes: int | None = None,
    engine: str = "local",
    out: str | Path | None = None,
    resume: str | Path | None = None,
) -> Run:
    """Adapt to a few labeled images of the test classes.

    The head of each method is adapted to random episodes; the unadapted model answers the same queries. Nothing is
    chosen on the test classes: ``adapt_steps`` are taken for the smallest number of shots and 1.5 times as many for the
    others.

    Args:
        data: Labeled images: a folder with one subfolder per class, or a table.
        splits: File of splits written by ``shift splits``; made here by default.
        methods: Training methods.
        model: Starting model, as NAME or NAME=WEIGHTS.
        shots: Labeled images per test class, at least 2.
        episodes: Random draws of these images.
        adapt_steps: Steps of adaptation; 1.5 times as many for more shots.
        count: Number of splits to make, if none are given.
        only: Numbers of the splits to use; all by default.
        seeds: Number of runs per method and split.
        steps: Training steps per run; those of the recipe by default.
        recipe: Name of a recipe, or a YAML file.
        settings: Further training settings, such as optimizer.lr=1e-4.
        layout: Layout of the data set; detected by default.
        image_column: Column of a table with the images; found by its name or type by default.
        label_column: Column of a table with the labels.
        split_column: Column of a table with the split; `fold:train=0,1,test=2` also says what its values stand for.
        processes: Number of parallel runs; one per core by default.
        engine: What runs them: local, ray or ray://HOST:PORT, whose nodes must reach the run folder and the images.
        out: Run folder; runs/<time>-fewshot by default.
        resume: Stopped run to resume.

    Returns:
        The finished run; its result has one row per episode and a summary.

    Raises:
        LookalikeError: If there are no images, or fewer than 2 shots.

    References:
        Milbich et al., "Characterizing Generalization under Out-Of-Distribution Shifts in Deep Metric Learning",
        section 5.

    Example:
        >>> run = la.shift.fewshot(data="birds", methods=["ms"], episodes=3)  # doctest: +SKIP
        >>> run.result["summary"][0]["recall@1"]["gain"]["value"]  # doctest: +SKIP
        0.021
    """
    config = {**locals(), "models": [model], "shots": sorted(set(shots))}
    if not shots or min(shots) < 2:
        raise LookalikeError("Few-shot needs at least 2 images of every class: one alone has no pair to learn from.")
    if (settings or {}).get("views", {}).get("mode") == "end_to_end":
        raise LookalikeError("Few-shot adapts heads on cached features; leave `views.mode` at cached.")
    experiment = Experiment(FEWSHOT_KIND, config)
    with experiment.run.locked(), experiment.run.continued_by("shift fewshot"):
        return _run(experiment, open_engine(engine, processes=processes))


def _run(experiment: Experiment, engine: Engine) -> Run:
    config = experiment.config
    table = experiment.table(layout=config["layout"])
    split_set = experiment.splits(table)
    shared_features.load(experiment.path(), experiment.settings(table), progress=True)
    fingerprint = table.fingerprint()

    def arguments(method: str, split: Split, settings: TrainSettings) -> dict[str, Any]:
        return fewshot_job(experiment.path(), split, method, settings, config, fingerprint)

    chosen = select_splits(config["only"], split_set)
    rows = []
    for about, result in experiment.run_trials(table, chosen, arguments, fewshot_trial, engine=engine):
        rows += [{**about, **row} for row in result["episodes"]]
    summary = summarize(rows)
    experiment.run.write_result(finished=True, rows=rows, summary=summary)
    for name, section in report_sections(summary).items():
        experiment.run.write_section(name, section)
    return experiment.run


def fewshot_job(
    table: Path, split: Split, method: str, settings: TrainSettings, config: Mapping[str, Any], fingerprint: str
) -> dict[str, Any]:
    """Arguments of :func:`fewshot_trial` for one method, split and seed."""
    lr = settings.optimizer.head_lr or settings.optimizer.lr
    base = settings.model_dump(mode="json", exclude={"method"})
    has_boundary = issubclass(methods.find(method).Settings, MarginSettings)  # Multi-Similarity's β is another
    boundary = {"method": {"beta": settings.method.own()["beta"]}} if has_boundary else {}
    adapt = resolve(base, ADAPT, boundary, {"optimizer": {"lr": lr, "head_lr": lr, "loss_lr": FROZEN_LR}})
    least, steps = min(config["shots"]), config["adapt_steps"]
    authors = {"validation": split.validation, "supports": split.episodes} if split.episodes else {}  # of their files
    shots = {str(k): steps if k == least else round(1.5 * steps) for k in config["shots"]}
    of_split = {"table": str(table), "train": split.train, "test": split.test, "fingerprint": fingerprint, **authors}
    dumps = {"settings": settings.model_dump(mode="json"), "adapt": adapt.model_dump(mode="json")}
    return {**of_split, **dumps, "method": method, "shots": shots, "episodes": config["episodes"]}


def summarize(rows: ags.Rows) -> list[dict[str, Any]]:
    """Zero-shot and few-shot scores of every method, split and number of shots."""
    out = []
    for fid, split, method, shots in sorted({(r["fid"], r["split"], r["method"], r["shots"]) for r in rows}):
        mine = [r for r in rows if (r["split"], r["method"], r["shots"]) == (split, method, shots)]
        episodes = sorted({row["episode"] for row in mine})
        entry: dict[str, Any] = {"split": split, "fid": fid, "method": method, "shots": shots, "episodes": len(mine)}
        for name in MEASURES:
            zero, few = (
                np.array([np.mean([r[side][name] for r in mine if r["episode"] == e]) for e in episodes])
                for side in ("zero", "few")
            )
            means = {"zero": float(zero.mean()), "few": float(few.mean())}
            entry[name] = {**means, "gain": ags.t_interval(few - zero).to_json()}
        out.append(entry)
    return out


def report_sections(summary: Sequence[Mapping[str, Any]]) -> dict[str, s.Section]:
    """Report sections: a verdict and one table per measure."""
    blocks: list[s.Block] = []
    for name in MEASURES:
        cells: list[list[s.Cell]] = []
        for row in summary:
            means = [s.Value(value=row[name][side]) for side in ("zero", "few")]
            gain = s.Value(**{k: 100 * v for k, v in row[name]["gain"].items()}, digits=1, signed=True)
            cells.append([f"split {row['split']}", row["method"], row["shots"], *means, gain])
        columns = ["split", "method", "shots", "zero-shot", "few-shot", "gain, points"]
        blocks.append(s.Grid(title=name, columns=columns, rows=cells, whisker="gain, points"))
    helps = sum(row["recall@1"]["gain"]["low"] > 0 for row in summary)
    message = f"Few-shot adaptation helps significantly in {helps} of {len(summary)} cases (recall@1, same queries)."
    return {
        "verdict": s.Section(title="Few-shot", order=s.VERDICT, blocks=[s.Verdict(message=message)]),
        "table": s.Section(title="Zero-shot and few-shot", order=s.TABLE, blocks=blocks),
    }


def episode(
    labels: np.ndarray, rows: np.ndarray, shots: Sequence[int], number: int, gallery: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """Draw one episode.

    Where queries are separate from the ``gallery``, supports come from the gallery, of which something is left: an
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
        raise LookalikeError(f"Few-shot needs at least two test classes with at least {most + 2} images.")
    out = {name: np.sort(np.concatenate(parts)) for name, parts in supports.items()}
    return {**out, "queries": np.sort(np.concatenate(queries))}


def stored_episode(
    shared: shared_features.SharedFeatures,
    rows: np.ndarray,
    supports: Mapping[str, Any],
    shots: Sequence[int],
    number: int,
) -> dict[str, np.ndarray]:
    """An episode of an authors' file, whose supports are not nested: the queries are what none of them contains."""
    files = [str(name) for name in shared.table.take(rows).column("path")]
    row_of = {
        (shared.names[shared.labels[row]], Path(f).name): row for row, f in zip(rows.tolist(), files, strict=True)
    }
    out = {}
    for k in shots:
        try:
            named = supports[str(k)][str(number)]
            expected = [(name, Path(file).name) for name, files in named.items() for file in files]
            out[str(k)] = np.sort(np.array([row_of[key] for key in expected], np.int64))
        except KeyError as error:
            raise LookalikeError(f"Episode {number} with {k} shots refers to {error}, which does not exist.") from error
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
    """Train on some classes, then adapt to the support of each episode."""
    chosen, further = TrainSettings.model_validate(dict(settings)), TrainSettings.model_validate(dict(adapt))
    with quiet(), tempfile.TemporaryDirectory(prefix="lookalike-shift-") as folder:
        shared = shared_features.load(table, chosen)
        run = Run.create(method, {}, path=Path(folder) / "run")
        setup = shared_features.build_setup(
            shared, chosen, divide(shared, chosen, train, test, validation=validation), run
        )
        if method != FROZEN:
            fit(setup, run)
        top = shared_features.copy_head(shared.model)
        rows, counts = shared.rows_of(test), [int(k) for k in shots]
        gallery = np.zeros(len(shared.labels), bool)
        gallery[rows] = query_gallery(shared.table.take(rows), shared.labels[rows]).get("gallery", False)
        out = []
        for number in range(episodes):
            if supports:
                sets = stored_episode(shared, rows, supports, counts, number)
            else:
                sets = episode(shared.labels, rows, counts, number, gallery if gallery.any() else None)
            queries = sets["queries"]
            zero = _measured(shared, queries, shared.vectors(queries, top))
            for k, steps in shots.items():
                own = further.model_copy(update={"steps": steps, "evaluate_every": max(steps, 1), "seed": number})
                division = Division(sets[k], queries[:0], queries, "few-shot")
                run = Run.create("few-shot", {}, path=Path(folder) / f"{number}-{k}")
                encode, _ = fit(shared_features.build_setup(shared, own, division, run, top), run)
                few = _measured(shared, queries, encode(queries))
                out.append({"episode": number, "shots": int(k), "zero": zero, "few": few, "queries": len(queries)})
    return {"episodes": out}


def _measured(shared: shared_features.SharedFeatures, rows: np.ndarray, vectors: np.ndarray) -> dict[str, float]:
    values = retrieval_scores(shared, rows, vectors)
    return {name: values[name] for name in MEASURES}
