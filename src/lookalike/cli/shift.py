"""`lookalike shift`: how far a model can be trusted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lookalike.cli import options, show
from lookalike.cli.verb import Answer, verb
from lookalike.core import progress

if TYPE_CHECKING:
    from lookalike.shift import SplitSet

app = typer.Typer(help="How far a model can be trusted: splits of growing difficulty and what comes of them.")


@app.command("splits")
@verb
def splits(
    data: options.Labeled,
    model: options.Model = "efficientnet_lite0",
    layout: options.Layout = "auto",
    measure: Annotated[
        str, typer.Option("--measure", help="FID of the images (samples) or of the classes' means (means).")
    ] = "samples",
    count: Annotated[int, typer.Option("--count", help="How many splits to keep of the whole sequence.")] = 9,
    removal: Annotated[
        str, typer.Option("--removal", help="pure, or authors: the paper's rule, which may swap instead.")
    ] = "pure",
    draws: Annotated[int, typer.Option("--draws", help="Random removals beside every removal.")] = 5,
    size: options.Size = None,
    pooling: options.Pooling = None,
    device: options.Device = "auto",
    seed: options.Seed = 0,
    out: Annotated[
        Path | None, typer.Option("--out", help="The file to write; NAME-splits.json here otherwise.")
    ] = None,
) -> Answer:
    """Make train/test splits of growing difficulty."""
    from lookalike import shift

    found = shift.splits(
        data=data,
        model=model,
        layout=layout,
        measure=measure,  # type: ignore[arg-type]
        count=count,
        removal=removal,
        draws=draws,
        size=size,
        pooling=pooling,
        device=device,
        seed=seed,
        progress=True,
    )
    _say_fewer(found, count)
    path = out or Path(f"{found.data['name']}-splits.json")
    found.save(path)
    body = []
    for split in found.splits:
        what = "the usual split" if split.id == found.default else ""
        control = next((step.random for step in found.sequence if step.name == split.step and step.random), ())
        beside = _significant(sum(control) / len(control)) if control else "–"
        body.append((split.id, split.step, _significant(split.fid), beside, len(split.train), *split.images, what))
    head = ("split", "step", "FID", "at random", "classes a side", "train", "test", "neither", "")
    lines = show.table(head, body)
    lines += show.rows(
        [("Written", show.link(path)), ("Next", f"lookalike shift run {data} --splits {show.short(path)}")]
    )
    return Answer({**found.to_json(), "path": path}, lines, asked=True)


def _significant(value: float) -> str:
    """Four digits, whatever the scale: that of a FID is its eye's."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:#.4g}".rstrip(".")


def _say_fewer(found: SplitSet, count: int) -> None:
    if len(found.splits) < count:
        classes = len(found.data["classes"])
        progress.say(
            f"There are {len(found.splits)} splits instead of {count}: swapping and removing the {classes} classes has "
            "no more steps of rising FID."
        )


def _warn_of_transfer(found: SplitSet, only: Sequence[int], others: Sequence[object]) -> None:
    if others and only and found.default not in only:
        names = ", ".join(f"`{Path(str(other)).name}`" for other in others)
        progress.warn(
            f"Nothing is measured on {names}: only the models of the usual split are, and that is split "
            f"{found.default}, which --only leaves out; add it."
        )


Methods = Annotated[str, typer.Option("--methods", help="Which methods train, with commas.")]
Splits = Annotated[Path | None, typer.Option("--splits", help="A file of splits; made here otherwise.")]
Count = Annotated[int, typer.Option("--count", help="How many splits to make, where none are given.")]
Only = Annotated[str | None, typer.Option("--only", help="Only these splits, by number, with commas.")]
Recipe = Annotated[str, typer.Option("--recipe", help="A recipe's name, or a YAML file.")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Any setting of the training, as optimizer.rate=1e-4."),
]
Processes = Annotated[int | None, typer.Option("--processes", help="Runs at a time; one a core otherwise.")]
Out = Annotated[Path | None, typer.Option("--out", help="The folder of the runs; runs/<time>-<verb> otherwise.")]
Data = Annotated[
    Path | None, typer.Argument(metavar="DATA", help="Images with classes: a folder of subfolders, or a table.")
]
EIGHT = "s2sd,diva,margin,ms,arcface,proxy_anchor,r_margin,uniform_prior"


def _names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


@app.command("run")
@verb
def run(
    data: Data = None,
    splits: Splits = None,
    methods: Methods = EIGHT,
    models: Annotated[
        list[str] | None,
        typer.Option("--models", "--model", help="The starting model, or NAME=WEIGHTS; several are compared."),
    ] = None,
    count: Count = 9,
    only: Only = None,
    seeds: Annotated[int, typer.Option("--seeds", help="Runs of each method on each split.")] = 3,
    steps: options.Steps = None,
    recipe: Recipe = "shift",
    settings: Sets = None,
    select: Annotated[
        str, typer.Option("--select", help="Choose the step on validation classes, or on test as the papers do.")
    ] = "validation",
    transfer: Annotated[
        list[Path] | None, typer.Option("--transfer", help="Also measure on this data set; may be given again.")
    ] = None,
    layout: options.Layout = "auto",
    processes: Processes = None,
    out: Out = None,
    resume: options.Resume = None,
    report: Annotated[bool, typer.Option("--report/--no-report", help="Also make the report's maps.")] = True,
) -> Answer:
    """Train every method on every split: how performance falls as the shift grows."""
    from lookalike import shift
    from lookalike.core.settings import parse_set

    numbers = options.numbers(only, "--only") if only else None
    if splits is not None and transfer:  # before the hours it takes
        _warn_of_transfer(shift.SplitSet.load(splits), numbers or [], transfer)
    done = shift.run(
        data=data,
        splits=splits,
        methods=_names(methods),
        models=models or ["efficientnet_lite0"],
        count=count,
        only=numbers,
        seeds=seeds,
        steps=steps,
        recipe=recipe,
        settings=parse_set(settings or []),
        select=select,
        transfer=transfer or [],
        layout=layout,
        processes=processes,
        out=out,
        resume=resume,
        report=report,
    )
    made = shift.SplitSet.load(done.path / "splits.json")
    if done.config["splits"] is None:
        _say_fewer(made, done.config["count"])
    if splits is None:
        _warn_of_transfer(made, done.config["only"], done.config["transfer"])
    found = done.result["ags"]
    body = []
    for name, score in found["recall@1"].items():
        second = found["map@1000"][name]
        body.append((name, show.interval(score["value"], score["low"], score["high"]), f"{second['value']:.3f}"))
    lines = show.table(("method", "AGS, recall@1", "AGS, mAP@1000"), body)
    lines += show.rows([("Runs", show.link(done.path)), ("Report", f"lookalike report {show.short(done.path)}")])
    return Answer({"run": done.path, **done.result}, lines, asked=True)


@app.command("fewshot")
@verb
def fewshot(
    data: Data = None,
    splits: Splits = None,
    methods: Methods = "ms,arcface,diva,s2sd",
    model: options.Model = "efficientnet_lite0",
    shots: Annotated[str, typer.Option("--shots", help="Labeled images of every test class, with commas.")] = "2,5",
    episodes: Annotated[int, typer.Option("--episodes", help="Random draws of these images.")] = 10,
    adapt_steps: Annotated[
        int, typer.Option("--adapt-steps", help="Steps of adaptation; half as many again for more shots.")
    ] = 200,
    count: Count = 9,
    only: Only = None,
    seeds: Annotated[int, typer.Option("--seeds", help="Runs of each method on each split.")] = 1,
    steps: options.Steps = None,
    recipe: Recipe = "shift",
    settings: Sets = None,
    layout: options.Layout = "auto",
    processes: Processes = None,
    out: Out = None,
    resume: options.Resume = None,
) -> Answer:
    """Adapt to a few labeled images of the test classes, against none, on the same queries."""
    from lookalike import shift
    from lookalike.core.settings import parse_set

    done = shift.fewshot(
        data=data,
        splits=splits,
        methods=_names(methods),
        model=model,
        shots=options.numbers(shots, "--shots"),
        episodes=episodes,
        adapt_steps=adapt_steps,
        count=count,
        only=options.numbers(only, "--only") if only else None,
        seeds=seeds,
        steps=steps,
        recipe=recipe,
        settings=parse_set(settings or []),
        layout=layout,
        processes=processes,
        out=out,
        resume=resume,
    )
    if done.config["splits"] is None:
        _say_fewer(shift.SplitSet.load(done.path / "splits.json"), done.config["count"])
    body = []
    for row in done.result["summary"]:
        found = row["recall@1"]
        gain = show.interval(found["gain"]["value"], found["gain"]["low"], found["gain"]["high"], points=True)
        body.append((row["split"], row["method"], row["shots"], f"{found['zero']:.3f}", f"{found['few']:.3f}", gain))
    lines = show.table(("split", "method", "shots", "zero-shot", "few-shot", "gain"), body)
    lines += show.rows([("Runs", show.link(done.path)), ("Report", f"lookalike report {show.short(done.path)}")])
    return Answer({"run": done.path, **done.result}, lines, asked=True)


@app.command("place")
@verb
def place(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A run, or a model folder.")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="New images, without labels.")],
    data: Annotated[
        Path | None,
        typer.Option("--data", help="Labeled images to learn the curve from; those of the run otherwise."),
    ] = None,
    layout: options.Layout = "auto",
    level: Annotated[float, typer.Option("--level", help="How often the interval should hold.")] = 0.9,
    curve: Annotated[
        Path | None, typer.Option("--curve", help="Where the curve is kept; beside the model otherwise.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Learn the curve again.")] = False,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Start of the random numbers the curve is learned with; 0 at first.")
    ] = None,
    device: options.Device = "auto",
    out: options.RunOut = None,
) -> Answer:
    """Say how far new images are from training, and what recall to expect of them."""
    from lookalike import shift

    found = shift.place(
        model=model,
        folder=folder,
        data=data,
        layout=layout,
        level=level,
        curve=curve,
        fresh=fresh,
        seed=seed,
        device=device,
        out=out,
    )
    blind = found.ignoring
    lines = [
        found.sentence,
        *show.rows(
            [
                ("Images", f"{found.seen.images:,}"),
                ("The figure", f"finding the same class first among {found.seen.used:,} images of the folder"),
                ("Interval", f"holds {100 * found.level:.0f} times in 100, for classes the model has not seen"),
                ("Without a look", f"between {blind.low:.2f} and {blind.high:.2f}"),
                ("Report", f"lookalike report {show.short(out)}" if out else None),
            ]
        ),
    ]
    return Answer(found, lines, asked=True)
