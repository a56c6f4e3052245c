"""The verb `train`, and the job behind it and `pretrain`: from images to a model whose worth is known."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from lookalike.core import distributed as processes
from lookalike.core import progress
from lookalike.core.errors import LookalikeError
from lookalike.core.files import read_json, write_json
from lookalike.core.imports import package_versions
from lookalike.core.run import Run, find_run
from lookalike.core.settings import merge
from lookalike.training import recipe as cookbook
from lookalike.training.settings import TrainSettings, expand_shorthand, resolve

if TYPE_CHECKING:
    from lookalike.data.table import Table
    from lookalike.training.loop import TrainingProgress
    from lookalike.training.setup import Assembly
    from lookalike.training.split import Division

TABLE, PREPARED = "table.parquet", "prepared.json"
STARTS = {"train": cookbook.DEFAULT, "pretrain": "pretrain"}  # the recipe of each verb


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
    """Train a model on images with classes, measure it on classes it has not seen, and keep it if it is better.

    Later ones win: `recipe` (a name or a YAML file; `default` unless given), `settings` (nested, as
    `{"optimizer": {"lr": 1e-4}}`), then the other arguments. `resume` goes on with a run that was stopped.
    `dry_run` gives the settings and what the run would cost as a `Plan`, and does nothing.
    `report=False` leaves out the images and maps of the report.
    """
    given = given_settings(data, method, model, seed, device, steps, learning_rate, processes)
    asked = merge(expand_shorthand(settings or {}), expand_shorthand(given))
    return start("train", data, recipe, asked, out=out, resume=resume, dry_run=dry_run, report=report)


def start(
    verb: str,
    data: str | Path | Table | None,
    recipe: str | Path | None,
    asked: dict[str, Any],
    *,
    out: str | Path | None,
    resume: str | Path | None,
    dry_run: bool,
    report: bool,
) -> Run | Plan:
    """What both verbs do: `asked` lies over the recipe, or must agree with the run that is resumed."""
    if resume is not None:
        run = find_run(resume)
        chosen = _resumed(run, recipe, asked)
    else:
        chosen = resolve(cookbook.load(recipe or STARTS[verb]), asked)
        _check_verb(chosen.method.name, verb)
        if not chosen.data.source:
            raise LookalikeError("There is nothing to train on: give a folder of images.")
        table, division = _divided(data if data is not None else chosen.data.source, chosen)
        if dry_run:
            from lookalike.training.estimate import estimate

            return Plan(chosen, estimate(chosen, table, division))
        run = Run.create(chosen.method.name, chosen.model_dump(mode="json"), path=out)
    with contextlib.nullcontext() if resume is not None else run.or_nothing(), run.locked():
        if resume is not None:
            table, division = _again(run, chosen)
        return _run(run, chosen, table, division, report=report)


def _check_verb(method: str, verb: str) -> None:
    from lookalike import methods

    right = methods.find(method).command
    if right != verb:
        there = ", ".join(name for name in methods.names() if methods.find(name).command == verb)
        raise LookalikeError(f"`{method}` is a method of `lookalike {right}`; `lookalike {verb}` has {there}.")


@dataclass(frozen=True)
class Plan:
    """What a run would do; nothing was done."""

    settings: TrainSettings
    facts: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {"facts": self.facts, "settings": self.settings.model_dump(mode="json")}

    def __str__(self) -> str:
        width = max(map(len, self.facts)) + 3
        lines = [f"{name:<{width}}{value}" for name, value in self.facts.items()]
        return "\n".join([*lines, "", yaml.safe_dump(self.settings.model_dump(mode="json"), sort_keys=False).rstrip()])


def given_settings(
    data: Any,
    method: str | None,
    model: Any,
    seed: int | None,
    device: str | None,
    steps: int | None,
    learning_rate: float | None,
    count: int | None,
) -> dict[str, Any]:
    """The plain arguments as settings; what was not given is left out."""
    out: dict[str, Any] = {"seed": seed, "device": device, "steps": steps, "processes": count, "method": method}
    out = {name: value for name, value in out.items() if value is not None}
    if data is not None:
        out["data"] = {"source": str(data) if isinstance(data, (str, Path)) else data.name}
    if model is not None:
        # A folder is still to be found when the run is resumed from elsewhere; a name stays a name.
        place = Path(model)
        folder = len(place.parts) > 1 or isinstance(model, Path)
        out["model"] = {"name": str(place.absolute() if folder else model)}
    if learning_rate is not None:
        out["optimizer"] = {"lr": learning_rate}
    return out


def _resumed(run: Run, recipe: str | Path | None, given: Mapping[str, Any]) -> TrainSettings:
    """The run's own settings; anything else asked for must agree with them."""
    config = run.config
    chosen = resolve(config)
    if run.result.get("finished"):
        raise LookalikeError(
            f"The run `{run.path}` is finished; there is nothing to resume. Start a new one, or look at it with: "
            f"lookalike report {run.path}"
        )
    wanted = resolve(config, *([cookbook.load(recipe)] if recipe is not None else []), given)
    different = _difference(chosen.model_dump(mode="json"), wanted.model_dump(mode="json"))
    different = [name for name in different if name not in ("data.source", "device")]
    if different:
        raise LookalikeError(
            f"The run `{run.path}` was started with another `{different[0]}`; a resumed run must end as it would have: "
            "leave the setting out, or start a new run with --out."
        )
    return chosen


def _difference(a: Mapping[str, Any], b: Mapping[str, Any], prefix: str = "") -> list[str]:
    out = []
    for name in a.keys() | b.keys():
        left, right = a.get(name), b.get(name)
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            out += _difference(left, right, f"{prefix}{name}.")
        elif left != right:
            out.append(f"{prefix}{name}")
    return sorted(out)


# ---- the images --------------------------------------------------------------------------------


def _divided(source: Any, settings: TrainSettings) -> tuple[Table, Division]:
    """The images, parted into training, validation and test, or the sentence that says why they cannot be."""
    from lookalike import methods
    from lookalike.data import check_classes, read_table
    from lookalike.training.split import divide

    table = read_table(source, layout=settings.data.layout, progress=True)
    labeled = methods.find(settings.method.name).needs_labels
    if labeled:
        small = check_classes(table)
        if small:
            named = ", ".join(f"`{name}`" for name in small[:3]) + (", …" if len(small) > 3 else "")
            count = f"{len(small)} classes have" if len(small) > 1 else "1 class has"
            progress.warn(f"{count} one image only and can only be found by mistake: {named}.")
    division = divide(table, settings.data)
    if not labeled:
        division = division.with_unlabeled(table)
    for note in division.notes:
        progress.say(note)
    return table, division


def _prepare(run: Run, settings: TrainSettings, table: Table, division: Division) -> tuple[Table, Division]:
    """Look at every image, leave the unreadable out, and write down what will be trained on."""
    from lookalike.data import audit

    found = audit(
        division.mark(table), near=settings.data.near_duplicates, max_bad=settings.data.max_unreadable, progress=True
    )
    table, division = found.table, division.follow(found.table)
    facts = found.facts()
    if facts["unreadable"]:
        named = "; ".join(f"{row}: {why}" for row, why in found.unreadable[:3])
        count = f"{facts['unreadable']:,} images" if facts["unreadable"] > 1 else "1 image"
        progress.warn(f"{count} cannot be read and will be left out ({named}).")
    across = facts["across_exact"] + facts["across_near"]
    if across:
        count = f"{across:,} groups" if across > 1 else "1 group"
        progress.warn(f"{count} of equal or nearly equal images on both sides of the split.")
    table.save(run.path / TABLE)
    document = {
        "audit": facts,
        "rule": division.rule,
        "notes": division.notes,
        "unreadable": found.unreadable,
        "fingerprint": table.fingerprint(),
        "versions": package_versions(),
    }
    write_json(run.path / PREPARED, document)
    return table, division


def _again(run: Run, settings: TrainSettings) -> tuple[Table, Division]:
    """The images of a run that is resumed: those it began with, unless they have changed meanwhile."""
    from lookalike.data import Table, read_table

    if not (run.path / PREPARED).exists():  # it was stopped before it had looked at them
        return _divided(settings.data.source, settings)
    table, division = load_table(run)
    if table.root is not None and Path(settings.data.source).exists():
        now = read_table(settings.data.source, layout=settings.data.layout, progress=True)
        ids = {row: place for place, row in enumerate(now.column("row_id"))}
        rows = [ids.get(row, -1) for row in table.column("row_id")]
        if min(rows, default=0) < 0 or now.take(rows).fingerprint() != table.fingerprint():
            raise LookalikeError(
                f"The images in `{settings.data.source}` have changed since the run `{run.path}` began; "
                "it cannot be resumed."
            )
    assert isinstance(table, Table)
    return table, division


def load_table(run: Run) -> tuple[Table, Division]:
    """The images of a run and how they are parted."""
    import numpy as np

    from lookalike.data.table import Table
    from lookalike.training.split import Division

    table = Table.load(run.path / TABLE)
    about = read_json(run.path / PREPARED, "run's data")
    none = np.empty(0, np.int64)
    return table, Division(none, none, none, about["rule"], about["notes"]).follow(table)


# ---- the run -------------------------------------------------------------------------------------


def _run(run: Run, settings: TrainSettings, table: Table, division: Division, *, report: bool) -> Run:
    from lookalike.training.guard_section import last_readings
    from lookalike.training.outcome import judge
    from lookalike.training.saving import save_models
    from lookalike.training.setup import assemble

    started = time.monotonic()
    if not (run.path / PREPARED).exists():
        table, division = _prepare(run, settings, table, division)
    parts = assemble(settings, table, division, run)
    cached = time.monotonic()
    done = _fit(run, settings, parts)
    fitted = time.monotonic()
    outcome = judge(parts, done, run)
    seconds = {"prepare": cached - started, "train": fitted - cached, "measure": time.monotonic() - fitted}
    shown = save_models(run, parts, outcome, done)
    about = read_json(run.path / PREPARED, "run's data")
    if report:
        from lookalike.training.report import write_sections

        write_sections(run, parts, done, outcome, about["audit"], shown)
    run.write_result(
        finished=True,
        method=settings.method.name,
        model=settings.model.name,
        steps=done.step,
        best_step=done.best_step,
        best_validation=done.best_score,
        stopped_early=done.stopped_early,
        images={name: len(getattr(division, name)) for name in ("train", "validation", "test")},
        classes=parts.classes,
        seconds={name: round(value, 2) for name, value in seconds.items()},
        audit=about["audit"],
        **({"guard": readings} if (readings := last_readings(run.read_log())) else {}),
        **outcome.to_json(),
    )
    progress.say(outcome.sentence)
    return run


def _fit(run: Run, settings: TrainSettings, parts: Assembly) -> TrainingProgress:
    """Take the steps, here or in several processes."""
    from lookalike.training.loop import Loop, TrainingProgress

    if settings.processes == 1:
        return Loop(settings, parts, run).go(resume=True)
    answers = processes.launch(fit_in_process, settings.processes, folder=str(run.path))
    return TrainingProgress(**answers[0])


def fit_in_process(folder: str) -> dict[str, Any]:
    """What each of several processes does: the same assembly out of the run and the caches, then the loop."""
    from dataclasses import asdict

    from lookalike.training.loop import Loop
    from lookalike.training.setup import assemble

    run = Run(folder)
    settings = resolve(run.config)
    return asdict(Loop(settings, assemble(settings, *load_table(run), run), run).go(resume=True))
