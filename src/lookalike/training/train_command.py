"""The commands `train` and `pretrain`: prepare the images, fit, measure, save, write the result."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from lookalike import methods
from lookalike.core import distributed, progress
from lookalike.core.errors import LookalikeError
from lookalike.core.files import read_json, write_json
from lookalike.core.imports import package_versions
from lookalike.core.run import Run, find_run, in_every_process, started_by_torchrun
from lookalike.core.settings import flatten, merge, write_yaml
from lookalike.core.storage import location
from lookalike.data import Table, audit, check_classes, read_table, with_columns
from lookalike.evaluation import training_overlap
from lookalike.models import Embedder, hub, model_folder, open_clip
from lookalike.training import checkpoint
from lookalike.training import recipe as recipe_files
from lookalike.training.estimate import Plan, Stages, plan_run
from lookalike.training.loop import Loop, TrainingProgress
from lookalike.training.own_parts import OwnParts, check_resumed, describe_repeat
from lookalike.training.report import last_guard_readings, write_sections
from lookalike.training.selection import save_models, select_model
from lookalike.training.settings import TrainSettings, expand_shorthand, method_name, resolve
from lookalike.training.setup import build_setup
from lookalike.training.split import Division, divide
from lookalike.training.which_method import choose_method

TABLE, PREPARED = "table.parquet", "prepared.json"
START_MODEL = "start_model"  # the folder of a run that was given a loaded model
DEFAULT_RECIPES = {"train": recipe_files.DEFAULT, "pretrain": "pretrain"}
FROM_SCRATCH = {"model": {"weights": "random", "batch_norm": "train"}}  # random weights have no statistics to keep


def train(
    *,
    data: Any = None,
    image_column: str | None = None,
    label_column: str | None = None,
    split_column: str | None = None,
    method: str | None = None,
    model: str | Path | Embedder | None = None,
    recipe: str | Path | None = None,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    seed: int | None = None,
    device: str | None = None,
    steps: int | None = None,
    learning_rate: float | None = None,
    settings: Mapping[str, Any] | None = None,
    processes: int | None = None,
    dry_run: bool = False,
    report: bool = True,
    loss: Any = None,
    miner: Any = None,
    sampler: Any = None,
    transform: Any = None,
    callbacks: Sequence[Any] = (),
) -> Run | Plan:
    """Train a model on labeled images and keep it if it is better.

    The trained model is measured on held-out classes next to the starting model. Settings are merged: those of
    `recipe` first, then `settings`, then the other arguments.

    Args:
        data: Images with classes: whatever `read_table` takes.
        image_column: Column of a table with the images; found by its name or type by default.
        label_column: Column of a table with the labels.
        split_column: Column of a table with the split; `fold:train=0,1,test=2` also says what its values stand for.
        method: Training method, as `ms` or `xbn`, or `auto`: the best measured on such images. The recipe's by default.
        model: Model to start from: a model or run folder, a timm name, or an id on the Hub.
        recipe: Recipe to use: a name or a YAML file. `default` if none is given.
        out: Folder of the run; a new one under the runs folder by default.
        resume: Run to continue after it was stopped. It ends with the same bits as an uninterrupted run.
        seed: Random seed.
        device: Device to train on, as `cpu` or `cuda`; the best one by default.
        steps: Number of optimizer steps.
        learning_rate: Learning rate of the backbone.
        settings: Any setting, as `optimizer.lr=1e-4`. In Python a nested mapping, as `{"optimizer": {"lr": 1e-4}}`.
        processes: Number of processes that train together.
        dry_run: Only print the settings and what the run would cost, timed on a few images and steps.
        report: Write the images and maps of the report.
        loss: A loss object instead of a method: of pytorch-metric-learning, of `lookalike.losses`, a
            `CrossBatchMemory`, or a module of your own that takes embeddings and labels.
        miner: A miner of pytorch-metric-learning for `loss`, or for a method that is one loss.
        sampler: A torch sampler over the training images, or a function from their class numbers to one.
        transform: Augmentation of torchvision or albumentations, or a function of a PIL image; ends at the model's
            input size, without normalization. Training is end to end then.
        callbacks: Objects with some of the hooks `on_step`, `on_evaluate`, `on_checkpoint` and `on_end`; see
            `lookalike.training.Callback`.

    Returns:
        The finished run; with `dry_run` a `Plan`.

    Raises:
        LookalikeError: If the images or settings cannot be used, or the resumed run was started with others.

    Example:
        >>> run = la.train(data="photos", model="test_efficientnet", steps=2, report=False,
        ...                settings={"model": {"weights": "random", "size": 32}, "log": {"tensorboard": False}})
        ... # doctest: +SKIP
        >>> run.result["steps"]  # doctest: +SKIP
        2
    """
    auto = method == "auto"
    plain = {"method": None if auto else method, "seed": seed, "device": device, "steps": steps, "processes": processes}
    columns = (image_column, label_column, split_column)
    overrides = _overrides(settings, data=data, columns=columns, model=model, learning_rate=learning_rate, **plain)
    if auto and resume is None:
        data, name = _choose_method(data, resolve(recipe_files.load(recipe or DEFAULT_RECIPES["train"]), overrides))
        overrides = merge(overrides, {"method": {"name": name}})
    own = OwnParts(loss, miner, sampler, transform, callbacks)
    options: dict[str, Any] = {"out": out, "resume": resume, "dry_run": dry_run, "report": report, "model": model}
    return start("train", data, recipe, overrides, own=own, **options)


def pretrain(
    *,
    data: Any = None,
    image_column: str | None = None,
    label_column: str | None = None,
    split_column: str | None = None,
    method: str | None = None,
    model: str | Path | Embedder | None = None,
    recipe: str | Path | None = None,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    seed: int | None = None,
    device: str | None = None,
    steps: int | None = None,
    learning_rate: float | None = None,
    settings: Mapping[str, Any] | None = None,
    processes: int | None = None,
    from_scratch: bool = False,
    dry_run: bool = False,
    report: bool = True,
    callbacks: Sequence[Any] = (),
) -> Run | Plan:
    """Train a backbone on images without labels.

    The result can be used by `train` and `index` like any other model. If there are labels, a fifth of the images is
    held out; k-NN accuracy on them is logged and decides whether the trained or the starting model is kept. Without
    labels both are saved, and the starting model remains the default.

    Args:
        data: Images, with or without labels: a folder, a table or a list file.
        image_column: Column of a table with the images; found by its name or type by default.
        label_column: Column of a table with the labels.
        split_column: Column of a table with the split; `fold:train=0,1,test=2` also says what its values stand for.
        method: Pretraining method: `carp`, `moco`, `dino` or `simsiam`; the recipe's by default.
        model: Model to start from: a model or run folder, a timm name, or an id on the Hub.
        recipe: Recipe to use: a name or a YAML file. `pretrain` if none is given.
        out: Folder of the run; a new one under the runs folder by default.
        resume: Run to continue after it was stopped. It ends with the same bits as an uninterrupted run.
        seed: Random seed.
        device: Device to train on, as `cpu` or `cuda`; the best one by default.
        steps: Number of optimizer steps.
        learning_rate: Learning rate of the backbone.
        settings: Any setting, as `optimizer.lr=1e-4`. In Python a nested mapping, as `{"optimizer": {"lr": 1e-4}}`.
        processes: Number of processes that train together.
        from_scratch: Start from random weights, with settings that suit them.
        dry_run: Only print the settings and what the run would cost, timed on a few images and steps.
        report: Write the images and maps of the report.
        callbacks: Objects with some of the hooks `on_step`, `on_evaluate`, `on_checkpoint` and `on_end`; see
            `lookalike.training.Callback`.

    Returns:
        The finished run; with `dry_run` a `Plan`.

    Raises:
        LookalikeError: If the images or settings cannot be used, or the resumed run was started with others.

    Example:
        >>> plan = la.pretrain(data="photos", steps=4, dry_run=True, settings={"model": {"size": 64}})
        >>> plan.settings.method.name
        'carp'
    """
    plain = {"method": method, "seed": seed, "device": device, "steps": steps, "processes": processes}
    columns = (image_column, label_column, split_column)
    overrides = _overrides(settings, data=data, columns=columns, model=model, learning_rate=learning_rate, **plain)
    if from_scratch:
        name = method_name(overrides) or method_name(recipe_files.load(recipe or DEFAULT_RECIPES["pretrain"]))
        overrides = merge(FROM_SCRATCH, methods.find(str(name)).from_scratch_overrides, overrides)
    options: dict[str, Any] = {"out": out, "resume": resume, "dry_run": dry_run, "report": report, "model": model}
    return start("pretrain", data, recipe, overrides, own=OwnParts(callbacks=callbacks), **options)


def _choose_method(data: Any, settings: TrainSettings) -> tuple[Table, str]:
    """Read the images for `--method auto`; returns them and the method measured best on such images."""
    images = read_table(_source(data, settings), layout=settings.data.layout, progress=True)
    name, why = choose_method(images)
    progress.say(f"Method: {name} ({why}).")
    return images, name


def _source(data: Any, settings: TrainSettings) -> Any:
    if data is None and not settings.data.source:
        raise LookalikeError("There is nothing to train on: give a folder of images.")
    return settings.data.source if data is None else data


@in_every_process
def start(
    command: str,
    data: Any,
    recipe: str | Path | None,
    overrides: dict[str, Any],
    *,
    out: str | Path | None,
    resume: str | Path | None,
    dry_run: bool,
    report: bool,
    own: OwnParts,
    model: Any = None,
) -> Run | Plan:
    """Start, resume or plan a run of `train` or `pretrain`; `overrides` are merged over the recipe.

    A loaded `model` is saved in the run, which starts from there.
    """
    overrides = merge(own.overrides(method_name(overrides)), overrides)
    if distributed.started_size() > 1:
        overrides["processes"], resume = started_by_torchrun(overrides.get("processes"), out, resume)
    if resume is not None:
        run = find_run(resume)
        check_resumed(run.config.get("objects", {}), own)
        settings = _resumed_settings(run, recipe, overrides)
        say_where(run, settings)
        in_memory = data if data is not None and not isinstance(data, (str, Path)) else None
        with run.locked():
            table, division = resumed_images(run, settings, in_memory)
            return run_training(run, settings, table, division, report=report, own=own)
    settings = resolve(recipe_files.load(recipe or DEFAULT_RECIPES[command]), overrides)
    _check_command(settings.method.name, command)
    _check_objects(settings, own)
    table, division = split_images(_source(data, settings), settings)
    if dry_run:
        return plan_run(settings, table, division, report=report, objects=own)

    def fill(run: Run) -> None:
        if isinstance(model, Embedder):  # saved with the keys of the images that are known to have trained it
            model.save_pretrained(run.path / START_MODEL)
            known = training_overlap.known_images(model)
            document = {"images": None if known is None else sorted(known.made)}
            write_json(run.path / START_MODEL / training_overlap.FILE, document)

    run = Run.create(settings.method.name, settings.model_dump(mode="json"), path=out, fill=fill)
    if isinstance(model, Embedder):
        settings.model.name = str(run.path / START_MODEL)
        write_yaml(run.path / "config.yaml", settings.model_dump(mode="json"))
    with run.removed_if_failed(), run.locked():
        return run_training(run, settings, table, division, report=report, own=own)


def _overrides(
    settings: Mapping[str, Any] | None,
    *,
    data: Any,
    columns: Sequence[str | None],
    model: Any,
    learning_rate: float | None,
    **same_name: Any,
) -> dict[str, Any]:
    """The arguments of a command as settings, over `settings`; what is None is left out."""
    settings, out = settings or {}, {name: value for name, value in same_name.items() if value is not None}
    images = settings.get("data", {})
    if data is not None:
        if images.get("source"):
            raise LookalikeError("The images are given twice, as DATA and as `data.source`; leave one of them out.")
        name = data if isinstance(data, (str, Path)) else getattr(data, "name", type(data).__name__)
        out["data"] = {"source": str(name)}
    if any(columns):
        out.setdefault("data", {})["layout"] = with_columns(images.get("layout", "auto"), *columns)
    if isinstance(model, Embedder):
        out["model"] = {"name": model.name}
    elif model is not None:
        model_folder.check_name(model)
        # A folder must still be found when the run is resumed from elsewhere; a name stays a name.
        path = Path(model)
        named = hub.is_id(model) or str(model).startswith((open_clip.PREFIX, model_folder.LOCAL))
        is_folder = isinstance(model, Path) or (len(path.parts) > 1 and not named)
        out["model"] = {"name": str(path.absolute() if is_folder else model)}
    if learning_rate is not None:
        out["optimizer"] = {"lr": learning_rate}
    return merge(expand_shorthand(settings), expand_shorthand(out))


def _check_objects(settings: TrainSettings, own: OwnParts) -> None:
    if settings.processes > 1 and own.names():
        raise LookalikeError(
            f"Objects of your own ({', '.join(own.names())}) cannot be handed to {settings.processes} processes: train "
            "with one, or register a method (docs/how-to/write-a-method.md)."
        )
    if own.transform is not None and settings.views.mode == "cached":
        raise LookalikeError("`transform` changes pixels, but `views.mode` is cached: leave it out, or set end_to_end.")


def _check_command(method: str, command: str) -> None:
    right = methods.find(method).command
    if right != command:
        available = ", ".join(name for name in methods.names() if methods.find(name).command == command)
        raise LookalikeError(f"`{method}` is a method of `lookalike {right}`; `lookalike {command}` has {available}.")


def _resumed_settings(run: Run, recipe: str | Path | None, overrides: Mapping[str, Any]) -> TrainSettings:
    """The run's own settings; raise if the recipe or the overrides differ from them."""
    config = run.config
    settings = resolve(config)
    if run.result.get("finished"):
        raise LookalikeError(
            f"The run `{run.path}` is finished; there is nothing to resume. Start a new one, or view it with: "
            f"lookalike report {shlex.quote(str(run.path))}"
        )
    requested = resolve(config, *([recipe_files.load(recipe)] if recipe is not None else []), overrides)
    old, new = (flatten(s.model_dump(mode="json")) for s in (settings, requested))
    names = sorted((old.keys() | new.keys()) - {"data.source", "device"})
    different = [name for name in names if old.get(name) != new.get(name)]
    if different:
        raise LookalikeError(
            f"The run `{run.path}` was started with another `{different[0]}`, and a run cannot be resumed with other "
            "settings: leave the setting out, or start a new run with --out."
        )
    return settings


def split_images(source: Any, settings: TrainSettings) -> tuple[Table, Division]:
    """Read the images and split them into training, validation and test."""
    table = read_table(source, layout=settings.data.layout, progress=True)
    labeled = methods.find(settings.method.name).needs_labels
    if labeled and (small := check_classes(table)):
        named = ", ".join(f"`{name}`" for name in small[:3]) + (", …" if len(small) > 3 else "")
        count = f"{len(small)} classes have" if len(small) > 1 else "1 class has"
        progress.warn(f"{count} only one image and cannot be retrieved correctly: {named}.")
    division = divide(table, settings.data)
    if not labeled:
        division = division.with_unlabeled(table)
    for note in division.notes:
        progress.say(note)
    return table, division


def _prepare(run: Run, settings: TrainSettings, table: Table, division: Division) -> tuple[Table, Division]:
    """Audit the images, leave out unreadable ones, and record the table in the run."""
    near, max_bad = settings.data.near_duplicates, settings.data.max_unreadable
    result = audit(division.mark(table), near=near, max_bad=max_bad, progress=True)
    table, division, facts = result.table, division.follow(result.table), result.facts()
    if facts["unreadable"]:
        named = "; ".join(f"{row}: {why}" for row, why in result.unreadable[:3])
        count = progress.plural(facts["unreadable"], "image")
        progress.warn(f"{count} cannot be read and will be left out ({named}).")
    if across := facts["across_exact"] + facts["across_near"]:
        count = progress.plural(across, "group")
        progress.warn(f"{count} of equal or nearly equal images are on both sides of the split.")
    table.save(run.path / TABLE)
    document = {"audit": facts, "rule": division.rule, "notes": division.notes, "unreadable": result.unreadable}
    document |= {"fingerprint": table.fingerprint(), "versions": package_versions()}
    write_json(run.path / PREPARED, document)
    return table, division


def resumed_images(run: Run, settings: TrainSettings, data: Any = None) -> tuple[Table, Division]:
    """The images and the split of a run that is resumed; `data` are images in memory, passed once more."""
    source = settings.data.source if data is None else data
    if not (run.path / PREPARED).exists():  # stopped before the images were audited
        return split_images(source, settings)
    table, division = load_table(run)
    if data is None and table.has("item"):
        raise LookalikeError(f"The images of `{run.path}` were in memory: pass them again, as train(data=…, resume=…).")
    if table.root is not None and (data is not None or location(source).exists()):
        now = read_table(source, layout=settings.data.layout, progress=True)
        table = replace(table, content=now.content)
        ids = {row: place for place, row in enumerate(now.column("row_id"))}
        rows = [ids.get(row, -1) for row in table.column("row_id")]
        if min(rows, default=0) < 0 or now.take(rows).fingerprint() != table.fingerprint():
            raise LookalikeError(
                f"The images in `{settings.data.source}` have changed since the run `{run.path}` began; "
                "it cannot be resumed."
            )
    return table, division


def load_table(run: Run) -> tuple[Table, Division]:
    """Load the images of a run and their split."""
    table = Table.load(run.path / TABLE)
    about, none = read_json(run.path / PREPARED, "run's data"), np.empty(0, np.int64)
    return table, Division(none, none, none, about["rule"], about["notes"]).follow(table)


def say_where(run: Run, settings: TrainSettings) -> None:
    """Print where a resumed run continues, before anything else is read."""
    if (path := run.checkpoints / checkpoint.LAST).exists():
        progress.say(f"Resuming at step {checkpoint.read(path)['step']:,} of {settings.steps:,}.")
    else:
        where = "after the check of the images" if (run.path / PREPARED).exists() else "from its start"
        progress.say(f"Resuming {where}: no step was taken yet.")


def run_training(
    run: Run, settings: TrainSettings, table: Table, division: Division, *, report: bool, own: OwnParts
) -> Run:
    """Prepare, fit, measure, save and report; also continues a run that was stopped."""
    stages = Stages()
    if not (run.path / PREPARED).exists():
        table, division = _prepare(run, settings, table, division)
    stages.finish("check")
    parts = build_setup(settings, table, division, run, own)
    if not_repeated := describe_repeat(own, parts.sampler):
        progress.say(not_repeated)
    loop = Loop(settings, parts, run, own.callbacks) if settings.processes == 1 else None
    stages.finish("features")
    if loop is not None:
        done = loop.go(resume=True)
    else:
        done = TrainingProgress(**distributed.launch(fit_in_process, settings.processes, folder=str(run.path))[0])
    stages.finish("train")
    with progress.Progress("Measuring"):
        outcome = select_model(parts, done, run)
    stages.finish("measure")
    about = read_json(run.path / PREPARED, "run's data")
    with progress.Progress("Saving the model and the report"):
        shown = save_models(run, parts, outcome, done)
        if report:
            write_sections(run, parts, done, outcome, about["audit"], shown)
    stages.finish("report")
    result: dict[str, Any] = {"finished": True, "method": settings.method.name, "model": settings.model.name}
    result |= {"steps": done.step, "best_step": done.best_step, "best_validation": done.best_score}
    result |= {"stopped_early": done.stopped_early, "classes": parts.classes, "seconds": stages.seconds}
    result["images"] = {name: len(getattr(division, name)) for name in ("train", "validation", "test")}
    result["audit"] = about["audit"]
    optional = {"guard": last_guard_readings(run.read_log()), "not_repeated": not_repeated}
    result |= {name: value for name, value in optional.items() if value}
    run.write_result(**result, **outcome.to_json())
    return run


def fit_in_process(folder: str) -> dict[str, Any]:
    """Run the loop in one of several processes, set up from the run folder and the caches."""
    run = Run(folder)
    settings = resolve(run.config)
    return asdict(Loop(settings, build_setup(settings, *load_table(run), run), run).go(resume=True))
