"""The command ``shift run``: train splits × methods × seeds, and summarize how performance falls with the shift.

Images, splits and finished jobs are stored in the run folder, so that a stopped experiment can be resumed.
"""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lookalike import methods
from lookalike.core import progress
from lookalike.core.device import resolve as resolve_device
from lookalike.core.engine import Engine, Jobs, open_engine
from lookalike.core.errors import LookalikeError, choose
from lookalike.core.run import Run, find_run
from lookalike.data import audit, read_table, with_columns
from lookalike.data.table import Table
from lookalike.shift import ags, shared_features
from lookalike.shift.make_splits import make_splits
from lookalike.shift.split_set import Split, SplitSet
from lookalike.shift.trials import FROZEN, trial
from lookalike.training import recipe as recipes
from lookalike.training.estimate import Plan, Stages, describe_stages, duration
from lookalike.training.settings import TrainSettings, resolve
from lookalike.training.setup import starting_model

TABLE, SPLITS = "table.parquet", "splits.json"
RECIPE = "shift"
RUN_KIND = "shift"
HOW = ("processes", "engine", "out", "resume", "report")  # options of which no result depends
METHODS = ("s2sd", "diva", "margin", "ms", "arcface", "proxy_anchor", "r_margin", "uniform_prior")

# The authors' constants where they differ from the method's defaults: for all images, and by layout.
AUTHOR_SETTINGS: dict[str, dict[str, Any]] = {
    "ms": {"method": {"beta": 40.0, "epsilon": 0.1, "average": "active"}},
    "proxy_anchor": {"method": {"std": 0.125}, "optimizer": {"loss_lr": 0.02}},
}
AUTHOR_SETTINGS_BY_LAYOUT: dict[str, dict[str, dict[str, Any]]] = {
    "cars": {
        "r_margin": {"switch_probability": 0.35},
        "s2sd": {"switch_probability": 0.3},
        "diva": {"alpha": 0.15, "decorrelation": 100.0},
    },
    "sop": {
        "r_margin": {"beta": 0.9, "switch_probability": 0.15},
        "uniform_prior": {"weight": 0.02, "hidden_dim": 50, "update_every": 200},
        "diva": {"alpha": 0.2, "decorrelation": 150.0, "queue_size": 7560},
        "s2sd": {"beta": 0.9, "switch_probability": 0.0, "weight": 5.0, "feature_weight": 5.0}
        | {"feature_start_step": 1000},
    },
}


class Experiment:
    """A run folder with its images, its splits and its finished jobs.

    Args:
        kind: Kind of run: ``shift`` or ``fewshot``.
        options: Options of the command, kept in the run folder but for those of ``HOW``; a run to ``resume`` keeps the
            options it was started with.
    """

    def __init__(self, kind: str, options: Mapping[str, Any]) -> None:
        if options["resume"] is None:
            if options["data"] is None:
                raise LookalikeError("No images given: give a folder of images with classes.")
            columns = {name: value for name, value in options.items() if name.endswith("_column")}
            options = {**options, "layout": with_columns(options["layout"], **columns)}
            config = {name: _plain(options[name]) for name in options if name not in HOW and name not in columns}
            self.run = Run.create(kind, config, path=options["out"])
        else:
            self.run = find_run(options["resume"])
            if self.run.info.get("method") != kind:
                raise LookalikeError(f"`{self.run.path}` is a run of {self.run.info.get('method')}, not one of {kind}.")
            progress.say(
                f"Resuming after {progress.plural(len(list(self.path('jobs').glob('*.json'))), 'finished run')}."
            )
        self.config = self.run.config

    def path(self, name: str = TABLE) -> Path:
        """Path of a file in the run folder."""
        return self.run.path / name

    def table(self, name: str = TABLE, source: str | None = None, layout: str = "auto") -> Table:
        """The readable images of a source, audited once and stored."""
        path = self.path(name)
        if not path.exists():
            images = read_table(source or self.config["data"], layout=layout, progress=True)
            audited = audit(images, near=False, progress=True)
            if audited.unreadable:
                progress.warn(f"Left out, as they cannot be read: {progress.plural(len(audited.unreadable), 'image')}.")
            audited.table.save(path)
        return Table.load(path)

    def settings(self, table: Table, method: str | None = None, model: str | None = None, seed: int = 0) -> Any:
        """Training settings of one run; of the first method and the first model by default."""
        config = self.config
        own = {key: config[key] for key in ("recipe", "steps", "settings")}
        layout = table.notes.get("layout", "")
        return trial_settings(
            method or config["methods"][0], model=model or config["models"][0], seed=seed, layout=layout, **own
        )

    def splits(self, table: Table) -> SplitSet:
        """The splits of this run: from a file, or made once with the starting model as reference model."""
        path, file = self.path(SPLITS), self.config["splits"]
        if not path.exists():
            if file is not None:
                splits = SplitSet.load(Path(file)).with_random_removals()
                splits.check(table)
            else:
                settings = self.settings(table)
                model = starting_model(settings, resolve_device(settings.device))
                splits = make_splits(table, model, count=self.config["count"], progress=True)
            splits.save(path)
        return SplitSet.load(path)

    def run_trials(
        self,
        table: Table,
        splits: Sequence[Split],
        arguments: Callable[[str, Split, TrainSettings], Mapping[str, Any]],
        function: Callable[..., Any],
        *,
        engine: Engine,
        frozen: bool = False,
    ) -> Iterator[tuple[dict[str, Any], Any]]:
        """Run ``function`` for every method, starting model, split and seed; yield each description and result.

        The frozen model, if asked for, is evaluated once per split.
        """
        config = self.config
        shorts = dict(zip(config["models"], unique_names(config["models"]), strict=True))
        jobs, descriptions = {}, {}
        for method in (*config["methods"], *((FROZEN,) if frozen else ())):
            for model, split in itertools.product(config["models"], splits):
                for seed in range(config["seeds"] if method != FROZEN else 1):
                    settings = self.settings(table, None if method == FROZEN else method, model, seed)
                    key = f"{method} {shorts[model]} split {split.id} seed {seed}"
                    about = {"method": method, "model": model, "split": split.id, "fid": split.fid, "seed": seed}
                    descriptions[key], jobs[key] = about, dict(arguments(method, split, settings))
        stored = Jobs(self.run.path / "jobs")
        progress.say(f"{progress.plural(len(jobs), 'run')} of {self.settings(table).steps:,} steps at most.")
        with progress.Progress("Runs", len(jobs)) as bar:
            for key, result in stored.run_many(jobs, function, engine=engine):
                bar.advance(note=key)
                yield descriptions[key], result


def _plain(value: Any) -> Any:
    """Paths and sequences as JSON stores them."""
    if isinstance(value, Path):
        return str(value)
    return [_plain(one) for one in value] if isinstance(value, Sequence) and not isinstance(value, str) else value


def trial_settings(
    method: str,
    *,
    recipe: str | Path,
    model: str,
    seed: int,
    steps: int | None,
    settings: Mapping[str, Any] | None,
    layout: str = "",
) -> TrainSettings:
    """Training settings of one run.

    The recipe is the same for all methods; over it lie the authors' constants for the method and the data set, and the
    user's settings. Settings under a method's name (``s2sd.feature_weight=0``) apply to that method alone.
    """
    settings, known = settings or {}, methods.names()
    own = {"method": {"name": method, **AUTHOR_SETTINGS_BY_LAYOUT.get(layout, {}).get(method, {})}}
    common = {key: value for key, value in settings.items() if key not in known}
    of_method = {"method": settings[method]} if method in settings else {}
    name, _, weights = model.partition("=")
    base = {key: value for key, value in recipes.load(recipe).items() if key != "method"}
    own_settings: dict[str, Any] = {"model": {"name": name, **({"weights": weights} if weights else {})}, "seed": seed}
    if steps is not None:
        own_settings |= {"steps": steps, "evaluate_every": max(1, steps // 2)}
    return resolve(own, AUTHOR_SETTINGS.get(method, {}), base, common, of_method, own_settings)


def select_splits(numbers: Sequence[int] | None, splits: SplitSet) -> list[Split]:
    """The splits with these numbers, or all."""
    return [splits.split(number) for number in numbers] if numbers else list(splits.splits)


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
    image_column: str | None = None,
    label_column: str | None = None,
    split_column: str | None = None,
    processes: int | None = None,
    engine: str = "local",
    out: str | Path | None = None,
    resume: str | Path | None = None,
    dry_run: bool = False,
    report: bool = True,
) -> Run | Plan:
    """Train every method on every split.

    Shows how performance falls as the shift between training and test classes grows. Every finished training run is
    stored in the run folder, so that a stopped experiment can be resumed.

    Args:
        data: Labeled images: a folder with one subfolder per class, or a table.
        splits: File of splits written by ``shift splits``; made here by default.
        methods: Training methods.
        models: Starting models, as NAME or NAME=WEIGHTS; the first one measures the splits.
        count: Number of splits to make, if none are given.
        only: Numbers of the splits to use; all by default.
        seeds: Number of runs per method and split.
        steps: Training steps per run; those of the recipe by default.
        recipe: Name of a recipe, or a YAML file.
        settings: Further training settings, such as optimizer.lr=1e-4.
        select: Choose the step on validation classes, or on test classes as the papers do (marked in the report).
        transfer: Further data sets on which the models of the default split are evaluated.
        layout: Layout of the data set; detected by default.
        image_column: Column of a table with the images; found by its name or type by default.
        label_column: Column of a table with the labels.
        split_column: Column of a table with the split; `fold:train=0,1,test=2` also says what its values stand for.
        processes: Number of parallel runs; one per core by default.
        engine: What runs them: local, ray or ray://HOST:PORT, whose nodes must reach the run folder and the images.
        out: Run folder; runs/<time>-shift by default.
        resume: Stopped run to resume.
        dry_run: Only print the settings and what the runs would cost, timed on a few images and steps.
        report: Also write the report's maps.

    Returns:
        The finished run; its result has one row per training run, AGS, ranks, gaps and correlations. With `dry_run` a
        `Plan`.

    Raises:
        LookalikeError: If there are no images, an option is invalid, or a split cannot be trained on.

    References:
        Milbich et al., "Characterizing Generalization under Out-Of-Distribution Shifts in Deep Metric Learning",
        section 4.

    Example:
        >>> run = la.shift.run(data="birds", methods=["ms", "s2sd"], seeds=1)  # doctest: +SKIP
        >>> run.result["ags"]["recall@1"]["ms"]["value"]  # doctest: +SKIP
        0.62
    """
    config = dict(locals())
    choose(select, ("validation", "test"), "a way to choose the step")
    from lookalike import methods as registry

    for name in methods:
        registry.find(name)
    if transfer and (settings or {}).get("views", {}).get("mode") == "end_to_end":
        raise LookalikeError("`transfer` needs heads on cached features; leave `views.mode` at cached.")
    with contextlib.ExitStack() as stack:
        if dry_run:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="lookalike-plan-"))
            config |= {"out": Path(folder) / "run", "resume": None}
        experiment = Experiment(RUN_KIND, config)
        stack.enter_context(experiment.run.locked())
        stack.enter_context(experiment.run.continued_by("shift run"))
        return _run(experiment, open_engine(engine, processes=processes), report=report, dry_run=dry_run)


def _run(experiment: Experiment, engine: Engine, *, report: bool, dry_run: bool) -> Run | Plan:
    config = experiment.config
    table = experiment.table(layout=config["layout"])
    others = {name: f"transfer-{name}.parquet" for name in unique_names(config["transfer"])}
    tables = [experiment.table(name, source) for name, source in zip(others.values(), config["transfer"], strict=True)]
    begun, stored = experiment.path(SPLITS).exists(), None
    if config["splits"] is not None:
        stored = experiment.splits(table)
        trainable_splits(stored, config["only"])
    if not begun:  # a resumed run has told its time
        from lookalike.shift.running_time import running_time

        settings_of, workers = partial(experiment.settings, table), getattr(engine, "processes", 1)
        seconds = running_time(config, [table, *tables], stored, settings_of, workers, report=report)
        time = f"about {duration(sum(seconds.values()))}: {describe_stages(seconds)}"
        if dry_run:
            trained = {name: ", ".join(map(str, config[name])) for name in ("methods", "models")}
            images = f"{table.name}, {progress.plural(len(table), 'image')}"
            return Plan(settings_of(), {"images": images, **trained, "seeds": config["seeds"], "time": time}, seconds)
        progress.say(f"This will take {time}.")
    stages = Stages()
    split_set = experiment.splits(table)
    stages.finish("splits")
    chosen = trainable_splits(split_set, config["only"])
    end, removal_controls = split_set.end_of_swapping(), controls(split_set, chosen)
    if removal_controls and end not in chosen:
        more = f"add split {end.id}" if end else "make more splits"
        progress.warn(f"Removals are shown without random controls, which start from the last swap; {more}.")
    for model in config["models"]:  # fill the cache before several processes start
        for name in (TABLE, *others.values()):
            shared_features.load(experiment.path(name), experiment.settings(table, model=model), progress=True)
    stages.finish("features")
    transfer = {name: str(experiment.path(file)) for name, file in others.items()}
    common = {"table": str(experiment.path()), "select": config["select"], "fingerprint": table.fingerprint()}

    def arguments(method: str, split: Split, settings: TrainSettings) -> dict[str, Any]:
        sides = {"train": split.train, "test": split.test, "validation": split.validation}
        more = {
            "controls": removal_controls if split is end else {},
            "transfer": transfer if split.id == split_set.default else {},
        }
        return {**common, **sides, **more, "method": method, "settings": settings.model_dump(mode="json")}

    trials = experiment.run_trials(table, chosen, arguments, trial, engine=engine, frozen=True)
    rows = [{**about, **result} for about, result in trials]
    stages.finish("runs")
    facts = summary(rows, config)
    if report:
        from lookalike.shift import shift_report

        selection = ", step chosen on the test classes (as the authors did)" if config["select"] == "test" else ""
        line = f"{table.name}, {len(table):,} images, {config['seeds']} seeds, {config['models'][0]}{selection}"
        shared = shared_features.load(experiment.path(), experiment.settings(table))
        main = [row for row in rows if row["model"] == config["models"][0]]
        shift_report.write_sections(experiment.run, main, split_set, shared, {**facts, "line": line})
    stages.finish("report")
    experiment.run.write_result(finished=True, rows=rows, **facts, seconds=stages.seconds)
    best = next(iter(facts["ags"]["recall@1"]))
    progress.say(f"Best by AGS: {best}, {facts['ags']['recall@1'][best]['value']:.3f}")
    return experiment.run


def unique_names(paths: Sequence[str]) -> list[str]:
    """The last part of each path, numbered where several are equal."""
    ends = [Path(path).name for path in paths]
    return [end if ends.count(end) == 1 else f"{end} {place}" for place, end in enumerate(ends, 1)]


def controls(splits: SplitSet, chosen: Sequence[Split]) -> dict[str, list[list[str]]]:
    """Test classes left by random removals of the same size, by the id of each removal split."""
    return {
        str(split.id): [list(test[len(test) - len(split.test) :]) for _, test in splits.random]
        for split in chosen
        if splits.is_removal(split)
    }


def trainable_splits(splits: SplitSet, only: Sequence[int] | None = None) -> list[Split]:
    """The splits to use; raise if they are too few, or one cannot be trained or evaluated."""
    chosen, images = select_splits(only, splits), splits.data["classes"]
    if len(chosen) < 2:
        raise LookalikeError("A curve needs at least 2 splits.")
    for split in chosen:
        for name, side in (("train", split.train), ("test", split.test)):
            if sum(images[one] >= 2 for one in side) < 2:
                raise LookalikeError(
                    f"Split {split.id} has fewer than two classes with two images or more on its {name} side: "
                    "leave classes of one image out, or pick other splits with `--only`."
                )
    return chosen


def summary(rows: ags.Rows, config: Mapping[str, Any]) -> dict[str, Any]:
    """AGS, ranks, gaps, correlations and transfer of the first starting model; AGS of the others."""
    by_model = {model: [row for row in rows if row["model"] == model] for model in config["models"]}
    main = by_model[config["models"][0]]
    trained = [row for row in main if row["method"] != FROZEN] or main
    measures, names = ("recall@1", "map@1000"), ags.methods_of(main)
    return {
        "ags": {measure: ags.scores(main, measure) for measure in measures},
        "ranks": {measure: ags.ranks(trained, measure) for measure in measures},
        "gaps": {measure: ags.gaps(trained, measure) for measure in measures},
        "trend": {measure: {name: ags.trend(main, name, measure) for name in names} for measure in measures},
        "structure": {measure: ags.correlations(trained, measure) for measure in measures},
        "models": {
            model: {name: {k: ags.score(mine, name, k) for k in measures} for name in ags.methods_of(mine)}
            for model, mine in by_model.items()
        },
        "transfer": ags.transfer(main),
    }
