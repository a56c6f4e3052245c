"""The commands `train` and `pretrain`."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lookalike import methods
from lookalike.core import distributed
from lookalike.core.errors import LookalikeError
from lookalike.core.run import Run, find_run, in_every_process, started_by_torchrun
from lookalike.core.settings import flatten, merge
from lookalike.training import recipe as recipe_files
from lookalike.training import runner
from lookalike.training.settings import TrainSettings, expand_shorthand, resolve

if TYPE_CHECKING:
    from lookalike.data.table import Table
    from lookalike.training.estimate import Plan

DEFAULT_RECIPES = {"train": recipe_files.DEFAULT, "pretrain": "pretrain"}
FROM_SCRATCH = {"model": {"weights": "random", "batch_norm": "train"}}  # random weights have no statistics to keep


def train(
    *,
    data: str | Path | Table | None = None,
    method: str | None = None,
    model: str | Path | None = None,
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
) -> Run | Plan:
    """Train a model on labeled images and keep it if it is better.

    The trained model is measured on held-out classes next to the starting model. Settings are merged: those of
    `recipe` first, then `settings`, then the other arguments.

    Args:
        data: Images with classes: a folder, a table or a list file.
        method: Training method, as `ms` or `xbn`, or `auto`: the best measured on such images. The recipe's by default.
        model: Model to start from: a model or run folder, or a timm name.
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
    auto, images = method == "auto", data
    plain = {"method": None if auto else method, "seed": seed, "device": device, "steps": steps, "processes": processes}
    overrides = _overrides(settings, data=data, model=model, learning_rate=learning_rate, **plain)
    if auto and resume is None:
        from lookalike.core.progress import say
        from lookalike.data import read_table
        from lookalike.training.which_method import choose_method

        chosen = resolve(recipe_files.load(recipe or DEFAULT_RECIPES["train"]), overrides).data
        if data is None and not chosen.source:
            raise LookalikeError("There is nothing to train on: give a folder of images.")
        images = read_table(data if data is not None else chosen.source, layout=chosen.layout, progress=True)
        name, why = choose_method(images)
        say(f"Method: {name} ({why}).")
        overrides = merge(overrides, {"method": {"name": name}})
    return start("train", images, recipe, overrides, out=out, resume=resume, dry_run=dry_run, report=report)


def pretrain(
    *,
    data: str | Path | Table | None = None,
    method: str | None = None,
    model: str | Path | None = None,
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
) -> Run | Plan:
    """Train a backbone on images without labels.

    The result can be used by `train` and `index` like any other model. If there are labels, a fifth of the images is
    held out; k-NN accuracy on them is logged and decides whether the trained or the starting model is kept. Without
    labels both are saved, and the starting model remains the default.

    Args:
        data: Images, with or without labels: a folder, a table or a list file.
        method: Pretraining method: `carp`, `moco`, `dino` or `simsiam`; the recipe's by default.
        model: Model to start from: a model or run folder, or a timm name.
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

    Returns:
        The finished run; with `dry_run` a `Plan`.

    Raises:
        LookalikeError: If the images or settings cannot be used, or the resumed run was started with others.

    Example:
        >>> plan = la.pretrain(data="photos", steps=4, dry_run=True)
        >>> plan.settings.method.name
        'carp'
    """
    plain = {"method": method, "seed": seed, "device": device, "steps": steps, "processes": processes}
    overrides = _overrides(settings, data=data, model=model, learning_rate=learning_rate, **plain)
    if from_scratch:
        name = overrides.get("method", {}).get("name")
        if name is None:
            name = expand_shorthand(recipe_files.load(recipe or DEFAULT_RECIPES["pretrain"]))["method"]["name"]
        overrides = merge(FROM_SCRATCH, methods.find(name).from_scratch_overrides, overrides)
    return start("pretrain", data, recipe, overrides, out=out, resume=resume, dry_run=dry_run, report=report)


@in_every_process
def start(
    command: str,
    data: str | Path | Table | None,
    recipe: str | Path | None,
    overrides: dict[str, Any],
    *,
    out: str | Path | None,
    resume: str | Path | None,
    dry_run: bool,
    report: bool,
) -> Run | Plan:
    """Start, resume or plan a run of `train` or `pretrain`; `overrides` are merged over the recipe."""
    if distributed.started_size() > 1:
        overrides["processes"], resume = started_by_torchrun(overrides.get("processes"), out, resume)
    if resume is not None:
        run = find_run(resume)
        settings = _resumed_settings(run, recipe, overrides)
        runner.say_where(run, settings)
    else:
        settings = resolve(recipe_files.load(recipe or DEFAULT_RECIPES[command]), overrides)
        _check_command(settings.method.name, command)
        if not settings.data.source:
            raise LookalikeError("There is nothing to train on: give a folder of images.")
        table, division = runner.split_images(data if data is not None else settings.data.source, settings)
        if dry_run:
            from lookalike.training.estimate import plan_run

            return plan_run(settings, table, division, report=report)
        run = Run.create(settings.method.name, settings.model_dump(mode="json"), path=out)
    with contextlib.nullcontext() if resume is not None else run.removed_if_failed(), run.locked():
        if resume is not None:
            table, division = runner.resumed_images(run, settings)
        return runner.run_training(run, settings, table, division, report=report)


def _overrides(
    settings: Mapping[str, Any] | None, *, data: Any, model: Any, learning_rate: float | None, **same_name: Any
) -> dict[str, Any]:
    """The arguments of a command as settings, over `settings`; what is None is left out."""
    out: dict[str, Any] = {name: value for name, value in same_name.items() if value is not None}
    if data is not None:
        if (settings or {}).get("data", {}).get("source"):
            raise LookalikeError("The images are given twice, as DATA and as `data.source`; leave one of them out.")
        out["data"] = {"source": str(data) if isinstance(data, (str, Path)) else data.name}
    if model is not None:
        # A folder must still be found when the run is resumed from elsewhere; a name stays a name.
        path = Path(model)
        is_folder = len(path.parts) > 1 or isinstance(model, Path)
        out["model"] = {"name": str(path.absolute() if is_folder else model)}
    if learning_rate is not None:
        out["optimizer"] = {"lr": learning_rate}
    return merge(expand_shorthand(settings or {}), expand_shorthand(out))


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
            f"lookalike report {run.path}"
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
